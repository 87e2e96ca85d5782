//go:build linux

package host

import (
	"bytes"
	"os"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	// spareMappings are left to the Go runtime, thread stacks and libraries.
	spareMappings = 1024

	// spareForLess of them may be used to give memory up. Where the kernel has joined
	// mappings, to unmap one of them or to take its access away takes up to two more.
	spareForLess = spareMappings / 2

	// recountAfter is how many mappings are taken at most before the mappings of the
	// whole process are counted again.
	recountAfter = 4096

	// addressLimit is how many bytes of addresses are reserved at most: three
	// quarters of what a process can address, because Go dies when its heap finds no
	// addresses to grow into.
	addressLimit = 3 << 45
)

// processLimits counts what all Drivers together hold of the process's kernel
// mappings and addresses. If each Driver counted alone, together they could exhaust
// the process, and Go would die.
type processLimits struct {
	mu           sync.Mutex
	mappings     int    // never less than the kernel counts
	limit        int    // of mappings, as of the last recount
	untilRecount int    // how many more may be taken before the next recount
	reserved     uint64 // bytes of addresses
}

// process is the count of this process.
var process processLimits

// purpose is what mappings are taken for.
type purpose int

const (
	forMore purpose = iota // more memory or access
	forLess                // less of it, so that other mappings may go
)

// takeMappings counts n more mappings, or returns false at the limit.
func (l *processLimits) takeMappings(n int, why purpose) bool {
	if n == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.untilRecount {
		l.recount()
	}
	limit := l.limit
	if why == forLess {
		limit += spareForLess
	}
	if l.mappings+n > limit {
		return false
	}
	l.mappings += n
	l.untilRecount -= n
	return true
}

// recount finds out what the rest of the process has mapped. Reading the list is
// slow, so it is read again only after some more mappings, and sooner near the limit.
func (l *processLimits) recount() {
	all, foreign := mapped()
	// The kernel counts adjacent reservations as one mapping, so the difference alone
	// could be too small.
	if all > 0 || l.limit == 0 { // else it cannot be read just now
		l.limit = maxMapCount() - spareMappings - max(all-l.mappings, foreign)
	}
	l.untilRecount = min((l.limit+spareForLess-l.mappings)/2, recountAfter)
}

func (l *processLimits) returnMappings(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mappings -= n
}

// takeAddresses counts n more bytes of addresses, or returns false at the limit.
func (l *processLimits) takeAddresses(n uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > addressLimit-l.reserved {
		return false
	}
	l.reserved += n
	return true
}

func (l *processLimits) returnAddresses(n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved -= n
}

// mapped is how many mappings the process has now, and how many of them cannot be
// this package's, because they are neither a memory file nor addresses without
// memory. Both are 0 where /proc is missing, or there is no descriptor to read it.
func mapped() (all, foreign int) {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0
	}
	for line := range bytes.Lines(b) {
		all++
		if !bytes.Contains(line, []byte("/memfd:"+memfdName)) && !bytes.Contains(line, []byte(" ---p 00000000 00:00 0")) {
			foreign++
		}
	}
	return all, foreign
}

// takeMappings counts n more kernel mappings, or returns ErrLimit. At the kernel's
// own limit even the undo of a call fails, so this limit is lower. The caller holds
// memMu.
func (d *Driver) takeMappings(verb string, n int, why purpose) error {
	if n == 0 {
		return nil
	}
	if d.mappingLimit > 0 && d.mappings+n > d.mappingLimit && why == forMore {
		return refuse(verb, driver.ErrLimit, "%d of the driver's %d mappings are in use (Config.Mappings, below vm.max_map_count)", d.mappings, d.mappingLimit)
	}
	if !process.takeMappings(n, why) {
		return refuse(verb, driver.ErrLimit, "the process has no mappings left (vm.max_map_count is %d, %d of them stay spare)", maxMapCount(), spareMappings)
	}
	d.mappings += n
	return nil
}

// returnMappings counts n kernel mappings less. The caller holds memMu.
func (d *Driver) returnMappings(n int) {
	d.mappings -= n
	process.returnMappings(n)
}
