//go:build linux

package host

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

var _ driver.PoolSharer = (*device)(nil)

// A pool that can be shared begins with a header: what it is, its device and its id. A
// token is the id, the offset and size of a block, and a number that no other block has;
// while the block may be imported it is the block's mark.
const (
	poolMagic  = "cuvmm pool 1"
	tokenMagic = "poolptr1"
)

// poolHeader is the first bytes of the pool's file.
func poolHeader(dev int, id [16]byte) (h [64]byte) {
	copy(h[:], poolMagic)
	binary.LittleEndian.PutUint32(h[16:], uint32(dev))
	copy(h[24:], id[:])
	return h
}

// poolToken names a block.
func poolToken(id [16]byte, r *region) (t driver.PoolToken) {
	copy(t[:], tokenMagic)
	copy(t[8:], id[:])
	binary.LittleEndian.PutUint64(t[24:], r.off)
	binary.LittleEndian.PutUint64(t[32:], r.size)
	binary.LittleEndian.PutUint64(t[40:], r.block.n)
	_, _ = rand.Read(t[48:])
	return t
}

// makeShareable gives a new pool a file.
func (d *Driver) makeShareable(p *pool) error {
	f, err := d.newSparse(markSize(), 0)
	if err != nil {
		return err
	}
	p.file = f
	_, _ = rand.Read(p.id[:])
	h := poolHeader(p.on.ordinal, p.id)
	if _, err := unix.Pwrite(f.fd, h[:], 0); err != nil {
		return d.fail("pwrite", driver.ErrOutOfMemory, err)
	}
	return nil
}

// unname removes the name of memory that is freed.
func (p *pool) unname(r *region) {
	switch {
	case r.block.name == [64]byte{}:
	case p.imports != nil:
		delete(p.imports, r.block.name)
	default:
		r.file.unmark(r.off, r.size)
	}
}

// ExportPool opens the pool's file again.
func (v *device) ExportPool(h driver.Pool) (fd int, err error) {
	const verb = "ExportPool"
	fd = -1
	err = v.onPool(verb, h, func(p *pool) error {
		if p.file == nil || p.imports != nil {
			return refuse(verb, driver.ErrInvalid, "pool %d was imported, or created without a way to share", h)
		}
		var err error
		if fd, err = reopen(p.file.fd, unix.O_RDWR); err != nil {
			return v.context.d.fail("open", driver.ErrOutOfMemory, err)
		}
		return nil
	})
	return fd, err
}

// ImportPool checks that the descriptor is that of a pool, and keeps one of its own until
// the pool goes. The pool's device is the one with the same number.
func (v *device) ImportPool(fd int) (h driver.Pool, err error) {
	const verb = "ImportPool"
	if err := v.checkOpen(verb); err != nil {
		return 0, err
	}
	d := v.context.d
	st, writable, err := d.inspect(verb, fd)
	if err != nil {
		return 0, err
	}
	var found [64]byte
	if n, err := unix.Pread(fd, found[:], 0); err != nil || n < len(found) || !writable {
		return 0, refuse(verb, driver.ErrInvalid, "fd %d is not a pool's", fd)
	}
	dev, id := binary.LittleEndian.Uint32(found[16:]), [16]byte(found[24:])
	if found != poolHeader(int(dev), id) {
		return 0, refuse(verb, driver.ErrInvalid, "fd %d is not a pool's", fd)
	}
	err = v.withMemory(verb, func() error {
		on, err := v.reaches(verb, dev)
		if err != nil {
			return err
		}
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return d.fail("fcntl(F_DUPFD_CLOEXEC)", driver.ErrOutOfMemory, err)
		}
		p := v.context.newPool(v)
		p.on, p.id, p.imports = on, id, make(map[driver.PoolToken]*region)
		p.file = &sparse{fd: own, size: uint64(st.Size)}
		clear(p.access)
		p.access[on.ordinal] = driver.AccessReadWrite
		h = p.handle
		return nil
	})
	return h, err
}

