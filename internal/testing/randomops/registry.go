package randomops

import (
	"errors"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
)

// registry is what another library would have registered of a range that it watches.
type registry struct {
	*run
	stop func()

	mu   sync.Mutex
	have map[vmm.Ptr]uint64
}

// watch has a registry follow g.
func (r *run) watch(g *vmm.Range) (*registry, error) {
	y := &registry{run: r, have: map[vmm.Ptr]uint64{}}
	var err error
	y.stop, err = g.Watch(vmm.Watch{Mapped: y.mapped, Unmapping: y.unmapping})
	return y, err
}

func (y *registry) mapped(s vmm.Segment) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.isMapped("mapped", s)
	if _, twice := y.have[s.Addr]; twice {
		y.wrong("%v is mapped, and was so before", s.Addr)
	}
	y.have[s.Addr] = s.Size
}

func (y *registry) unmapping(s vmm.Segment) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.isMapped("unmapped next", s)
	if y.have[s.Addr] != s.Size {
		y.wrong("%d bytes at %v are unmapped, and %d were mapped", s.Size, s.Addr, y.have[s.Addr])
	}
	delete(y.have, s.Addr)
}

// isMapped asks the driver whether s is mapped, with access, while the range tells so.
func (y *registry) isMapped(doing string, s vmm.Segment) {
	a, err := y.Driver.Access(s.Addr, s.Location)
	if err == nil && a == vmm.AccessNone || errors.Is(err, vmm.ErrInvalid) && (y.Injected == nil || !y.Injected(err)) {
		y.wrong("%v is %s, and has access %v: %v", s.Addr, doing, a, err)
	}
}

// end checks that nothing is registered any more: the range has closed, or the watch ended.
func (y *registry) end() {
	y.stop()
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.have) > 0 {
		y.wrong("left registered: %v", y.have)
	}
}
