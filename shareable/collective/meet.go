package collective

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// meeting is where the members of a group meet: at rank 0, to which each connects. When all have
// come, rank 0 sends them the group's identity and the addresses of all. The connections stay.
type meeting struct {
	address string // host:port of rank 0
	size    int
	job     uint64 // members of another job are sent away
	secret  []byte

	open     net.Listener  // rank 0's, at address; nil: rank 0 listens there
	trusting bool          // for tests: takes any MAC
	timeout  time.Duration // for tests: instead of meetTimeout
	network  *network      // for tests: instead of TCP
}

// network is where members listen, and how they connect.
type network struct {
	listen func(ctx context.Context, address string) (net.Listener, error)
	dial   dialer
}

// dialer is how the members connect.
func (m meeting) dialer() dialer {
	if m.network != nil {
		return m.network.dial
	}
	return dial
}

const (
	meetTimeout = 10 * time.Second // for one hello, and for the reply to one
	meetRetry   = 50 * time.Millisecond
	pongTimeout = 2 * time.Second // of a member in whose place another one comes
	maxUnknown  = 256             // connections that have not said a good hello
	maxListed   = 8               // ranks or refusals in an error's text
)

// keepAlive has the end of another host seen after about a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4}

// join returns once all members have come: the connections with them, and the identity that
// newID has made for rank 0. It tries until ctx ends. A connection of no member of this meeting is
// refused, and does not end the meeting. The caller must leave the circle.
func (m meeting) join(ctx context.Context, rank int, newID func() (ID, error)) (*circle, ID, error) {
	if m.size == 1 {
		if m.open != nil {
			_ = m.open.Close()
		}
		id, err := newID()
		if err != nil {
			return nil, id, err
		}
		return newCircle(m, 0, nil, nil, nil), id, nil
	}
	if rank == 0 {
		return m.lead(ctx, newID)
	}
	return m.follow(ctx, rank)
}

// lead is join for rank 0. It listens at the address's port until all have come.
func (m meeting) lead(ctx context.Context, newID func() (ID, error)) (c *circle, id ID, err error) {
	if id, err = newID(); err != nil {
		return nil, id, err
	}
	host, tcpPort, err := net.SplitHostPort(m.address)
	if err != nil {
		return nil, id, err
	}
	var a *acceptor
	if m.open != nil {
		a = m.acceptFrom(m.open, 0)
	} else if a, err = m.listen(ctx, tcpPort, 0); err != nil {
		return nil, id, err
	}
	defer a.close()
	own, err := m.listen(ctx, "0", 0) // later, so that it does not get the meeting's number
	if err != nil {
		return nil, id, err
	}
	defer func() {
		if err != nil {
			own.close()
		}
	}()
	a.begin(m.job, 0)
	for {
		missing, changed := a.missing()
		if len(missing) == 0 && a.areThere(ctx) {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, id, fmt.Errorf("%d of %d members are missing: ranks %s%s: %w", len(missing), m.size, list(missing), a.refusals(), ctx.Err())
		}
	}
	w := welcome{ID: id[:], Job: newNumber(), Generation: newNumber(), Addresses: make([]string, m.size)}
	w.Addresses[0] = net.JoinHostPort(host, own.tcpPort())
	links := a.take(nil)
	for rank, l := range links {
		w.Addresses[rank] = l.address
		// A member that dialed this host by its loopback is on this host.
		if h, p, err := net.SplitHostPort(l.address); err == nil && net.ParseIP(h).IsLoopback() {
			w.Addresses[rank] = net.JoinHostPort(host, p)
		}
	}
	own.begin(w.Job, w.Generation)
	for rank, l := range links {
		if err := l.write(frame{Type: frameWelcome, Welcome: &w}); err != nil {
			for _, l := range links {
				l.close()
			}
			return nil, id, fmt.Errorf("%w: rank %d: %w", ErrPeerGone, rank, err)
		}
	}
	return newCircle(m, 0, own, w.Addresses, links), id, nil
}

// follow is join for the others: rank 0 may start later, and what listens at its address until
// then may be another program.
func (m meeting) follow(ctx context.Context, rank int) (c *circle, id ID, err error) {
	own, err := m.listen(ctx, "0", rank)
	if err != nil {
		return nil, id, err
	}
	defer func() {
		if err != nil {
			own.close()
		}
	}()
	p, _ := strconv.Atoi(own.tcpPort()) // made by net
	h := hello{Job: m.job, Rank: uint32(rank), Size: uint32(m.size), TCPPort: uint32(p)}
	var last error
	for {
		l, err := m.call(ctx, m.dialer(), m.address, h, cmp.Or(m.timeout, meetTimeout))
		var w *welcome
		if err == nil {
			w, err = l.await(ctx, m.size)
		}
		if err == nil {
			own.begin(w.Job, w.Generation)
			return newCircle(m, rank, own, w.Addresses, map[int]*link{0: l}), ID(w.ID), nil
		}
		var r refusal
		if errors.As(err, &r) && r.code != codeElsewhere || errors.Is(err, vmm.ErrPermission) || errors.Is(err, vmm.ErrInvalid) {
			return nil, id, err
		}
		if ctx.Err() != nil { // of which err may come
			return nil, id, fmt.Errorf("rank 0 at %s: %w: %w", m.address, ctx.Err(), cmp.Or(last, err))
		}
		last = err
		pause(ctx, meetRetry)
	}
}

