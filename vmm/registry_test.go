package vmm_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// registry registers what a Watch shows, as another library would. It notes all that such a
// library could not bear.
type registry struct {
	of   followed
	drv  driver.Driver // without faults
	stop func()

	mu    sync.Mutex
	have  map[vmm.Ptr]uint64
	log   []string // +1 is that the page 1 was mapped, -1 that it is about to be unmapped
	wrong []string
}

// followed is what a registry follows.
type followed interface {
	Watch(vmm.Watch) (stop func(), err error)
	vmm.Memory
	Ptr() vmm.Ptr
}

// register has a registry follow o to its end, for world.end to check.
func (w *world) register(o followed) *registry {
	w.t.Helper()
	r := &registry{of: o, drv: w.inner, have: map[vmm.Ptr]uint64{}}
	var err error
	r.stop, err = o.Watch(vmm.Watch{Mapped: r.mapped, Unmapping: r.unmapping})
	require.NoError(w.t, err)
	w.registries = append(w.registries, r)
	return r
}

func (r *registry) mapped(s vmm.Segment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("+", s)
	if _, twice := r.have[s.Addr]; twice {
		r.wrong = append(r.wrong, fmt.Sprintf("%v is mapped twice", s.Addr))
	}
	r.have[s.Addr] = s.Size
	// Whatever registers memory takes a reference to it.
	c, err := s.Chunk()
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		r.wrong = append(r.wrong, fmt.Sprintf("a reference to %v: %v", s.Addr, err))
	}
}

func (r *registry) unmapping(s vmm.Segment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("-", s)
	if r.have[s.Addr] != s.Size {
		r.wrong = append(r.wrong, fmt.Sprintf("%v is unmapped, and was not mapped", s.Addr))
	}
	delete(r.have, s.Addr)
}

// note checks that s is mapped and accessible now. It needs r.mu.
func (r *registry) note(what string, s vmm.Segment) {
	r.log = append(r.log, fmt.Sprintf("%s%d", what, uint64(s.Addr-r.of.Ptr())/page))
	to := vmm.Location{Kind: vmm.LocationDevice, ID: s.Location.ID}
	if a, err := r.drv.Access(s.Addr, to); !errors.Is(err, vmm.ErrDeviceLost) && (err != nil || a == vmm.AccessNone) {
		r.wrong = append(r.wrong, fmt.Sprintf("%s%v has access %v: %v", what, s.Addr, a, err))
	}
}

// since returns the calls since the last one.
func (r *registry) since() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

// check returns what is wrong: calls that do not fit, or that what is registered is not what
// is mapped.
func (r *registry) check() (wrong []string) {
	vmm.AtRest(r.of, func(mapped map[vmm.Ptr]uint64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		wrong = slices.Clone(r.wrong)
		if !maps.Equal(mapped, r.have) {
			wrong = append(wrong, fmt.Sprintf("mapped are %v, registered are %v", mapped, r.have))
		}
	})
	return wrong
}
