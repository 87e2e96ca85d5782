package vmm

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// state is where a mapped byte stands; Reserved is the absence of a slot.
type state uint8

const (
	mapped     state = iota // no access: only where an undo failed
	accessible              // every grant holds
	retiring                // given up; its wait is not over
	unmapping               // the driver has been asked to unmap it
)

func (s state) String() string {
	return [...]string{"mapped", "accessible", "retiring", "unmapping"}[s]
}

// slot is one whole mapping in a reservation. It holds its memory.
type slot struct {
	off         uint64
	mem         *memory
	state       state
	retireSeq   uint64 // which retirement, while retiring
	quarantined error  // an undo failed here: what the driver has may differ from the books
}

func (s *slot) size() uint64 { return s.mem.size }
func (s *slot) end() uint64  { return s.off + s.mem.size }

// The slots of a reservation are sorted by offset and never overlap. All of
// what follows needs r.mu.

// slotAt is the index of the first slot that ends after off.
func (r *Reservation) slotAtLocked(off uint64) int {
	i, _ := slices.BinarySearchFunc(r.slots, off, func(s slot, off uint64) int {
		if s.end() <= off {
			return -1
		}
		return 1
	})
	return i
}

// whole finds the slots that fill [off, off+size) without a hole or a part.
func (r *Reservation) wholeSlotsLocked(off, size uint64) (i, j int, err error) {
	end := off + size
	if size == 0 || end < off || end > r.size {
		return 0, 0, fmt.Errorf("%w: [%#x, %#x) is not within the %s reserved", ErrBounds, off, end, sizeText(r.size))
	}
	i = r.slotAtLocked(off)
	at := off
	for j = i; j < len(r.slots) && at < end; j++ {
		s := &r.slots[j]
		if s.off != at || s.end() > end {
			break
		}
		at = s.end()
	}
	if at != end {
		return 0, 0, fmt.Errorf("%w: [%#x, %#x) is not made of whole chunks", ErrInvalid, off, end)
	}
	return i, j, nil
}

// readable is nil if all of [off, off+size) can be copied from.
func (r *Reservation) checkMappedLocked(off, size uint64) error {
	end := off + size
	if end < off || end > r.size {
		return fmt.Errorf("%w: [%#x, %#x) is not within the %s reserved", ErrBounds, off, end, sizeText(r.size))
	}
	for i := r.slotAtLocked(off); off < end; i++ {
		if i == len(r.slots) || r.slots[i].off > off || r.slots[i].state != accessible {
			return fmt.Errorf("%w: %v is not mapped, or given up", ErrBounds, r.ptr+Ptr(off))
		}
		off = r.slots[i].end()
	}
	return nil
}

// runs calls f for each stretch of slots that lie side by side; f gets their
// indices [i, j), offset and size, and stops the walk with an error.
func (r *Reservation) eachRun(f func(i, j int, off, size uint64) error) error {
	for i, j := 0, 0; i < len(r.slots); i = j {
		for j = i + 1; j < len(r.slots) && r.slots[j].off == r.slots[j-1].end(); j++ {
		}
		off := r.slots[i].off
		if err := f(i, j, off, r.slots[j-1].end()-off); err != nil {
			return err
		}
	}
	return nil
}

// prefix is how many bytes are accessible from the front without a hole.
func (r *Reservation) accessiblePrefixLocked() uint64 {
	var end uint64
	for i := range r.slots {
		if s := &r.slots[i]; s.off != end || s.state != accessible {
			break
		}
		end = r.slots[i].end()
	}
	return end
}

// stuckBelow is what growth past a quarantined slot answers.
func (r *Reservation) quarantinedBelow(off uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stats.Quarantined == 0 {
		return nil
	}
	for i := range r.slots {
		if s := &r.slots[i]; s.off <= off && s.quarantined != nil {
			return fmt.Errorf("quarantined: %w", s.quarantined)
		}
	}
	return nil
}

// check holds the slots to what the rest of this file relies on.
func (r *Reservation) checkInvariantsLocked() {
	if !invariants.Enabled {
		return
	}
	var end uint64
	for i := range r.slots {
		s := &r.slots[i]
		if s.off < end || s.end() > r.size || s.off%r.gran != 0 || s.mem.refs.Load() < 1 {
			//nolint:forbidigo // only in builds of our own tests
			panic(fmt.Sprintf("vmm: slot %d of %v at %#x, after %#x", i, r.ptr, s.off, end))
		}
		end = s.end()
	}
}
