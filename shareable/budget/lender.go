package budget

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

var _ door.Lender = (*Member)(nil)

// stepParts: a lease rises by one of so many parts of what is created, so that growth finds room ahead.
const stepParts = 4

// leastStep is the smallest such step, in bytes.
const leastStep = 2 << 20

// errAlone is why nothing is lent while there is no broker.
var errAlone = errors.New("no broker replies")

// errHangs is why nothing is lent after one ask had no reply in time: a broker that is stopped costs that time once.
var errHangs = errors.New("the broker has not replied in time, and has said nothing since")

// refusal is why the broker has lent too little, in its words.
type refusal struct{ wire.Lent }

func (r *refusal) Error() string { return r.Text }

func (r *refusal) Unwrap() error { return vmm.ErrOutOfMemory }

// Borrow asks the broker for an operation that needs a lease of need bytes.
func (m *Member) Borrow(need uint64, urgent bool, until time.Time) (refusal error) {
	ctx, cancel := context.WithDeadline(m.ctx, until)
	defer cancel()
	select {
	case <-m.ready:
	case <-ctx.Done():
		return fmt.Errorf("the process has not joined: %w", ctx.Err())
	}
	m.mu.Lock()
	hangs := m.hangs
	m.mu.Unlock()
	if hangs {
		return errHangs
	}
	return m.ask(ctx, need, urgent)
}

// Near has the member ask for more, in its own goroutine.
func (m *Member) Near() {
	select {
	case m.near <- struct{}{}:
	default:
	}
}

// raisePause is how long the member does not ask for a step after it got none.
const raisePause = 100 * time.Millisecond

// raise asks for the next step, of what no one uses.
func (m *Member) raise() {
	lease, _, _ := m.lease.State()
	if !m.lease.IsShort() {
		return // an operation has asked meanwhile
	}
	_ = m.ask(m.ctx, lease, false)                  // an operation that needs more asks for itself
	if now, _, _ := m.lease.State(); now <= lease { // else each growth asks again
		select {
		case <-m.ctx.Done():
		case <-time.After(raisePause):
		}
	}
}

// ask asks for a lease of need bytes, and for a step more, and returns why it is less. While another broker begins, it
// waits, and then asks that one.
func (m *Member) ask(ctx context.Context, need uint64, urgent bool) error {
	if urgent {
		m.count(func(c *Counts) { c.Asked++ })
	}
	for {
		c, n, reply := m.sendAsk(ctx, need, urgent)
		if c == nil {
			return errAlone
		}
		select {
		case <-c.Ended():
			return fmt.Errorf("the connection to the broker has ended: %w", c.Err())
		case l := <-reply:
			switch l.Code {
			case 0:
				if lease, _, _ := m.lease.State(); urgent && lease < need { // a demand has crossed the grant
					continue
				}
				return nil
			case wire.CodeClosed:
				continue
			}
			m.count(func(c *Counts) { c.Refused++ })
			return &refusal{l}
		case <-ctx.Done(): // a grant that comes later counts all the same
			m.late(n, urgent)
			return fmt.Errorf("the broker has not replied: %w", ctx.Err())
		}
	}
}

// late gives up the wait for the reply to an ask, or with 0 for the reply to JOIN. A later frame ends hangs. An urgent ask
// does not set it: it may wait for other members, and the broker has replied to another ask just before.
func (m *Member) late(n uint32, urgent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, waits := m.asks[n]
	m.hangs = waits && !urgent || !m.joined && m.client != nil
	delete(m.asks, n)
}

func (m *Member) count(f func(*Counts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.counts)
}