// await waits for the welcome.
func (l *link) await(ctx context.Context, size int) (*welcome, error) {
	select {
	case f, ok := <-l.in:
		switch {
		case !ok:
			return nil, errNoReply
		case f.Type == frameRefused:
			return nil, refusal{f.Code, f.Rank, f.Text}
		case f.Type == frameWelcome && f.Welcome.fits(size):
			return f.Welcome, nil
		}
		l.close()
		return nil, errStranger
	case <-ctx.Done():
		l.close()
		return nil, ctx.Err()
	}
}

var errNoReply = errors.New("no reply: the connection was closed")

func (w *welcome) fits(size int) bool {
	return w != nil && len(w.ID) == len(ID{}) && len(w.Addresses) == size
}

// dialer connects to an address.
type dialer func(ctx context.Context, address string) (net.Conn, error)

func dial(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	return d.DialContext(ctx, "tcp", address)
}

// call connects to a member and says hello. It returns once the member has admitted this one. A
// goroutine then reads from the link until that ends.
func (m meeting) call(ctx context.Context, dial dialer, address string, h hello, limit time.Duration) (*link, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := dial(limited, address)
	if err != nil {
		return nil, err
	}
	end, _ := limited.Deadline()
	err = conn.SetDeadline(end)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var l *link
	if err == nil {
		l, err = m.introduce(conn, h)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	go l.run()
	return l, nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// acceptor accepts the connections of the other members of a generation. Those that have said a
// good hello are there until take.
type acceptor struct {
	meet     meeting
	listener net.Listener

	mu         sync.Mutex
	rank, size int
	job        uint64
	ready      bool // false: what comes is to try again
	following  bool // so no one can follow this member
	closed     bool
	generation uint64
	past       []uint64              // generations before
	conns      map[net.Conn]struct{} // that close closes
	unknown    []net.Conn            // the oldest first
	members    map[int]*link         // by rank
	changed    chan struct{}         // closed at the next change of members
	refused    []string              // the last ones
}

// listen starts to accept connections on all interfaces. The caller must close the acceptor.
func (m meeting) listen(ctx context.Context, tcpPort string, rank int) (*acceptor, error) {
	address := net.JoinHostPort("", tcpPort)
	listen := func(ctx context.Context, address string) (net.Listener, error) {
		lc := net.ListenConfig{KeepAliveConfig: keepAlive}
		return lc.Listen(ctx, "tcp", address)
	}
	if m.network != nil {
		listen = m.network.listen
	}
	l, err := listen(ctx, address)
	if err != nil {
		return nil, err
	}
	return m.acceptFrom(l, rank), nil
}

func (m meeting) acceptFrom(l net.Listener, rank int) *acceptor {
	a := &acceptor{meet: m, listener: l, rank: rank, size: m.size, conns: map[net.Conn]struct{}{}, members: map[int]*link{}, changed: make(chan struct{})}
	go a.accept()
	return a
}

// begin admits members with these numbers from now on.
func (a *acceptor) begin(job, generation uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.job, a.generation, a.ready = job, generation, true
}

func (a *acceptor) tcpPort() string {
	_, p, _ := net.SplitHostPort(a.listener.Addr().String()) // made by net
	return p
}

func (a *acceptor) accept() {
	for {
		conn, err := a.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			pause(context.Background(), meetRetry) // accepting fails for a while, for lack of descriptors, say
			continue
		}
		a.mu.Lock()
		if a.closed {
			_ = conn.Close()
		} else {
			a.conns[conn] = struct{}{}
			a.unknown = append(a.unknown, conn)
			if len(a.unknown) > maxUnknown {
				_ = a.unknown[0].Close()
				a.unknown = a.unknown[1:]
			}
			go a.serve(conn, a.size)
		}
		a.mu.Unlock()
	}
}

// serve has a connection from its greeting to its end.
func (a *acceptor) serve(conn net.Conn, size int) {
	defer func() {
		_ = conn.Close()
		a.mu.Lock()
		delete(a.conns, conn)
		a.changedLocked()
		a.mu.Unlock()
	}()
	h, l, err := a.meet.greet(conn, size)
	a.mu.Lock()
	a.unknown = slices.DeleteFunc(a.unknown, func(c net.Conn) bool { return c == conn })
	a.mu.Unlock()
	if l == nil {
		if len(a.meet.secret) == 0 && !isLocal(conn) { // a member hangs up as soon as it sees that
			a.note(fmt.Sprintf("a connection from %v: %v", conn.RemoteAddr(), errNoSecret))
		}
		return
	}
	var c code
	switch {
	case errors.Is(err, errMAC):
		c = codeSecret
	case errors.Is(err, errNoSecret):
		c = codeNeedsSecret
	case err != nil:
		return
	default:
		c = a.admit(h, l)
	}
	if c != codeNone {
		r := refusal{code: c, rank: int(h.Rank)}
		a.note(fmt.Sprintf("rank %d at %v: %v", h.Rank, conn.RemoteAddr(), r)) // before the member knows
		l.refuse(r)
	} else if h.Probe == 0 {
		l.run()
	}
}

// note keeps who was refused, for the error of those who wait.
func (a *acceptor) note(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = append(a.refused, text)
	a.refused = a.refused[max(0, len(a.refused)-maxListed):]
}

// admit makes the connection that of a member and tells it so, or returns why not. Of two members
// of one rank the second is refused, unless the first does not reply to a ping: its host may have
// vanished.
func (a *acceptor) admit(h hello, l *link) code {
	for {
		a.mu.Lock()
		c := a.checkLocked(h)
		old := a.members[int(h.Rank)]
		if c == codeNone && (h.Probe != 0 || old == nil || old.hasEnded()) {
			if l.write(frame{Type: frameAdmitted}) == nil && h.Probe == 0 {
				host, _, _ := net.SplitHostPort(l.conn.RemoteAddr().String()) // made by net
				l.address = net.JoinHostPort(host, strconv.Itoa(int(h.TCPPort)))
				a.members[int(h.Rank)] = l
				a.changedLocked()
			}
			a.mu.Unlock()
			return codeNone
		}
		a.mu.Unlock()
		if c != codeNone {
			return c
		}
		if old.isThere(context.Background(), pongTimeout) {
			return codeTwice
		}
		old.close()
		<-old.ended
	}
}

func (a *acceptor) checkLocked(h hello) code {
	switch {
	case !a.ready || a.closed:
		return codeElsewhere
	case h.Job != a.job:
		return codeOtherJob
	case slices.Contains(a.past, h.Generation):
		return codeLeftOut
	case h.Generation != a.generation: // a later one, of which this member has not heard yet
		return codeElsewhere
	case h.Size != uint32(a.size):
		return codeOtherSize
	case h.Rank >= h.Size || int(h.Rank) == a.rank:
		return codeRank
	case h.Probe == 0 && a.following:
		return codeElsewhere
	}
	return codeNone
}

func (a *acceptor) changedLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// missing returns the other ranks that are not there, and what is closed when that has changed.
func (a *acceptor) missing() ([]int, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var missing []int
	for rank := range a.size {
		if l := a.members[rank]; rank != a.rank && (l == nil || l.hasEnded()) {
			missing = append(missing, rank)
		}
	}
	return missing, a.changed
}

// refusals is the text for an error that says who was refused.
func (a *acceptor) refusals() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.refused) == 0 {
		return ""
	}
	return " (refused: " + strings.Join(a.refused, "; ") + ")"
}

