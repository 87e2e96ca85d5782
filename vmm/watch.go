package vmm

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// Watch is two functions that are called when chunks are mapped and unmapped, for memory that
// is registered with another library: RDMA, NCCL. A registration keeps the pages of a chunk
// that is unmapped, and the library goes on using them, until the registration ends. One of the
// two may be nil.
//
// The calls for one Reservation come one at a time, from any goroutine. Both functions run with locks
// held: the one under which the reservation's memory is mapped and unmapped, and those of the call that
// does it, as Append, Grow, Clip, Sleep or Close. Other calls for the same range wait meanwhile. If
// memory had run out, or if the device's goroutine unmaps, other ranges of the device wait, too. So both
// functions must be quick, and must not
//
//   - call methods of the same Range or Reservation, of the pool, Vector or View that it is in, or
//     the function that stops the Watch: it would wait for itself
//   - call functions of this package that map, unmap, grant, close or wait, on any device
//   - wait for a lock that the program holds while it calls such a function
//   - panic
//
// The methods of the Segment may be called, and Export and Close of its Chunk.
type Watch struct {
	// Mapped is called for a chunk that is mapped, and accessible to all that have a grant:
	// before Segments lists it, and before the call that has mapped it returns.
	Mapped func(Segment)

	// Unmapping is called for a chunk that is about to be unmapped, after the work that the unmap waits
	// for. Unmapping must end a network card's transfers, because the unmap does not wait for them. If
	// the driver then refuses to unmap, Mapped is called again.
	Unmapping func(Segment)
}

// Watch calls w.Mapped for each chunk that is mapped now, in the order of the addresses, and
// returns. From then on it calls w.Mapped for each chunk that is mapped, by growth, Map, Wake,
// and a Sleep that is undone, and w.Unmapping for each that is unmapped, by whatever call, by
// the device's goroutine, and when the device is lost. The calls for one chunk alternate, and
// Mapped comes first. For memory that retires, w.Unmapping is called when it is unmapped; if
// growth takes it back before, neither is. Neither is called for a chunk whose mapping is undone
// in the call that mapped it.
//
// stop ends the Watch: it calls w.Unmapping for each chunk that is still mapped, so that nothing
// is left registered; the chunks stay mapped. It does not wait for work that uses them. Calling
// it again does nothing, nor does calling it after a Close, which has called w.Unmapping for
// everything.
//
// Several watches may run at once. Watch returns ErrInvalid without functions, ErrAsleep for a sleeping
// range, and ErrClosed for a closed one. A Watch continues across Sleep and Wake.
func (r *Reservation) Watch(w Watch) (stop func(), err error) {
	defer func() { err = r.wrap("watch", 0, 0, err) }()
	if r == nil || r.dev == nil || w.Mapped == nil && w.Unmapping == nil {
		return nil, fmt.Errorf("%w: no reservation, or no function", ErrInvalid)
	}
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	w.mapped(r.watchedLocked(0, r.table.Len()))
	r.watches = append(r.watches, &w)
	return sync.OnceFunc(func() {
		r.mappingMu.Lock()
		defer r.mappingMu.Unlock()
		r.watches = slices.DeleteFunc(r.watches, func(o *Watch) bool { return o == &w })
		w.unmapping(r.watchedLocked(0, r.table.Len()))
	}), nil
}

// Watch is Reservation.Watch.
func (g *Range) Watch(w Watch) (stop func(), err error) { return g.res().Watch(w) }

func (w *Watch) mapped(all []Segment) {
	for i := 0; w.Mapped != nil && i < len(all); i++ {
		w.Mapped(all[i])
	}
}

func (w *Watch) unmapping(all []Segment) {
	for i := 0; w.Unmapping != nil && i < len(all); i++ {
		w.Unmapping(all[i])
	}
}

// watchedLocked returns the chunks in the slots [i, j) for which Mapped was called: all but those
// that an undo has left without access. It needs r.mappingMu.
func (r *Reservation) watchedLocked(i, j int) (all []Segment) {
	invariants.Held(&r.mappingMu)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.table.Between(i, j) {
		if s.State != slots.Mapped {
			all = append(all, r.segment(s.Off, s.Mem))
		}
	}
	return all
}

// segment describes the memory m at off.
func (r *Reservation) segment(off uint64, m *memory) Segment {
	return Segment{r.ptr + Ptr(off), m.Size, m.Prop.Location, m, r.dev}
}

// watchMappedLocked calls Mapped for ms, which are mapped from off on, with access. The caller
// inserts accessible slots for them next. It needs r.mappingMu.
func (r *Reservation) watchMappedLocked(off uint64, ms []*memory) {
	invariants.Held(&r.mappingMu)
	if len(r.watches) == 0 {
		return
	}
	var all []Segment
	for _, m := range ms {
		all = append(all, r.segment(off, m))
		off += m.Size
	}
	for _, w := range r.watches {
		w.mapped(all)
	}
}

// unmapSlotsLocked calls Unmapping for the slots [i, j), which lie side by side, and unmaps them
// on the driver. The caller takes the slots out. It needs r.mappingMu.
func (r *Reservation) unmapSlotsLocked(i, j int) error {
	invariants.Held(&r.mappingMu)
	var all []Segment
	if len(r.watches) > 0 {
		all = r.watchedLocked(i, j)
	}
	unmapping := func() {
		for _, w := range r.watches {
			w.unmapping(all)
		}
	}
	hooks := &r.dev.state.parent.hooks
	if !hooks.noUnmapping && !hooks.lateUnmapping {
		unmapping()
	}
	off := r.table.At(i).Off
	size := r.table.At(j-1).End() - off
	err := r.dev.drv.Unmap(r.ptr+Ptr(off), size)
	if hooks.lateUnmapping {
		unmapping()
	}
	if err != nil {
		for _, w := range r.watches {
			w.mapped(all)
		}
		return err
	}
	r.note(history.Unmap, off, size)
	return nil
}
