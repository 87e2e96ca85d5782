package order

import (
	"math/bits"
	"sync/atomic"
)

// afters is the last event of each stream that some work comes after. Events that are known to be
// reached are left out, soon. Immutable; nil is none.
type afters struct {
	events  *events
	unswept int // how many waits more until reached events are looked for everywhere
}

// leastWaits is after how many waits at least reached events are looked for.
const leastWaits = 16

// with is a and what an event at p comes after: a itself if that tells nothing new.
func (a *afters) with(p Point) *afters {
	var had *events
	var unswept int
	if a != nil {
		had, unswept = a.events, a.unswept
	}
	all := had
	if p.after != nil {
		all, unswept = union(all, p.after.events), max(unswept, p.after.unswept)
	}
	if all.number(p.of) < p.n {
		all = union(all, &events{id: p.of.id, of: p.of, n: p.n, count: 1})
	}
	if all == had {
		return a
	}
	if unswept--; unswept < 0 { // so seldom that a wait costs no more for it
		all = all.prune()
		unswept = leastWaits + all.len()
	}
	return &afters{all, unswept}
}

// events is a set of events, one of each stream, as a tree by the streams' ids (a Patricia tree):
// what several streams come after is there once. Immutable, but for reached; nil is none.
type events struct {
	// Of a leaf: the stream, its id, and the number of the event. bit is 0.
	// Of a branch: the bit of an id that tells whether an event is below zero or one; in id are the
	// bits above, which all ids below have in common.
	id, bit   uint64
	of        *Stream
	n         uint64
	zero, one *events

	count   int         // leaves
	reached atomic.Bool // of a branch: all events below are known to be reached
}

func (e *events) len() int {
	if e == nil {
		return 0
	}
	return e.count
}

// below reports whether events of a stream with that id are below e.
func (e *events) below(id uint64) bool { return id&^(2*e.bit-1) == e.id }

// number is the number of the stream's event, 0 if there is none.
func (e *events) number(s *Stream) uint64 {
	for e != nil && e.bit != 0 {
		if !e.below(s.id) {
			return 0
		}
		if s.id&e.bit == 0 {
			e = e.zero
		} else {
			e = e.one
		}
	}
	if e == nil || e.of != s {
		return 0
	}
	return e.n
}

// finish notes that the events are reached.
func (e *events) finish() {
	switch {
	case e == nil || e.reached.Load():
	case e.bit == 0:
		e.of.finish(e.n)
	default:
		e.zero.finish()
		e.one.finish()
		e.reached.Store(true)
	}
}

// unreached is e, or nil if all its events are known to be reached. Of a branch it does not look
// at each.
func (e *events) unreached() *events {
	if e == nil || e.bit == 0 && e.of.finished.Load() >= e.n || e.reached.Load() {
		return nil
	}
	return e
}

// prune is e without the events that are known to be reached.
func (e *events) prune() *events {
	if e = e.unreached(); e == nil || e.bit == 0 {
		return e
	}
	return e.branch(e.zero.prune(), e.one.prune())
}

// branch is a branch like e with these halves: e itself if it has them.
func (e *events) branch(zero, one *events) *events {
	switch {
	case zero == e.zero && one == e.one:
		return e
	case zero == nil:
		return one
	case one == nil:
		return zero
	}
	return &events{id: e.id, bit: e.bit, zero: zero, one: one, count: zero.count + one.count}
}

// union is the events of both, the later one of each stream. It is a itself if b tells nothing new,
// and shares what it can with both. It leaves out reached events where it comes by.
func union(a, b *events) *events {
	a, b = a.unreached(), b.unreached()
	switch {
	case b == nil || a == b:
		return a
	case a == nil:
		return b
	case a.bit == b.bit && a.id == b.id: // the same place in the tree
		// Two leaves are of one stream: the later event counts.
		if a.bit == 0 && a.n < b.n {
			return b
		}
		if a.bit == 0 {
			return a
		}
		// Two branches: their halves one by one. If a's stay, so does a, and nothing is allocated.
		zero, one := union(a.zero, b.zero), union(a.one, b.one)
		if zero == a.zero && one == a.one {
			return a
		}
		return b.branch(zero, one)
	// One is a branch that all of the other is below: only that half changes.
	case a.bit > b.bit && a.below(b.id):
		return a.add(b, func(half *events) *events { return union(half, b) })
	case b.bit > a.bit && b.below(a.id):
		return b.add(a, func(half *events) *events { return union(a, half) })
	}
	// They have no stream in common: a new branch at the highest bit in which their ids differ.
	split := uint64(1) << (bits.Len64(a.id^b.id) - 1)
	e := &events{id: a.id &^ (2*split - 1), bit: split, zero: a, one: b, count: a.count + b.count}
	if a.id&split != 0 {
		e.zero, e.one = b, a
	}
	return e
}

// add is a branch with the half changed that the other events, x, are below.
func (e *events) add(x *events, change func(half *events) *events) *events {
	if x.id&e.bit == 0 {
		return e.branch(change(e.zero), e.one)
	}
	return e.branch(e.zero, change(e.one))
}
