package collective

import (
	"context"
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// Rebalance moves elements between the members until all have as many, the lower ranks one more
// if need be. v is this member's part of a vector over all members, in the order of their ranks;
// the elements keep their order in it. v grows in place, or gets shorter. An element of a Range
// is a byte.
//
// While it runs it needs as much memory again as v will have. It waits for the stream, and its
// errors are those of AllGather: after one that does not end the group v is as before.
func (g *Group) Rebalance(ctx context.Context, st *vmm.Stream, v Memory) error {
	both := func(c *growCall) {
		c.appendTo(v)
		c.sendFrom(v)
	}
	return g.withGrowCall(ctx, st, "rebalance", both, func(c *growCall) error { return g.rebalance(ctx, st, c, unitOf(v)) })
}

// unitOf is the bytes from one element of v to the next.
func unitOf(v Memory) uint64 {
	var arg vmm.MemoryArg
	if v != nil {
		v.MemoryArg(&arg)
	}
	return max(arg.Stride, 1)
}

func (g *Group) rebalance(ctx context.Context, st *vmm.Stream, c *growCall, unit uint64) (err error) {
	// In this header the counts are the elements that this member has, and an element's size.
	c.counts = []uint64{c.src.Size / unit, unit}
	headers, err := g.exchangeHeaders(ctx, c)
	if err != nil {
		return err
	}
	if err := g.checkSameCall(c, headers); err != nil {
		return err
	}
	have := make([]uint64, g.size) // elements
	for i, w := range headers {
		have[i] = w[headerCounts]
		if w[headerCounts+1] != unit {
			return fmt.Errorf("%w: elements of %d bytes at rank %d, of %d at rank %d", ErrMismatch, unit, g.rank, w[headerCounts+1], i)
		}
	}
	sends, received := shares(have, g.rank)
	c.counts = make([]uint64, g.size)
	at, mine := uint64(0), uint64(0)
	for i := range sends {
		c.counts[i], c.offsets[i] = sends[i]*unit, at
		at += c.counts[i]
		received[i] *= unit
		mine += received[i]
	}
	if isEven(have) {
		return nil // all members see the same
	}
	next, err := g.growForRebalance(ctx, st, c, mine)
	if err == nil {
		err = g.replaceContents(ctx, st, c, next, received)
	}
	return errors.Join(err, next.Close())
}

// isEven reports whether all have what Rebalance would give them.
func isEven(have []uint64) bool {
	total := sum(have)
	for i, n := range have {
		if n != share(total, i, len(have)) {
			return false
		}
	}
	return true
}

// sum adds numbers up.
func sum(all []uint64) (total uint64) {
	for _, n := range all {
		total += n
	}
	return total
}

// share is how many of total elements the member of rank i of n has in the end.
func share(total uint64, i, n int) uint64 {
	s := total / uint64(n)
	if uint64(i) < total%uint64(n) {
		s++
	}
	return s
}

// shares returns how many elements the member of that rank sends to each member, and receives
// from each. have is how many each has.
func shares(have []uint64, rank int) (sends, received []uint64) {
	n := len(have)
	total := sum(have)
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

// growForRebalance makes memory for what this member receives, and grows v to hold that much. All
// members return an error if one of them has no memory.
func (g *Group) growForRebalance(ctx context.Context, st *vmm.Stream, c *growCall, bytes uint64) (next *vmm.Range, err error) {
	if bytes > 0 {
		if next, err = g.dev.NewRange(vmm.RangeOptions{Max: bytes}); err == nil {
			err = next.UsedBy(st) // its Close waits for no other stream
		}
		if err == nil {
			err = next.Grow(bytes)
		}
		if now := c.dst.Len(); err == nil && bytes > now {
			err = c.grow(st, g.dev, bytes-now)
		}
	}
	return next, g.exchangeResults(ctx, err)
}

// replaceContents receives this member's share in next, and then copies it to v.
func (g *Group) replaceContents(ctx context.Context, st *vmm.Stream, c *growCall, next *vmm.Range, received []uint64) error {
	if err := g.queueTransfers(ctx, st, c, next.Ptr(), received); err != nil {
		return err
	}
	if err := g.sync(ctx, st); err != nil {
		return err
	}
	n := sum(received)
	if n > 0 {
		if err := st.Copy(c.dst.Ptr(), next.Ptr(), n); err != nil {
			return g.fail(err)
		}
	}
	c.release()
	return g.failIf(c.dst.SetLen(n)) // the others have their new elements
}
