// Package slots is the table of what is mapped in a range of addresses: slots,
// sorted by offset, that never overlap. It knows no lock and calls no driver.
package slots

import (
	"fmt"
	"iter"
	"sort"
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

// Table is the slots of one range of addresses, by index in the order of their offsets. Its
// zero value is empty. Callers may change a slot, but for its offset and size, until the next
// Insert or Delete, which may move it.
//
// The free part of the array lies where the last change was, not at its end: a change costs
// what lies between the two, and many changes in the order of addresses cost one pass.
type Table[M, R any] struct {
	array []Slot[M, R]
	gap   int // the slots before it are array[:gap]
	after int // and the others array[after:]
}

// New returns an empty table with room for n slots.
func New[M, R any](n int) Table[M, R] {
	return Table[M, R]{array: make([]Slot[M, R], n), after: n}
}

// Len is how many slots there are.
func (t *Table[M, R]) Len() int { return len(t.array) - (t.after - t.gap) }

// At is the slot with index i.
func (t *Table[M, R]) At(i int) *Slot[M, R] {
	if i >= t.gap {
		i += t.after - t.gap
	}
	return &t.array[i]
}

// Insert makes n zero slots from index i on, which the caller fills in.
func (t *Table[M, R]) Insert(i, n int) {
	if free := t.after - t.gap; free < n {
		more := max(n-free, len(t.array)) // at least twice as many
		bigger := make([]Slot[M, R], len(t.array)+more)
		copy(bigger, t.array[:t.gap])
		copy(bigger[t.after+more:], t.array[t.after:])
		t.array, t.after = bigger, t.after+more
	}
	t.moveGap(i)
	t.gap += n
}

// Delete takes the slots [i, j) out.
func (t *Table[M, R]) Delete(i, j int) {
	if t.gap < i || t.gap > j {
		t.moveGap(j)
	}
	end := j + t.after - t.gap // of what goes, in the array
	clear(t.array[i:t.gap])
	clear(t.array[t.after:end])
	t.gap, t.after = i, end
}

// moveGap moves the gap before the slot with index i, and leaves it zero.
func (t *Table[M, R]) moveGap(i int) {
	n := max(t.gap-i, i-t.gap)
	if i < t.gap {
		copy(t.array[t.after-n:t.after], t.array[i:t.gap])
		clear(t.array[i:min(t.gap, t.after-n)])
		t.gap, t.after = i, t.after-n
	} else {
		copy(t.array[t.gap:], t.array[t.after:t.after+n])
		clear(t.array[max(t.after, t.gap+n) : t.after+n])
		t.gap, t.after = i, t.after+n
	}
}

// Find is the index of the first slot that ends after off.
func (t *Table[M, R]) Find(off uint64) int {
	return sort.Search(t.Len(), func(i int) bool { return t.At(i).End() > off })
}

// In yields the slots that overlap [off, end), with their indices.
func (t *Table[M, R]) In(off, end uint64) iter.Seq2[int, *Slot[M, R]] {
	return func(yield func(int, *Slot[M, R]) bool) {
		for i := t.Find(off); i < t.Len() && t.At(i).Off < end && yield(i, t.At(i)); i++ {
		}
	}
}

// All yields the slots with their indices.
func (t *Table[M, R]) All() iter.Seq2[int, *Slot[M, R]] { return t.Between(0, t.Len()) }

// Between yields the slots [i, j) with their indices.
func (t *Table[M, R]) Between(i, j int) iter.Seq2[int, *Slot[M, R]] {
	return func(yield func(int, *Slot[M, R]) bool) {
		for k := i; k < j && yield(k, t.At(k)); k++ {
		}
	}
}

// Any reports whether ok is true of one slot at least.
func (t *Table[M, R]) Any(ok func(*Slot[M, R]) bool) bool {
	for _, s := range t.All() {
		if ok(s) {
			return true
		}
	}
	return false
}

// Whole is the slots [i, j) that fill [off, end) without a hole or a part of a
// slot; false if there is no such run.
func (t *Table[M, R]) Whole(off, end uint64) (i, j int, ok bool) {
	i = t.Find(off)
	at := off
	for j = i; j < t.Len() && t.At(j).Off == at && at+t.At(j).Size <= end; j++ {
		at += t.At(j).Size
	}
	return i, j, at == end && j > i
}

// Accessible is how far the slots from off on are accessible without a hole, end
// at most.
func (t *Table[M, R]) Accessible(off, end uint64) uint64 {
	for i := t.Find(off); i < t.Len() && off < end && t.At(i).Off <= off && t.At(i).State == Accessible; i++ {
		off = t.At(i).End()
	}
	return min(off, end)
}

// Runs yields the bounds [i, j) of each run of slots that lie side by side.
func (t *Table[M, R]) Runs() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for i, j := 0, 0; i < t.Len(); i = j {
			for j = i + 1; j < t.Len() && t.At(j).Off == t.At(j-1).End(); j++ {
			}
			if !yield(i, j) {
				return
			}
		}
	}
}

// Check is what is wrong with a table of a range of size bytes whose offsets are
// multiples of gran; nil if nothing is.
func (t *Table[M, R]) Check(size, gran uint64) error {
	var end uint64
	for i, s := range t.All() {
		if s.Off < end || s.End() > size || s.Off%gran != 0 {
			return fmt.Errorf("slot %d at %#x, where the one before ends at %#x, of %#x", i, s.Off, end, size)
		}
		end = s.End()
	}
	return nil
}