// sendAsk sends an ask once the member has joined. Without a broker, c is nil.
func (m *Member) sendAsk(ctx context.Context, need uint64, urgent bool) (c serve.Client, n uint32, reply chan wire.Lent) {
	for {
		m.mu.Lock()
		if m.joined || m.client == nil {
			break
		}
		c, changed := m.client, m.changed
		m.mu.Unlock()
		select {
		case <-changed:
		case <-c.Ended():
			return nil, 0, nil
		case <-ctx.Done():
			return c, 0, nil
		}
	}
	defer m.mu.Unlock()
	if !m.joined {
		return nil, 0, nil
	}
	m.gaveLocked(0, "") // else the broker believes that the lease is as before, and lends nothing
	_, created, limit := m.lease.State()
	step := max(need/stepParts, leastStep)
	m.last++
	n, reply = m.last, make(chan wire.Lent, 1)
	m.asks[n] = reply
	m.said = created
	q := wire.Ask{Number: n, Urgent: urgent, Need: need, Want: max(need, min(limit, need+min(step, math.MaxUint64-need))), Created: created}
	_ = m.client.Send(wire.TypeAsk, q.Append(nil)) // an error ends the connection
	return m.client, n, reply
}

// failAsksLocked ends all asks, with the connection that they were sent over. It needs mu.
func (m *Member) failAsksLocked(why string) {
	m.hangs = false
	for n, reply := range m.asks {
		delete(m.asks, n)
		reply <- wire.Lent{Number: n, Code: wire.CodeClosed, Text: why}
	}
}

// handle handles an event of the broker, in the goroutine that reads the connection.
func (m *Member) handle(c serve.Client, f wire.Frame) error {
	m.mu.Lock()
	m.hangs = false
	m.mu.Unlock()
	switch f.Type {
	case wire.TypeLent:
		l, err := wire.DecodeLent(f.Payload)
		if err == nil {
			m.lent(c, l)
		}
		return err
	case wire.TypeDemand:
		d, err := wire.DecodeDemand(f.Payload)
		m.mu.Lock()
		defer m.mu.Unlock()
		if err == nil && !m.closed {
			m.done.Add(1)
			go m.give(c, c.Times(), d)
		}
		return err
	}
	return nil // other events are none of a member's
}

// lent takes what the broker has lent.
func (m *Member) lent(c serve.Client, l wire.Lent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != c {
		return
	}
	m.terms = l
	switch {
	case l.Number == 0 && !m.joined: // of JOIN: the lease that the broker knows of
		m.lease.Cut(l.More)
		m.told, m.joined, m.err = l.More, true, nil
		m.gaveLocked(0, "")
		m.changedLocked()
	default:
		m.told += l.More
		if l.More > 0 {
			m.lease.Raise(l.More)
		}
	}
	if reply := m.asks[l.Number]; reply != nil {
		delete(m.asks, l.Number)
		reply <- l
	}
}

// give replies to a demand, also if a function of OnPressure ends its goroutine.
func (m *Member) give(c serve.Client, times int, d wire.Demand) {
	defer m.done.Done()
	why := ""
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.counts.Demands++
		if m.client != c || c.Times() != times { // a demand of before
			d.Number = 0
		}
		m.gaveLocked(d.Number, why)
	}()
	m.lease.DropCached(d.Lease)
	if d.Soft {
		return
	}
	m.tell() // another member may need no more than that
	_, busy := m.lease.Give(d.Lease, time.Now().Add(time.Duration(d.Within)*time.Millisecond))
	if busy {
		why = "an operation of its own looked for memory all the time"
	}
}

// tell tells the broker if the lease has fallen.
func (m *Member) tell() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gaveLocked(0, "")
}

// gaveLocked tells the broker by how much the lease has fallen. Number 0 is no reply to a demand. It needs mu.
func (m *Member) gaveLocked(number uint32, why string) {
	lease, created, _ := m.lease.State()
	g := wire.Gave{Number: number, Given: m.told - min(m.told, lease), Created: created, Why: why}
	if !m.joined || number == 0 && g.Given == 0 { // once it has joined it says so
		return
	}
	m.told -= g.Given
	m.said = created
	m.counts.Given += g.Given
	_ = m.client.Send(wire.TypeGave, g.Append(nil)) // an error ends the connection
}
