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
// Most addresses are cut out of arenas of 1 TiB, which the process has whole. They are made in half of
// what the limit allows, and an empty one is given back for what needs the room.
func SetAddressLimit(bytes uint64) (old uint64) {
	process.mu.Lock()
	old, process.limit = process.limit, bytes
	process.mu.Unlock()
	if !process.has(0) {
		freeEmptyArenas()
	}
	return old
}

// has reports whether the limit has room for size bytes more.
func (p *processState) has(size uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hasLocked(size)
}

func (p *processState) hasLocked(size uint64) bool {
	have := p.reserved + p.spare
	return have <= p.limit && size <= p.limit-have
}

// freeEmptyArenas gives back what no reservation is in. What a driver refuses is its last Close's to tell.
func freeEmptyArenas() {
	process.mu.Lock()
	all := slices.Collect(maps.Values(process.drivers))
	process.mu.Unlock()
	for _, s := range all {
		_ = s.arenas.FreeEmpty()
	}
}

// takeAddresses counts size against the process's limit.
func takeAddresses(size uint64) error {
	if !process.has(size) {
		freeEmptyArenas()
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	if !process.hasLocked(size) {
		left := process.limit - min(process.limit, process.reserved+process.spare)
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

// arenaBudget is what arenas and the reservations in them take of the process's limit.
type arenaBudget struct{}

func (arenaBudget) Make(size uint64) bool {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.reserved+process.spare+size > process.limit/2 {
		return false
	}
	process.spare += size
	return true
}

func (arenaBudget) Unmake(size uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	process.spare -= size
}

func (arenaBudget) Take(size uint64) bool {
	process.mu.Lock()
	defer process.mu.Unlock()
	if process.reserved > process.limit || size > process.limit-process.reserved {
		return false
	}
	process.reserved += size
	process.spare -= size
	return true
}

func (arenaBudget) Give(size uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	process.reserved -= size
	process.spare += size
}

// reserve takes size bytes of addresses for chunks of gran: out of an arena, or, where there is none, of
// the driver.
func (s *driverState) reserve(size, gran, align uint64) (Ptr, error) {
	if align <= gran {
		if p, ok, err := s.arenas.Take(size, gran); ok || err != nil {
			return p, err
		}
	}
	if err := takeAddresses(size); err != nil {
		return 0, err
	}
	p, err := s.drv.Reserve(size, max(align, gran))
	if errors.Is(err, ErrAddressSpace) && s.arenas.FreeEmpty() == nil {
		p, err = s.drv.Reserve(size, max(align, gran))
	}
	if err != nil {
		giveAddresses(size)
	}
	return p, err
}

// unreserve undoes reserve.
func (s *driverState) unreserve(p Ptr, size uint64) error {
	if s.arenas.Give(p, size) {
		return nil
	}
	err := s.drv.Free(p, size)
	if err == nil {
		giveAddresses(size)
	}
	return err
}

// roundUp rounds n up to a multiple of unit; false if that overflows.
func roundUp(n, unit uint64) (uint64, bool) {
	if rest := n % unit; rest != 0 {
		up := n + (unit - rest)
		return up, up > n
	}
	return n, true
}