// list is the text of a few ranks.
func list(ranks []int) string {
	text := fmt.Sprint(ranks[:min(len(ranks), maxListed)])
	if len(ranks) > maxListed {
		text += " and others"
	}
	return text
}

// take returns the members that are there, which close then leaves open, but for those that keep
// does not name. keep may be nil, for all.
func (a *acceptor) take(keep []int) map[int]*link {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := map[int]*link{}
	for rank, l := range a.members {
		if keep != nil && !slices.Contains(keep, rank) {
			l.close()
			continue
		}
		delete(a.conns, l.conn)
		taken[rank] = l
	}
	a.members = map[int]*link{}
	return taken
}

// there returns the members that are there.
func (a *acceptor) there() map[int]*link {
	a.mu.Lock()
	defer a.mu.Unlock()
	there := map[int]*link{}
	for rank, l := range a.members {
		if !l.hasEnded() {
			there[rank] = l
		}
	}
	return there
}

// areThere reports whether all members have come and reply to a ping. It closes the connections of
// those that do not reply.
func (a *acceptor) areThere(ctx context.Context) bool {
	var tasks sync.WaitGroup
	var living atomic.Int32
	for _, l := range a.there() {
		tasks.Go(func() {
			if l.isThere(ctx, pongTimeout) {
				living.Add(1)
			} else if ctx.Err() == nil {
				l.close()
				<-l.ended
			}
		})
	}
	tasks.Wait()
	return int(living.Load()) == a.meet.size-1
}

// renew admits the members of another generation from now on.
func (a *acceptor) renew(generation uint64, rank, size int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.members {
		l.close()
	}
	a.members = map[int]*link{}
	a.past = append(a.past, a.generation)
	a.generation, a.rank, a.size, a.following = generation, rank, size, false
	a.changedLocked()
}

// dismiss refuses those that are there, with r, and admits others from now on.
func (a *acceptor) dismiss(r refusal) { a.refuseAll(r, false) }

// follow is dismiss for a member that follows another one: it admits no one.
func (a *acceptor) follow(r refusal) { a.refuseAll(r, true) }

func (a *acceptor) refuseAll(r refusal, following bool) {
	a.mu.Lock()
	a.following = following
	members := a.members
	a.members = map[int]*link{}
	a.mu.Unlock()
	for _, l := range members {
		l.refuse(r)
	}
}

// close ends the listener and all connections that were not taken.
func (a *acceptor) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	_ = a.listener.Close()
	for conn := range a.conns {
		_ = conn.Close()
	}
}
