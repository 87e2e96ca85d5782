package vmm

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cuvmm/cuvmm/internal/errtext"
)

const defaultAddressLimit = 1 << 46

// SetAddressLimit changes how many bytes of addresses all reservations of this process may hold together,
// and returns the old limit. The default is 2^46, half of what the kernel gives a process on x86-64,
// because Go's own heap cannot grow and the process dies if addresses run out. A limit below the current
// use only stops new reservations.
//
// Most addresses come from arenas of 1 TiB, each of which counts in full. Arenas use at most half of the
// limit. One empty arena is kept, until another reservation needs its room.
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

// freeEmptyArenas gives the empty arenas of all drivers back. The last Close of a driver returns the error
// if it refuses one.
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
			ErrAddressSpace, errtext.Size(left), errtext.Size(process.limit))
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
