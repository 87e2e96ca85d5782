//go:build linux

package host

import (
	"bytes"
	"os"
	"sync"
)

const (
	// spareMappings stay free for the Go runtime, thread stacks and libraries.
	spareMappings = 1024

	// lookAfter is how many mappings are taken at most between two looks at
	// what else the process has mapped.
	lookAfter = 4096

	// addressLimit is how much is reserved at most: three quarters of what a
	// process can address, because Go dies when its heap finds no addresses to
	// grow into.
	addressLimit = 3 << 45
)

// ledger counts what all Drivers hold of that of which a process has only so
// much: kernel mappings and addresses. A Driver that counted alone would leave
// the others nothing, and Go with them.
type ledger struct {
	mu       sync.Mutex
	mappings int    // never less than the kernel counts
	limit    int    // of mappings, as of the last look
	unlooked int    // how many more may be taken before the next look
	reserved uint64 // bytes of addresses
}

// process is the ledger of this process.
var process ledger

// take counts n more mappings, if there may be so many.
func (l *ledger) take(n int) bool {
	if n == 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.unlooked {
		l.look()
	}
	if l.mappings+n > l.limit {
		return false
	}
	l.mappings += n
	l.unlooked -= n
	return true
}

// look finds out what others have mapped. The nearer the limit, the sooner the
// next look: reading the list is dear, and without it nothing is refused.
func (l *ledger) look() {
	all, foreign := mapped()
	// Reservations side by side are one mapping to the kernel, so the
	// difference alone could be too little.
	l.limit = maxMapCount() - spareMappings - max(all-l.mappings, foreign)
	l.unlooked = min((l.limit-l.mappings)/2, lookAfter)
}

func (l *ledger) give(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mappings -= n
}

// reserve counts n more bytes of addresses, if there may be so many.
func (l *ledger) reserve(n uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > addressLimit-l.reserved {
		return false
	}
	l.reserved += n
	return true
}

func (l *ledger) free(n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved -= n
}

// mapped is how many mappings the process has now, and how many of them cannot
// be this package's: neither a memory file nor addresses without memory. Both
// are 0 where /proc is missing.
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
