package budget

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// JoinOptions configures Join; its zero value is the default.
type JoinOptions struct {
	// Name is what errors and reports call the process: up to 256 of A-Z a-z 0-9 . _ : @ / -. "" is the program's
	// name and the process's number.
	Name string
	// Least is how many bytes the process is promised: they are never taken from it. They are its lease when Join
	// returns.
	Least uint64
	// Token, UIDs and Timeout are as in shareable.AttachOptions.
	Token   []byte
	UIDs    []uint32
	Timeout time.Duration
}

// Member is this process as a member of a device's budget. Safe for concurrent use. The caller must Close it, before
// the device.
type Member struct {
	// Immutable.
	dev    *vmm.Device
	dial   func(context.Context, serve.Notified) (serve.Client, error)
	isSelf bool // the broker is in this process
	opts   JoinOptions
	token  [16]byte
	lease  door.Lease
	ready  chan struct{} // closed when Join has ended
	near   chan struct{} // has something when the lease is short
	ctx    context.Context
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	client  serve.Client  // nil: there is no connection
	joined  bool          // over that connection
	times   int           // how often that was connected at the last JOIN; 0: none was sent
	changed chan struct{} // closed when joined, client or err change
	err     error         // why there is no connection
	told    uint64        // the lease that the broker knows of
	said    uint64        // bytes that are created, as the broker heard last
	last    uint32        // number of an ask
	asks    map[uint32]chan wire.Lent
	hangs   bool      // a reply of the broker is late, and it has said nothing since
	terms   wire.Lent // Least and Most
	counts  Counts
	closed  bool
}

// Counts is what a Member has done, since Join.
type Counts struct {
	Asked   uint64 `json:"asked"`   // asks for which others may have to give
	Refused uint64 `json:"refused"` // of those
	Demands uint64 `json:"demands"` // that others had memory given
	Given   uint64 `json:"given"`   // bytes
	Again   uint64 `json:"again"`   // connections after the first
}

// Stats is the state of a Member. Sizes are bytes.
type Stats struct {
	Counts

	Lease   uint64 `json:"lease"`   // what the process may create
	Created uint64 `json:"created"` // what counts against it
	Least   uint64 `json:"least"`   // what it is promised
	Most    uint64 `json:"most"`    // 0: no bound but the budget
	Err     error  `json:"-"`       // why there is no connection to a broker; nil: there is one
}

// Join makes the process a member of the budget that the broker at path has for dev, until Close. "" is the path of
// vmmstored. Memory that the process has created on dev before counts, too.
//
// Join returns once the lease has what the process has created, and Least. It returns the errors of shareable.Attach,
// vmm.ErrNotSupported if the broker has no budget of the device, vmm.ErrLimit if all members are promised more than
// the budget, vmm.ErrOutOfMemory if others do not give enough, and vmm.ErrBusy if the process is a member already.
func Join(ctx context.Context, path string, dev *vmm.Device, o JoinOptions) (*Member, error) {
	m := newMember(context.Background(), dev, o)
	m.dial = func(ctx context.Context, on serve.Notified) (serve.Client, error) {
		return sharing.Dial(ctx, cmp.Or(path, defaultName), dev, shareable.AttachOptions{Token: o.Token, UIDs: o.UIDs, Timeout: o.Timeout}, on)
	}
	return m.join(ctx)
}

// forStore is a serve.Joining.
type forStore struct{}

var _ = door.Open[serve.Joining[*Member]](forStore{})

func (forStore) Join(ctx context.Context, dev *vmm.Device, name string, dial func(serve.Notified) serve.Client) (*Member, error) {
	m := newMember(ctx, dev, JoinOptions{Name: name})
	m.isSelf = true
	m.dial = func(_ context.Context, on serve.Notified) (serve.Client, error) { return dial(on), nil }
	return m.join(ctx)
}

func (forStore) End(m *Member) error {
	if m == nil {
		return nil
	}
	return m.end()
}

