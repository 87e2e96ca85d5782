//go:build linux

package host

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Orphans are memory that was released here while an exported descriptor, or a mapping
// of one, was open elsewhere. Each has a descriptor and counts as used. The system does
// not notify when the last descriptor elsewhere is closed, so it is asked: when memory
// or descriptors run out, at each Create, and, while there are orphans, by a timer. The
// timer is no goroutine between two looks. It ends with the last orphan, not with the
// last Close of a device, because other processes keep the memory beyond that.
const (
	orphansPerCreate = 2
	orphansPerLook   = 64 // of the timer; bounds what it costs, some 3 us each

	// The timer looks again after a pause that doubles.
	firstOrphanPause = 10 * time.Millisecond
	lastOrphanPause  = time.Second
)

// addOrphan makes m an orphan. The caller holds memMu.
func (d *Driver) addOrphan(m *memory) {
	d.orphans = append(d.orphans, m)
	due := d.orphanPause > 0
	d.orphanPause = firstOrphanPause
	if !due {
		time.AfterFunc(d.orphanPause, d.lookAtOrphans)
	}
}

// unorphan removes m from the orphans.
func (d *Driver) unorphan(m *memory) {
	d.orphans = slices.DeleteFunc(d.orphans, func(o *memory) bool { return o == m })
}

// lookAtOrphans is the timer's function.
func (d *Driver) lookAtOrphans() {
	d.memMu.Lock()
	defer d.unlockAndClose()
	found := d.collectSomeOrphans(orphansPerLook)
	switch {
	case len(d.orphans) == 0:
		d.orphanPause = 0
		return
	case found:
		d.orphanPause = firstOrphanPause // more are likely to be free
	default:
		d.orphanPause = min(2*d.orphanPause, lastOrphanPause)
	}
	time.AfterFunc(d.orphanPause, d.lookAtOrphans)
}

// collectOrphans frees the orphans that no other process has any more.
func (d *Driver) collectOrphans() { d.collectSomeOrphans(len(d.orphans)) }

// collectSomeOrphans is collectOrphans for the n orphans that were checked longest ago.
// It returns whether it freed any.
func (d *Driver) collectSomeOrphans(n int) (found bool) {
	n = min(n, len(d.orphans))
	checked := d.orphans[:n]
	d.orphans = d.orphans[n:]
	for _, m := range checked {
		if m.shared() {
			d.orphans = append(d.orphans, m)
		} else {
			d.freeMemory(m)
			found = true
		}
	}
	return found
}

// closeOrphans is collectOrphans where the descriptors are needed at once. It returns
// whether it closed any.
func (d *Driver) closeOrphans() bool {
	d.collectOrphans()
	f := d.freed
	d.freed = freed{}
	d.close(f)
	return len(f.fds) > 0
}

// shared reports whether an exported descriptor, or a mapping of one, may exist in any
// process. In doubt it says yes, because memory in use must not count as free.
func (m *memory) shared() bool { return lease(m.fd) != nil }

// lease takes a lease for writing and ends it. The kernel grants one only if the file
// is not open anywhere else, and returns EAGAIN if it is. Any other error means that
// the kernel cannot tell: leases are switched off, or this process no longer owns the
// file.
func lease(fd int) error {
	if err := takeLease(fd); err != nil {
		return err
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err
}

// takeLease takes a lease. First it chooses the signal that the kernel sends if the
// file is opened during the lease: SIGIO would end a process that does not handle it,
// SIGURG does nothing. The choice ends with the lease.
func takeLease(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETSIG, int(unix.SIGURG)); err != nil {
		return err
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	return err
}
