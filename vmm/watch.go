package vmm

import (
	"fmt"
	"slices"
	"sync"
)

// Generation is another number, a higher one, each time mapped bytes were lost or
// replaced, and no two reservations of the process ever have the same. Growth leaves
// it alone, so a registration (NCCL, RDMA) made at the same generation is still
// right for the bytes it covers.
func (r *Reservation) Generation() uint64 {
	if r == nil {
		return 0
	}
	return r.generation.Load()
}

// Changed is closed at the next Map or Unmap, and on a Range also when Len
// moves. After Close it is closed already.
func (r *Reservation) Changed() <-chan struct{} {
	if r == nil {
		return closedChan
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase.Load() == isClosed {
		return closedChan
	}
	c := r.changed.Load()
	if c == nil {
		made := make(chan struct{})
		c = &made
		r.changed.Store(c)
	}
	return *c
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// notify wakes those who wait on Changed. What has changed stands in the books
// already.
func (r *Reservation) notify() {
	if r.changed.Load() == nil {
		return
	}
	if c := r.changed.Swap(nil); c != nil {
		close(*c)
	}
}

// Hold makes the bytes below n stay: until release is called, unmapping any of
// them and Close answer ErrBusy. Calling release again does nothing.
func (r *Reservation) Hold(n uint64) (release func(), err error) {
	if err = r.notInRange(); err == nil {
		release, err = r.hold(n)
	}
	return release, r.fail("hold", 0, n, err)
}

func (r *Reservation) hold(n uint64) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return nil, err
	}
	if n > r.size {
		return nil, fmt.Errorf("%w: %s are reserved", ErrBounds, sizeText(r.size))
	}
	for i := 0; r.stats.Retiring > 0 && i < len(r.slots); i++ {
		if s := &r.slots[i]; s.off < n && s.state >= retiring {
			return nil, fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.off))
		}
	}
	r.holds = append(r.holds, n)
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		i := slices.Index(r.holds, n)
		r.holds = slices.Delete(r.holds, i, i+1)
	}), nil
}

// held is how many bytes from the front must stay. It needs r.mu.
func (r *Reservation) heldLocked() uint64 {
	var most uint64
	for _, n := range r.holds {
		most = max(most, n)
	}
	return most
}

// Segment is one chunk of memory where it is mapped.
type Segment struct {
	Addr Ptr
	Size uint64
	Home Location
	mem  *memory
	dev  *Device
}

// Chunk is a new reference to the segment's memory, ErrClosed if that is gone.
// The caller must Close it.
func (s Segment) Chunk() (*Chunk, error) {
	if s.mem == nil {
		return nil, &OpError{Op: "take chunk", Err: fmt.Errorf("%w: no segment", ErrInvalid)}
	}
	if !s.mem.retain() {
		return nil, s.dev.fail("take chunk", s.Addr, s.Size, fmt.Errorf("%w: memory", ErrClosed))
	}
	c, err := s.dev.chunk(s.mem)
	return c, s.dev.fail("take chunk", s.Addr, s.Size, err)
}

// Segments lists what is mapped, by address, without what is retiring. Every
// one of them has to be registered or shared, not only the first.
func (r *Reservation) Segments() []Segment {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Segment, 0, len(r.slots))
	for i := range r.slots {
		if s := &r.slots[i]; s.state == accessible {
			all = append(all, Segment{r.ptr + Ptr(s.off), s.size(), s.mem.prop.Location, s.mem, r.dev})
		}
	}
	return all
}
