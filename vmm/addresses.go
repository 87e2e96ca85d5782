package vmm

import "errors"

// arenaBudget counts arenas, and the reservations in them, against the process's limit.
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