// reaches finds the device of another process's memory, and checks that this device can
// reach it.
func (v *device) reaches(verb string, dev uint32) (*deviceState, error) {
	d, from := v.context.d, v.context.state.ordinal
	if uint64(dev) >= uint64(len(d.states)) {
		return nil, refuse(verb, driver.ErrNotSupported, "the memory is of host:%d; there are %d", dev, len(d.states))
	}
	if to := int(dev); from != to && !d.canReach(from, to) {
		return nil, refuse(verb, driver.ErrNotSupported, "host:%d cannot reach memory of host:%d", from, to)
	}
	return d.states[dev], nil
}

// ExportPointer marks the block with its token.
func (v *device) ExportPointer(at driver.Ptr) (t driver.PoolToken, err error) {
	const verb = "ExportPointer"
	err = v.withMemory(verb, func() error {
		r := v.context.d.region(uint64(at))
		if r == nil || r.block == nil || r.base != uint64(at) || r.block.pool == nil || r.block.pool.imports != nil || r.file == nil {
			return refuse(verb, driver.ErrInvalid, "at %v is nothing that was allocated from a pool which can be shared", at)
		}
		if r.block.name == [64]byte{} {
			name := poolToken(r.block.pool.id, r)
			if err := v.context.d.mark(r.file, r.off, r.size, name); err != nil {
				return err
			}
			r.block.name = name
		}
		t = r.block.name
		return nil
	})
	return t, err
}

// ImportPointer maps the block of a token. Where the driver can know that the block was
// freed, that is ErrInvalid.
func (v *device) ImportPointer(h driver.Pool, t driver.PoolToken) (at driver.Ptr, err error) {
	const verb = "ImportPointer"
	err = v.onPool(verb, h, func(p *pool) error {
		d := v.context.d
		if p.imports == nil {
			return refuse(verb, driver.ErrInvalid, "pool %d was not imported", h)
		}
		if r := p.imports[t]; r != nil {
			at = driver.Ptr(r.base)
			return nil
		}
		d.releaseCached(p, func(uint64) bool { return true })
		off, size, n := binary.LittleEndian.Uint64(t[24:]), binary.LittleEndian.Uint64(t[32:]), binary.LittleEndian.Uint64(t[40:])
		if string(t[:8]) != tokenMagic || [16]byte(t[8:]) != p.id || !inFile(off, size, n, p.file.size) {
			return refuse(verb, driver.ErrInvalid, "the token is of another pool than %d, or none", h)
		}
		r, err := d.mapForeign(verb, p.file.fd, off, size, t)
		if err != nil {
			return err
		}
		r.block = &block{context: p.context, n: n, pool: p, name: t, foreign: p.on}
		p.imports[t] = r
		d.insert(r)
		p.reserved += size
		p.reservedPeak = max(p.reservedPeak, p.reserved)
		p.blocks += size
		p.usedPeak = max(p.usedPeak, p.used())
		at = driver.Ptr(r.base)
		return nil
	})
	return at, err
}

// inFile reports whether n bytes in a block of size bytes at an offset can be in a file.
func inFile(off, size, n, all uint64) bool {
	return n > 0 && n <= size && size <= addressLimit && size%markSize() == 0 && off%markSize() == 0 &&
		off <= all && size+markSize() <= all-off
}

// mapForeign maps a block of a file of another process, as long as that has the mark.
func (d *Driver) mapForeign(verb string, fd int, off, size uint64, name [64]byte) (*region, error) {
	if !marked(fd, off+size, name) {
		return nil, refuse(verb, driver.ErrInvalid, "the memory was freed, or is none")
	}
	base, err := d.mapAnywhere(verb, size, unix.MAP_SHARED, fd, off)
	if err != nil {
		return nil, err
	}
	return &region{base: base, size: size}, nil
}
