// Package users lists what uses the memory of one reservation: devices, streams, and spans that are
// locked. Before the memory is unmapped these are waited for. The package takes no lock: its caller has
// one. Methods that need none say so.
package users

import (
	"iter"
	"maps"
	"slices"
	"sync/atomic"
)

// Table is the devices D and the streams S that use the memory. Its zero value has none.
type Table[D, S comparable] struct {
	Spans Spans

	copiers []D // they copy the memory without access
	streams map[S]use
	last    uint64 // the number of the last append

	// Atomic.
	devices atomic.Pointer[[]D] // all of them; replaced, never changed
	named   atomic.Bool         // Name was called
	pending atomic.Int32        // streams with appends that may not have run
	changes atomic.Uint64
}

// use is how one stream uses the memory.
type use struct {
	named       bool
	first, last uint64 // the numbers of the appends that may not have run; 0: there are none
}

// SetGranted sets the devices that may use the memory by their grants.
func (t *Table[D, S]) SetGranted(devs []D) {
	for _, d := range t.copiers {
		if !slices.Contains(devs, d) {
			devs = append(devs, d)
		}
	}
	t.devices.Store(&devs)
	t.changes.Add(1)
}

// AddCopier adds a device that copies the memory without a grant.
func (t *Table[D, S]) AddCopier(d D) {
	if !slices.Contains(t.copiers, d) {
		t.copiers = append(t.copiers, d)
		t.SetGranted(slices.Clone(t.Devices()))
	}
}

// Name adds streams to those named. From the first call on, other streams do not use the memory.
func (t *Table[D, S]) Name(streams ...S) {
	for _, s := range streams {
		u := t.streams[s]
		u.named = true
		t.set(s, u)
	}
	t.named.Store(true)
	t.changes.Add(1)
}

// MayUse reports whether the program may use the memory on the stream.
func (t *Table[D, S]) MayUse(s S) bool { return !t.named.Load() || t.streams[s].named }

// Devices are those whose work may use the memory. Callers must not change the list. It needs no lock.
func (t *Table[D, S]) Devices() []D {
	if devs := t.devices.Load(); devs != nil {
		return *devs
	}
	return nil
}

// WaitsFor is Devices, or nil after Name: then Streams are waited for. It needs no lock.
func (t *Table[D, S]) WaitsFor() []D {
	if t.named.Load() {
		return nil
	}
	return t.Devices()
}

// Streams are those named, and those with appends that may not have run.
func (t *Table[D, S]) Streams() []S { return slices.Collect(maps.Keys(t.streams)) }

// Changes rises with each change of devices or names. It needs no lock.
func (t *Table[D, S]) Changes() uint64 { return t.changes.Load() }

// Append notes an append on the stream. first is true if all earlier ones there have run.
func (t *Table[D, S]) Append(s S) (first bool) {
	t.last++
	u := t.streams[s]
	first = u.last == 0
	if first {
		u.first = t.last
	}
	u.last = t.last
	t.set(s, u)
	return first
}

// LastAppend is the number of the last append.
func (t *Table[D, S]) LastAppend() uint64 { return t.last }

// Pending reports whether appends may not have run. It needs no lock.
func (t *Table[D, S]) Pending() bool { return t.pending.Load() > 0 }

// PendingUpTo yields the streams of the appends up to number n that may not have run, each with its
// last append.
func (t *Table[D, S]) PendingUpTo(n uint64) iter.Seq2[S, uint64] {
	return func(yield func(S, uint64) bool) {
		for s, u := range t.streams {
			if u.last > 0 && u.first <= n && !yield(s, u.last) {
				return
			}
		}
	}
}

// Ran notes that the stream's appends up to number n have run. gone is true if with them its use of the
// memory has ended.
func (t *Table[D, S]) Ran(s S, n uint64) (gone bool) {
	u := t.streams[s]
	if u.last == 0 {
		return false
	}
	if u.first = max(u.first, n+1); u.first > u.last {
		u.first, u.last = 0, 0
	}
	t.set(s, u)
	return u == use{}
}

// Ended notes that the stream has ended. Unless ran, its appends stay pending.
func (t *Table[D, S]) Ended(s S, ran bool) {
	u := t.streams[s]
	u.named = false
	if ran {
		u = use{}
	}
	t.set(s, u)
}

// Clear removes and returns all streams.
func (t *Table[D, S]) Clear() []S {
	all := t.Streams()
	clear(t.streams)
	t.pending.Store(0)
	return all
}

// set sets what a stream does with the memory.
func (t *Table[D, S]) set(s S, u use) {
	if t.streams == nil {
		t.streams = map[S]use{}
	}
	if u.last > 0 {
		t.pending.Add(1) // first, so that Pending is never false meanwhile
	}
	if t.streams[s].last > 0 {
		t.pending.Add(-1)
	}
	t.streams[s] = u
	if u == (use{}) {
		delete(t.streams, s)
	}
}
