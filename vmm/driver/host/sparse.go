//go:build linux

package host

import (
	"os"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"

	"golang.org/x/sys/unix"
)

// Plain memory, and that of a pool which can be shared, lies in sparse memory files: one
// for each context, and one for each such pool. So another process can map it, and a
// block takes no descriptor.

// sparseSize is the size of a sparse file. It has pages only where blocks are in use.
const sparseSize = 1 << 62

// sparse is a sparse memory file. No offset is used twice: where a block was freed there
// is a hole for ever, and a name of that block, which another process may still have, is
// never the name of another.
//
// Behind each block is a page for its mark: the name that other processes know it by,
// as long as it may be opened.
type sparse struct {
	fd   int
	size uint64
	next uint64 // offset of the next block; guarded by Driver.memMu

	mu     sync.Mutex // a leaf
	blocks int
	unused bool // no new blocks come; the last one closes it
}

// newSparse makes a file with room for a block of size bytes behind the first offset.
func (d *Driver) newSparse(first, size uint64) (*sparse, error) {
	all := max(first+size+markSize(), largestFile(sparseSize))
	fd, _, err := d.memfd(all, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL, private)
	if err != nil {
		return nil, err
	}
	return &sparse{fd: fd, size: all, next: first}, nil
}

// largestFile is the size of the largest file that the process may have, or want if that
// is less. It is a multiple of the page.
func largestFile(want uint64) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return want
	}
	return min(want, limit.Cur/markSize()*markSize())
}

// markSize is the space behind a block. A page, so that a mapping of the block does not
// show it.
func markSize() uint64 { return uint64(os.Getpagesize()) }

// wholePages is n bytes rounded up to whole pages.
func wholePages(n uint64) uint64 { return (n + markSize() - 1) / markSize() * markSize() }

// has reports whether there is room for a block of size bytes.
func (f *sparse) has(size uint64) bool { return f.size-f.next >= size+markSize() }

// take returns the offset of a new block, for which there is room.
func (f *sparse) take(size uint64) (off uint64) {
	off = f.next
	f.next += size + markSize()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blocks++
	return off
}

// give frees the pages of a block and its mark. Mappings of it, in any process, read zero
// from then on.
func (f *sparse) give(off, size uint64) {
	_ = unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(size+markSize()))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blocks--
	f.closeIfUnused()
}

// end says that no new blocks come.
func (f *sparse) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unused = true
	f.closeIfUnused()
}

func (f *sparse) closeIfUnused() {
	if f.unused && f.blocks == 0 {
		_ = unix.Close(f.fd)
	}
}

// mark writes the name of a block behind it.
func (d *Driver) mark(f *sparse, off, size uint64, name [64]byte) error {
	if _, err := unix.Pwrite(f.fd, name[:], int64(off+size)); err != nil {
		return d.fail("pwrite", driver.ErrOutOfMemory, err)
	}
	return nil
}

// unmark removes the name of a block.
func (f *sparse) unmark(off, size uint64) {
	_ = unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off+size), int64(markSize()))
}

// marked reports whether name is the name of the block that ends at an offset of fd.
func marked(fd int, end uint64, name [64]byte) bool {
	var found [64]byte
	n, err := unix.Pread(fd, found[:], int64(end))
	return err == nil && n == len(found) && found == name
}

// plainFile is the file that the context's next plain block of size bytes lies in.
func (c *context) plainFile(size uint64) (*sparse, error) {
	if c.plain != nil && c.plain.has(size) {
		return c.plain, nil
	}
	f, err := c.d.newSparse(0, size)
	if err != nil {
		return nil, err
	}
	if c.plain != nil {
		c.plain.end()
	}
	c.plain = f
	return f, nil
}

// probeSparse tries whether the system has what sharing of blocks needs.
func (d *Driver) probeSparse() error {
	if _, err := d.self(); err != nil {
		return err
	}
	f, err := d.newSparse(0, markSize())
	if err != nil {
		return err
	}
	defer f.end()
	fd, err := reopen(f.fd, unix.O_RDWR)
	if err != nil {
		return d.fail("open", driver.ErrOutOfMemory, err)
	}
	return unix.Close(fd)
}
