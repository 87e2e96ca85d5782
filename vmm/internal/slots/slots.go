// Package slots is the table of what is mapped in a range of addresses: slots,
// sorted by offset, that never overlap. It knows no lock and calls no driver.
package slots

import (
	"fmt"
	"iter"
	"slices"
)

// State is where a mapped byte stands. Reserved is the absence of a slot.
type State uint8

// States, in the order in which a byte goes through them.
const (
	Mapped     State = iota // without access: only where an undo failed
	Accessible              // every grant holds
	Retiring                // given up; the work that may use it has not ended
	Unmapping               // the driver has been asked to unmap it
)

func (s State) String() string {
	return [...]string{"mapped", "accessible", "retiring", "unmapping"}[s]
}

// Slot is one whole mapping of memory of type M. What is given up together has an R.
type Slot[M, R any] struct {
	Off, Size   uint64
	Mem         M
	State       State
	Retired     R     // what it was given up with, while Retiring or Unmapping
	Quarantined error // an undo failed here: the driver may not agree with the table
}

// End is the first offset after the slot.
func (s *Slot[M, R]) End() uint64 { return s.Off + s.Size }

// Table is the slots of one range of addresses. Its zero value is empty. Callers
// may change a slot, but for its offset and size.
type Table[M, R any] []Slot[M, R]

// Find is the index of the first slot that ends after off.
func (t Table[M, R]) Find(off uint64) int {
	i, _ := slices.BinarySearchFunc(t, off, func(s Slot[M, R], off uint64) int {
		if s.Off+s.Size <= off {
			return -1
		}
		return 1
	})
	return i
}

// In yields the slots that overlap [off, end), with their indices.
func (t Table[M, R]) In(off, end uint64) iter.Seq2[int, *Slot[M, R]] {
	return func(yield func(int, *Slot[M, R]) bool) {
		for i := t.Find(off); i < len(t) && t[i].Off < end && yield(i, &t[i]); i++ {
		}
	}
}

// Whole is the slots [i, j) that fill [off, end) without a hole or a part of a
// slot; false if there is no such run.
func (t Table[M, R]) Whole(off, end uint64) (i, j int, ok bool) {
	i = t.Find(off)
	at := off
	for j = i; j < len(t) && t[j].Off == at && at+t[j].Size <= end; j++ {
		at += t[j].Size
	}
	return i, j, at == end && j > i
}

// Accessible is how far the slots from off on are accessible without a hole, end
// at most.
func (t Table[M, R]) Accessible(off, end uint64) uint64 {
	for i := t.Find(off); i < len(t) && off < end && t[i].Off <= off && t[i].State == Accessible; i++ {
		off = t[i].End()
	}
	return min(off, end)
}

// Runs yields the bounds [i, j) of each run of slots that lie side by side.
func (t Table[M, R]) Runs() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for i, j := 0, 0; i < len(t); i = j {
			for j = i + 1; j < len(t) && t[j].Off == t[j-1].End(); j++ {
			}
			if !yield(i, j) {
				return
			}
		}
	}
}

// Check is what is wrong with a table of a range of size bytes whose offsets are
// multiples of gran; nil if nothing is.
func (t Table[M, R]) Check(size, gran uint64) error {
	var end uint64
	for i := range t {
		if s := &t[i]; s.Off < end || s.End() > size || s.Off%gran != 0 {
			return fmt.Errorf("slot %d at %#x, where the one before ends at %#x, of %#x", i, s.Off, end, size)
		}
		end = t[i].End()
	}
	return nil
}
