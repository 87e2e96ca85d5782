package collective

import (
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Rebalance moves the contents of v, a vector of which each member has a part, so that all
// have as many elements, or one more in the lower ranks. Their order over all members stays.
// v grows in place, or gets shorter; an element of a Range is a byte. It needs as much memory
// again as v will have, and waits for the stream. After an error v is as before. What is said
// at AllGather about members that fail or disagree holds.
func (g *Group) Rebalance(ctx context.Context, st *vmm.Stream, v Memory) error {
	const name = "rebalance"
	if g == nil || g.dev == nil {
		return g.op(name, errNoGroup)
	}
	if err := g.begin(ctx); err != nil {
		return g.op(name, err)
	}
	defer g.end()
	m := &move{name: name, offsets: make([]uint64, g.size), counts: make([]uint64, g.size)}
	defer m.release()
	m.to(v)
	m.from(v)
	if m.checkWhole(); m.err == nil {
		m.err = m.usable(st, g.dev)
	}
	return g.op(name, g.rebalance(ctx, st, m, unitOf(v)))
}

// unitOf is the bytes from one element of v to the next.
func unitOf(v Memory) uint64 {
	var arg vmm.MemoryArg
	if v != nil {
		v.MemoryArg(&arg)
	}
	return max(arg.Stride, 1)
}

func (g *Group) rebalance(ctx context.Context, st *vmm.Stream, m *move, unit uint64) (err error) {
	// The first two counts are not yet how much goes to whom.
	m.counts = []uint64{m.src.Size / unit, unit}
	told, err := g.tellCounts(ctx, m)
	if err != nil {
		return err
	}
	if err := g.agree(m, told); err != nil {
		return err
	}
	var total uint64
	have := make([]uint64, g.size) // elements
	for i, w := range told {
		have[i] = w[saysCounts]
		total += have[i]
		if w[saysCounts+1] != unit {
			return fmt.Errorf("%w: elements of %d bytes at rank %d, of %d at rank %d", ErrMismatch, unit, g.rank, w[saysCounts+1], i)
		}
	}
	sends, received := shares(have, g.rank)
	m.counts = make([]uint64, g.size)
	at, mine := uint64(0), uint64(0)
	for i := range sends {
		m.counts[i], m.offsets[i] = sends[i]*unit, at
		at += m.counts[i]
		received[i] *= unit
		mine += received[i]
	}
	if isEven(have) {
		return nil // all members see the same
	}
	next, err := g.makeRoom(ctx, st, m, mine)
	if err != nil {
		return errors.Join(err, next.Close())
	}
	err = g.moveInto(ctx, st, m, next, received)
	return errors.Join(err, next.Close())
}

// isEven reports whether all have what Rebalance would give them.
func isEven(have []uint64) bool {
	total := uint64(0)
	for _, n := range have {
		total += n
	}
	for i, n := range have {
		if n != share(total, i, len(have)) {
			return false
		}
	}
	return true
}

// share is how many of total elements the member i of n gets.
func share(total uint64, i, n int) uint64 {
	s := total / uint64(n)
	if uint64(i) < total%uint64(n) {
		s++
	}
	return s
}

// shares is how many elements the member of that rank sends to each, and gets from each, if
// the members have so many.
func shares(have []uint64, rank int) (sends, received []uint64) {
	n := len(have)
	total := uint64(0)
	for _, h := range have {
		total += h
	}
	sends, received = make([]uint64, n), make([]uint64, n)
	oldAt := uint64(0)
	for i, h := range have {
		newAt := uint64(0)
		for j := range n {
			s := share(total, j, n)
			if common := between(max(oldAt, newAt), min(oldAt+h, newAt+s)); common > 0 {
				if i == rank {
					sends[j] = common
				}
				if j == rank {
					received[i] = common
				}
			}
			newAt += s
		}
		oldAt += h
	}
	return sends, received
}

// between is the distance from a to b, 0 if b is not after a.
func between(a, b uint64) uint64 { return b - min(a, b) }

// makeRoom makes memory for what this member gets, and has v grow to as much. All members
// return an error if one of them has no memory.
func (g *Group) makeRoom(ctx context.Context, st *vmm.Stream, m *move, bytes uint64) (next *vmm.Range, err error) {
	if bytes > 0 {
		if next, err = g.dev.NewRange(vmm.RangeOptions{Max: bytes}); err == nil {
			err = next.UsedBy(st) // its Close waits for no other stream
		}
		if err == nil {
			err = next.Grow(bytes)
		}
		if now := m.dst.Len(); err == nil && bytes > now {
			err = m.grow(st, g.dev, bytes-now)
		}
	}
	return next, g.tellResult(ctx, err)
}

// moveInto moves this member's share to next, and when it is there to v.
func (g *Group) moveInto(ctx context.Context, st *vmm.Stream, m *move, next *vmm.Range, received []uint64) error {
	if err := g.queueMove(ctx, st, m, next.Ptr(), received); err != nil {
		return err
	}
	if err := g.sync(ctx, st); err != nil {
		return err
	}
	n := uint64(0)
	for _, x := range received {
		n += x
	}
	if n > 0 {
		if err := st.Copy(m.dst.Ptr(), next.Ptr(), n); err != nil {
			return err
		}
	}
	m.release()
	return m.dst.SetLen(n)
}
