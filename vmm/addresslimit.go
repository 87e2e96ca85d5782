package vmm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

const defaultAddressLimit = 1 << 46

// SetAddressLimit changes how many bytes of addresses all reservations of this
// process may hold together, and returns the old limit. The default is 2^46, half
// of what the kernel gives a process on x86-64: if addresses run out, Go's own heap
// cannot grow and the process dies. A limit below what is reserved already only
// stops new reservations.
//
// Most addresses are cut out of arenas of 1 TiB, of which those that are handed out count. No
// arena is made, and an empty one is given back, where the limit has no room for all of it.
func SetAddressLimit(bytes uint64) (old uint64) {
	process.mu.Lock()
	old, process.limit = process.limit, bytes
	var drivers []*driverState
	if process.arenas > bytes-min(bytes, process.reserved) {
		drivers = slices.Collect(maps.Values(process.drivers))
	}
	process.mu.Unlock()
	for _, s := range drivers {
		_ = s.arenas.FreeEmpty() // the last Close tells
	}
	return old
}

// takeAddresses counts size against the process's limit.
func takeAddresses(size uint64) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	if left := process.limit - min(process.limit, process.reserved); size > left {
		return fmt.Errorf("%w: %s are left of this process's limit of %s; ask for a smaller Max or see SetAddressLimit",
			ErrAddressSpace, sizeText(left), sizeText(process.limit))
	}
	process.reserved += size
	return nil
}

// giveAddresses undoes takeAddresses.
func giveAddresses(size uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	process.reserved -= size
}

// countArena counts an arena, whose addresses are handed out one after the other; false if the
// process's limit has no room for it beside what is handed out.
func countArena(size uint64) bool {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.arenas+size > process.limit-min(process.limit, process.reserved) {
		return false
	}
	process.arenas += size
	return true
}

func uncountArena(size uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	process.arenas -= size
}

// reserve takes size bytes of addresses for chunks of gran: out of an arena, or, where there is none, of
// the driver.
func (s *driverState) reserve(size, gran, align uint64) (Ptr, error) {
	if align <= gran {
		if p, ok, err := s.arenas.Take(size, gran); ok || err != nil {
			return p, err
		}
	}
	p, err := s.drv.Reserve(size, max(align, gran))
	if errors.Is(err, ErrAddressSpace) && s.arenas.FreeEmpty() == nil {
		p, err = s.drv.Reserve(size, max(align, gran))
	}
	return p, err
}

// unreserve undoes reserve.
func (s *driverState) unreserve(p Ptr, size uint64) error {
	if s.arenas.Give(p, size) {
		return nil
	}
	return s.drv.Free(p, size)
}