// newMember makes a Member, which asks for nothing any more once life has ended.
func newMember(life context.Context, dev *vmm.Device, o JoinOptions) *Member {
	m := &Member{
		dev: dev, opts: o,
		ready: make(chan struct{}), near: make(chan struct{}, 1), changed: make(chan struct{}), asks: map[uint32]chan wire.Lent{},
	}
	m.opts.Name = cmp.Or(o.Name, defaultMember())
	_, _ = rand.Read(m.token[:]) // it never fails
	m.ctx, m.stop = context.WithCancel(life)
	return m
}

// join has the broker take in a new Member.
func (m *Member) join(ctx context.Context) (_ *Member, err error) {
	defer errtext.Wrapf(&err, "join budget")
	if ctx == nil {
		return nil, fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	if err := wire.CheckName(m.opts.Name); err != nil {
		return nil, fmt.Errorf("%w: name %q: %w", vmm.ErrInvalid, m.opts.Name, err)
	}
	if m.lease, err = inside.VMM.Lend(m.dev, m); err != nil {
		return nil, err
	}
	if err = m.start(ctx); err == nil {
		close(m.ready)
		m.done.Add(1)
		go m.follow()
		return m, nil
	}
	m.leave(err)
	close(m.ready)
	return nil, errors.Join(err, m.lease.End())
}

// start joins, and asks for what the process has already, and for Least.
func (m *Member) start(ctx context.Context) error {
	if err := m.connect(ctx); err != nil {
		return err
	}
	if err := m.awaitJoined(ctx); err != nil {
		return err
	}
	lease, created, _ := m.lease.State()
	if need := max(created, m.opts.Least); need > lease {
		return m.ask(ctx, need, true)
	}
	return nil
}

// defaultMember is a valid name of this process.
func defaultMember() string {
	name := strings.Map(func(r rune) rune {
		if r < 0x80 && wire.CheckName(string(r)) == nil {
			return r
		}
		return '-'
	}, filepath.Base(os.Args[0]))
	return strings.ReplaceAll(name, "..", "-")[:min(len(name), 200)] + "-" + strconv.Itoa(os.Getpid())
}

// connect makes a connection, and joins over it.
func (m *Member) connect(ctx context.Context) error {
	var c serve.Client
	made := make(chan struct{})
	c, err := m.dial(ctx, serve.Notified{
		Event: func(f wire.Frame) error { <-made; return m.handle(c, f) },
		Again: func() { <-made; m.sendJoin(c) },
	})
	close(made)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.client, m.times = c, 0
	m.mu.Unlock()
	m.sendJoin(c)
	return nil
}

// sendJoin joins over a new connection, with the lease that the member has now. Messages of the connection before count
// no more.
func (m *Member) sendJoin(c serve.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	times := c.Times()
	if m.client != c || m.times > times { // it has joined over this connection
		return
	}
	m.times = times + 1
	if m.isReady() {
		m.counts.Again++
	}
	m.joined = false
	lease, created, limit := m.lease.State()
	if m.told == 0 && !m.isReady() && !m.isSelf { // the broker has lent nothing yet
		lease = 0
	}
	m.told, m.said = lease, created
	m.failAsksLocked("the broker has ended")
	q := wire.Join{UUID: m.dev.Info().UUID, Token: m.token, Lease: lease, Created: created, Least: m.opts.Least, Most: limit, Name: m.opts.Name}
	_ = c.Send(wire.TypeJoin, q.Append(nil)) // an error ends the connection
}

func (m *Member) isReady() bool {
	select {
	case <-m.ready:
		return true
	default:
		return false
	}
}

// changedLocked wakes those that wait for a change of the connection. It needs mu.
func (m *Member) changedLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// awaitJoined waits until the broker has the member.
func (m *Member) awaitJoined(ctx context.Context) error {
	for {
		m.mu.Lock()
		joined, changed, c := m.joined, m.changed, m.client
		m.mu.Unlock()
		if joined {
			return nil
		}
		select {
		case <-changed:
		case <-c.Ended():
			return c.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// disconnect ends the connection, if there is one.
func (m *Member) disconnect(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		m.client.Close()
	}
	m.client, m.joined, m.err = nil, false, why
	m.failAsksLocked("the broker does not answer")
	m.changedLocked()
}

// redialTime is the pause between tries to connect. A broker that begins waits a second for members.
const redialTime = 200 * time.Millisecond

// reportTime is how often the broker hears what the process has created, if that has changed.
const reportTime = time.Second

// follow asks for more when the lease is short, reports, and connects again, until Close.
func (m *Member) follow() {
	defer m.done.Done()
	tick := time.NewTicker(reportTime)
	defer tick.Stop()
	for {
		m.mu.Lock()
		c := m.client
		m.mu.Unlock()
		if c == nil {
			select {
			case <-m.ctx.Done():
				return
			case <-time.After(redialTime):
				if err := m.connect(m.ctx); err != nil {
					m.disconnect(err)
				}
			}
			continue
		}
		select {
		case <-m.ctx.Done():
			return
		case <-c.Ended():
			m.disconnect(c.Err())
		case <-m.near:
			m.raise()
		case <-tick.C:
			m.report(c)
		}
	}
}

// report tells the broker how much is created, if that has changed.
func (m *Member) report(c serve.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, created, _ := m.lease.State(); created != m.said {
		m.said = created
		_ = c.Send(wire.TypeGave, wire.Gave{Created: created}.Append(nil)) // an error ends the connection
	}
}

// Stats reads the state.
func (m *Member) Stats() Stats {
	if m == nil || m.lease == nil {
		return Stats{}
	}
	lease, created, _ := m.lease.State()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{Counts: m.counts, Lease: lease, Created: created, Least: m.terms.Least, Most: m.terms.Most, Err: m.err}
	if m.joined {
		s.Err = nil
	}
	return s
}

// Close ends the membership, and gives the lease back. Afterwards nothing bounds what the process creates but
// vmm.Device.SetLimit. While memory that counts is there, which the broker would promise to others, it returns
// vmm.ErrBusy, and has given unused memory back. In a function of OnPressure it returns vmm.ErrBusy, too. If no broker of
// the budget replies for two seconds, the part is free when the process ends. Twice is fine.
func (m *Member) Close() error {
	if m == nil || m.lease == nil || m.ctx.Err() != nil {
		return nil
	}
	m.lease.DropCached(0)
	m.tell()
	if _, created, _ := m.lease.State(); created > 0 {
		return fmt.Errorf("leave budget: %w: %d bytes of the device are created", vmm.ErrBusy, created)
	}
	return m.end()
}

// end is Close, whatever memory is there.
func (m *Member) end() error {
	if err := m.lease.End(); err != nil {
		return fmt.Errorf("leave budget: %w", err)
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.stop()
	m.done.Wait()
	m.leave(fmt.Errorf("%w: member", vmm.ErrClosed))
	return nil
}

// leaveTime is how long leave tries to reach a broker.
const leaveTime = 2 * time.Second

// leave has the broker forget the member, and ends the connection. If the connection has ended, leave makes another one:
// the broker, or its successor, would know the member as long as the process lives.
func (m *Member) leave(why error) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	for !m.hasLeft(ctx) && m.isReady() && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(redialTime):
		}
	}
	m.disconnect(why)
}

// hasLeft sends LEAVE, and reports whether the broker has replied. A LEAVE before the JOIN of a new connection would have
// no effect, so hasLeft first waits for the reply to JOIN.
func (m *Member) hasLeft(ctx context.Context) bool {
	c := m.connected()
	if c == nil && (!m.isReady() || m.connect(ctx) != nil) {
		return false
	}
	if c = m.connected(); c == nil {
		return false
	}
	times := c.Times()
	if m.isReady() && (m.awaitJoined(ctx) != nil || !m.isJoinedOver(c, times)) {
		return false
	}
	// An end of the connection before the reply could outrun LEAVE.
	err := c.Call(ctx, wire.TypeLeave, nil, wire.TypeDone, func(wire.Frame) error { return nil })
	return err == nil && c.Times() == times
}

// isJoinedOver reports whether the broker has replied to the JOIN over the connection of c with this number.
func (m *Member) isJoinedOver(c serve.Client, times int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.client == c && m.joined && m.times == times+1 && c.Times() == times
}

// connected is the connection, or nil if it has ended.
func (m *Member) connected() serve.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		select {
		case <-m.client.Ended():
		default:
			return m.client
		}
	}
	return nil
}
