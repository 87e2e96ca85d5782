package hostengine

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// MaxMembers is the most that a World has: the mean of elements of 8 bits divides by it.
const MaxMembers = 64

// Options configures a World.
type Options struct {
	// Silent: the other members do not learn of one that has ended, as with NCCL over NVLink.
	Silent bool
	// Report is called with what the members do wrong, as testing.TB.Errorf is; nil: nothing
	// is reported. It must be safe for concurrent use.
	Report func(format string, args ...any)
}

// World is what the members of one group share. Safe for concurrent use.
type World struct {
	opts Options

	mu          sync.Mutex
	changed     sync.Cond // on mu: of anything that a call waits for
	members     []*Member // nil: not yet here
	collectives map[uint64]*transfer
	messages    map[message]*transfer
	windows     []*window // in the order in which each member registers them
	err         error     // why the members cannot go on
	gone        int       // the first member that was aborted; -1: none was
}

// message is the number-th one of those from one member to another.
type message struct {
	from, to int
	number   uint64
}

// NewWorld makes a world of size members. It needs no closing.
func NewWorld(size int, o Options) (*World, error) {
	if size < 1 || size > MaxMembers {
		return nil, fmt.Errorf("%w: a group of %d members; the most is %d", vmm.ErrInvalid, size, MaxMembers)
	}
	if o.Report == nil {
		o.Report = func(string, ...any) {}
	}
	w := &World{
		opts: o, members: make([]*Member, size), gone: -1,
		collectives: map[uint64]*transfer{}, messages: map[message]*transfer{},
	}
	w.changed.L = &w.mu
	return w, nil
}

// Join makes the member of that rank, with memory of dev. The caller must Free it.
func (w *World) Join(rank int, dev *vmm.Device) (*Member, error) {
	if rank < 0 || rank >= len(w.members) {
		return nil, fmt.Errorf("%w: rank %d of %d", vmm.ErrInvalid, rank, len(w.members))
	}
	raw, err := dev.Raw()
	if err != nil {
		return nil, err
	}
	m := &Member{
		w: w, rank: rank, streams: raw, aborted: make(chan struct{}), last: make(chan struct{}),
		runs: map[uint64]*run{}, registrations: map[uint64]registration{}, sent: map[int]uint64{}, received: map[int]uint64{},
	}
	close(m.last) // the first run waits for no other
	var launches, views bool
	m.launcher, launches = raw.(driver.Launcher)
	m.view, views = dev.Driver().(driver.HostViewer)
	if !launches || !views {
		return nil, fmt.Errorf("%w: %v is no device of the host driver", vmm.ErrNotSupported, dev)
	}
	if err := m.load(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	taken := w.members[rank] != nil
	if !taken {
		w.members[rank] = m
	}
	w.mu.Unlock()
	if taken {
		return nil, errors.Join(fmt.Errorf("%w: there is a rank %d already", vmm.ErrInvalid, rank), m.launcher.UnloadModule(m.module))
	}
	return m, nil
}

// failLocked ends the group for all members. Requires mu.
func (w *World) failLocked(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("%w: "+format, slices.Concat([]any{nccl.ErrFailed}, args)...)
		w.changed.Broadcast()
	}
}

// joinLocked has member m join the transfer of a call, and returns it. Requires mu.
func (w *World) joinLocked(m *Member, s side) *transfer {
	t, at := w.findLocked(m, s.call)
	for _, other := range t.sides {
		if other == nil {
			continue
		}
		if !agree(other.call, s.call) {
			w.failLocked("rank %d calls %v, rank %d calls %v", other.rank, callText(other.call), m.rank, callText(s.call))
		} else if other.windows != s.windows && collective(s.call.Operation) && !rooted(s.call.Operation) {
			w.opts.Report("%v at rank %d is in windows %v, at rank %d in windows %v",
				s.call.Operation, other.rank, other.windows, m.rank, s.windows)
		}
		break
	}
	t.sides[at] = &s
	t.missing--
	return t
}

// findLocked returns the transfer of a call of m, and m's place in it. Requires mu.
func (w *World) findLocked(m *Member, c nccl.Call) (t *transfer, at int) {
	if collective(c.Operation) {
		t = w.collectives[m.collectives]
		if t == nil {
			t = newTransfer(len(w.members))
			w.collectives[m.collectives] = t
			number := m.collectives
			t.remove = func() { delete(w.collectives, number) }
		}
		m.collectives++
		return t, m.rank
	}
	key, count := message{from: m.rank, to: c.Peer}, m.sent
	if c.Operation == nccl.Recv {
		key, count, at = message{from: c.Peer, to: m.rank}, m.received, 1
	}
	key.number = count[c.Peer]
	count[c.Peer]++
	if t = w.messages[key]; t == nil {
		t = newTransfer(2)
		t.message, t.between = true, [2]int{key.from, key.to}
		w.messages[key] = t
		t.remove = func() { delete(w.messages, key) }
	}
	return t, at
}

// missingLocked are the members that a transfer waits for. Requires mu.
func (w *World) missingLocked(t *transfer) (ranks []int) {
	for i, s := range t.sides {
		switch {
		case s != nil:
		case t.message:
			ranks = append(ranks, t.between[i])
		default:
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// checkCycleLocked ends the group if m waits for a member that, maybe through others, waits
// for m. What a member waits for is all that its present run needs. Requires mu.
func (w *World) checkCycleLocked(m *Member) {
	seen := make([]bool, len(w.members))
	var reaches func(from *Member) bool
	reaches = func(from *Member) bool {
		for _, t := range from.waits {
			for _, rank := range w.missingLocked(t) {
				next := w.members[rank]
				if next == m {
					return true
				}
				if next != nil && !next.ended && !seen[rank] {
					if seen[rank] = true; reaches(next) {
						return true
					}
				}
			}
		}
		return false
	}
	for _, t := range m.waits {
		for _, rank := range w.missingLocked(t) {
			next := w.members[rank]
			if next == nil || next == m || next.ended || len(next.waits) == 0 || !reaches(next) {
				continue
			}
			w.failLocked("rank %d waits in %v for rank %d, which waits in %v", m.rank, t.text(m.rank), rank, next.waits[0].text(rank))
			return
		}
	}
}

// goneLocked returns an error if a member was aborted, or one that m waits for has closed.
// Requires mu.
func (w *World) goneLocked(m *Member) error {
	if w.opts.Silent {
		return nil
	}
	if w.gone >= 0 {
		return fmt.Errorf("%w: rank %d", nccl.ErrPeerGone, w.gone)
	}
	hasEnded := func(rank int) bool {
		other := w.members[rank]
		return other != nil && other.closing && len(other.runs) == 0
	}
	for _, t := range m.waits {
		for _, rank := range w.missingLocked(t) {
			if hasEnded(rank) {
				return fmt.Errorf("%w: rank %d has closed", nccl.ErrPeerGone, rank)
			}
		}
	}
	if m.window != nil && m.window.missing > 0 {
		for rank := range w.members {
			if hasEnded(rank) {
				return fmt.Errorf("%w: rank %d has closed", nccl.ErrPeerGone, rank)
			}
		}
	}
	return nil
}
