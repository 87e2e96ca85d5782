package vmm

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// Watch is two functions that follow which chunks are mapped, for memory that is registered
// with another library: RDMA, NCCL. Such a registration keeps the pages of a chunk that is
// unmapped, and the library goes on using them, until the registration is taken back. One of
// the two may be nil.
//
// Calls come one at a time for one Reservation, from any goroutine. Both functions run while
// the package holds the lock under which the reservation's memory is mapped and unmapped, and
// the locks of the call they run in: of Append and Grow those of Len and Cap, of Clip, Sleep
// and Close those that keep the others away; where memory had run out, or the device's
// goroutine unmaps, those behind which other ranges of the device wait. So they have to be
// quick, and must not
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
	// before Segments lists it, and before the call returns that has mapped it.
	Mapped func(Segment)

	// Unmapping is called for a chunk that is about to be unmapped: once no work uses it that
	// the unmap waits for, and before the driver is asked. What a network card does with it is
	// not waited for; Unmapping has to end that. If the driver then refuses, the chunk stays
	// mapped, and Mapped is called again.
	Unmapping func(Segment)
}

// Watch calls w.Mapped for each chunk that is mapped now, in the order of the addresses, and
// returns. From then on it calls w.Mapped for each chunk that is mapped, by growth, Map, Wake,
// and a Sleep that is undone, and w.Unmapping for each that is unmapped, by whatever call, by
// the device's goroutine, and when the device is lost. Calls for one chunk alternate, and
// Mapped comes first. Memory that retires is mapped until it is unmapped: growth that takes
// it back calls neither. A chunk whose mapping was undone before it was shown to anyone is
// not seen.
//
// stop ends the Watch: it calls w.Unmapping for what is still mapped, which stays mapped, so
// that nothing is left registered. It does not wait for work that uses the memory. Calling
// stop again does nothing. A Close that succeeds has called w.Unmapping for everything; stop
// then has nothing to do.
//
// Several watches may run at once. A Watch without functions is ErrInvalid; a range that
// sleeps returns ErrAsleep, while a Watch that runs goes on over Sleep and Wake.
func (r *Reservation) Watch(w Watch) (stop func(), err error) {
	stop, err = r.watch(&w)
	return stop, r.fail("watch", 0, 0, err)
}

// Watch is Reservation.Watch.
func (g *Range) Watch(w Watch) (stop func(), err error) { return g.res().Watch(w) }

func (r *Reservation) watch(w *Watch) (stop func(), err error) {
	if r == nil || r.dev == nil || w.Mapped == nil && w.Unmapping == nil {
		return nil, fmt.Errorf("%w: no reservation, or no function", ErrInvalid)
	}
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	if err := r.live(); err != nil {
		return nil, err
	}
	w.mapped(r.watchedLocked(0, len(r.table)))
	r.watches = append(r.watches, w)
	return sync.OnceFunc(func() {
		r.mappingMu.Lock()
		defer r.mappingMu.Unlock()
		r.watches = slices.DeleteFunc(r.watches, func(o *Watch) bool { return o == w })
		w.unmapping(r.watchedLocked(0, len(r.table)))
	}), nil
}

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

// watchedLocked is what watches have been told of the slots [i, j): all but those that an
// undo has left without access. It needs r.mappingMu.
func (r *Reservation) watchedLocked(i, j int) (all []Segment) {
	invariants.Held(&r.mappingMu)
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.table[i:j] {
		if s := &r.table[i+k]; s.State != slots.Mapped {
			all = append(all, r.segment(s.Off, s.Mem))
		}
	}
	return all
}

// segment describes the memory m at off.
func (r *Reservation) segment(off uint64, m *memory) Segment {
	return Segment{r.ptr + Ptr(off), m.size, m.prop.Location, m, r.dev}
}

// watchMappedLocked tells the watches of ms, mapped from off on with access, for which the
// caller inserts accessible slots next. It needs r.mappingMu.
func (r *Reservation) watchMappedLocked(off uint64, ms []*memory) {
	invariants.Held(&r.mappingMu)
	if len(r.watches) == 0 {
		return
	}
	var all []Segment
	for _, m := range ms {
		all = append(all, r.segment(off, m))
		off += m.size
	}
	for _, w := range r.watches {
		w.mapped(all)
	}
}

// unmapSlotsLocked unmaps the slots [i, j), which lie side by side, on the driver, and tells
// the watches before. The caller takes the slots out. It needs r.mappingMu.
func (r *Reservation) unmapSlotsLocked(i, j int) error {
	invariants.Held(&r.mappingMu)
	var all []Segment
	if len(r.watches) > 0 {
		all = r.watchedLocked(i, j)
	}
	tell := func() {
		for _, w := range r.watches {
			w.unmapping(all)
		}
	}
	hooks := &r.dev.state.parent.hooks
	if !hooks.noUnmapping && !hooks.lateUnmapping {
		tell()
	}
	off := r.table[i].Off
	err := r.dev.drv.Unmap(r.ptr+Ptr(off), r.table[j-1].End()-off)
	if hooks.lateUnmapping {
		tell()
	}
	if err != nil {
		for _, w := range r.watches {
			w.mapped(all)
		}
	}
	return err
}
