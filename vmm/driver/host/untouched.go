//go:build linux

package host

import (
	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// minWrite is the least size of a copy into untouched memory that is written to the
// file instead of through the mapping. The kernel then neither handles a fault for
// each page nor clears it first, which is half the cost of growth.
const minWrite = 64 << 10

// extent is a stretch of a copy's destination inside one piece of memory.
type extent struct {
	memory *memory
	at     uint64 // address
	off    uint64 // in the memory
	n      uint64
}

// untouchedExtents splits [p, p+n) at its mappings. It returns nil if all of it has
// been touched, or if it is plain or pinned memory. The caller holds memMu and has
// checked that the span is mapped.
func (d *Driver) untouchedExtents(p, n uint64) []extent {
	r := d.region(p)
	if r.block != nil {
		return nil
	}
	var all []extent
	fresh := false
	for _, m := range r.covering(p, n) {
		from, to := max(p, m.base), min(p+n, m.end())
		all = append(all, extent{m.memory, from, from - m.base, to - from})
		fresh = fresh || m.memory.touched.Load() < to-m.base
	}
	if !fresh {
		return nil
	}
	return all
}

// write copies src into extents: the untouched part of each through the file, the
// rest through the mapping. The bytes are the same either way. But where the system
// has no page left, a write to the file returns an error, and a store to the mapping
// is SIGBUS.
func (c *context) write(all []extent, src []byte) (whole bool, err error) {
	for _, x := range all {
		part := src[:x.n]
		src = src[x.n:]
		known := x.n
		if touched := x.memory.touched.Load(); touched < x.off+x.n {
			known = max(touched, x.off) - x.off
		}
		if !c.move(bytesAt(x.at, known), part[:known]) {
			return false, nil
		}
		for at := known; at < x.n; {
			if c.stopped() {
				return false, nil
			}
			n, err := unix.Pwrite(x.memory.fd, part[at:min(at+piece, x.n)], int64(x.memory.part.off+x.off+at))
			if err == unix.EPERM { // sealed meanwhile, so only the mapping may still write
				if !c.move(bytesAt(x.at+at, x.n-at), part[at:]) {
					return false, nil
				}
				break
			}
			if err != nil {
				return true, c.d.fail("pwrite", driver.ErrOutOfMemory, err)
			}
			at += uint64(n)
		}
		x.memory.touch(x.off + x.n)
	}
	return true, nil
}

// touch raises touched to n.
func (m *memory) touch(n uint64) {
	for {
		old := m.touched.Load()
		if old >= n || m.touched.CompareAndSwap(old, n) {
			return
		}
	}
}
