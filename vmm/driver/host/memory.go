//go:build linux

package host

import (
	"cmp"
	"errors"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// memory is one memfd, or a part of an arena. It is freed with its last reference:
// handles, mappings and exported descriptors.
type memory struct {
	fd       int
	part     part          // of an arena; its offset is 0 for a file of its own
	first    driver.Handle // the one that Create returned; Freed is asked by it
	id       inode
	size     uint64
	state    *deviceState
	charged  bool // created here, so counted here
	exported bool
	sealed   bool // no new mapping may write it
	handles  int
	mapped   int
	touched  atomic.Uint64 // bytes below this offset may have been written
}

// inode names a file of the system.
type inode struct{ dev, ino uint64 }

// handle is a caller's reference. Its size and rights may differ from the memory's:
// an importer may claim a wrong size or hold a read-only descriptor.
type handle struct {
	memory   *memory
	size     uint64
	share    driver.Share
	writable bool
}

// Create makes a memfd that can neither shrink nor grow, or takes a part of one. Only
// memory that cannot leave the process shares a file: seals, descriptors and leases
// are of whole files.
func (d *Driver) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	const verb = "Create"
	u, err := d.stateFor(verb, p)
	if err != nil {
		return 0, err
	}
	if err := d.checkSpan(verb, 0, size); err != nil {
		return 0, err
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	d.collectSomeOrphans(orphansPerCreate)
	if err := d.charge(verb, u, size); err != nil {
		return 0, err
	}
	m, err := d.newMemory(size, p.Share)
	if errors.Is(err, unix.EMFILE) && d.closeOrphans() {
		m, err = d.newMemory(size, p.Share)
	}
	if err != nil {
		u.used -= size
		return 0, err
	}
	m.state, m.charged = u, true
	return d.newHandle(handle{memory: m, size: size, share: p.Share, writable: true}), nil
}

// newMemory makes memory that no device is charged for yet.
func (d *Driver) newMemory(size uint64, share driver.Share) (*memory, error) {
	if share == 0 && size < arenaChunk {
		p, err := d.arenas.take(size, d.newArena)
		if err != nil {
			return nil, err
		}
		return &memory{fd: p.arena.fd, part: p, size: size}, nil
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if share&driver.ShareReadOnly == 0 {
		// Else the holder of a writable descriptor could add more seals.
		seals |= unix.F_SEAL_SEAL
	}
	fd, id, err := d.memfd(size, seals, share)
	if err != nil {
		return nil, err
	}
	m := &memory{fd: fd, id: id, size: size}
	if share != 0 {
		d.created[id] = m
	}
	return m, nil
}

// Properties is what the memory was created with. The location of memory that another
// process created is the device that Import named: a memory file has none.
func (d *Driver) Properties(h driver.Handle) (driver.Prop, error) {
	const verb = "Properties"
	d.memMu.RLock()
	defer d.memMu.RUnlock()
	x, err := d.handle(verb, h)
	if err != nil {
		return driver.Prop{}, err
	}
	n := x.memory.state.ordinal
	if _, err := d.state(verb, n); err != nil {
		return driver.Prop{}, err
	}
	return driver.Prop{Location: driver.Location{Kind: driver.LocationDevice, ID: n}, Share: x.share}, nil
}

// Release drops the caller's reference.
func (d *Driver) Release(h driver.Handle) error {
	d.memMu.Lock()
	defer d.unlockAndClose()
	x, err := d.handle("Release", h)
	if err != nil {
		return err
	}
	delete(d.handles, h)
	x.memory.handles--
	d.freeIfUnused(x.memory)
	return nil
}

func (d *Driver) newHandle(h handle) driver.Handle {
	d.lastHandle++
	d.handles[d.lastHandle] = &h
	h.memory.handles++
	h.memory.first = cmp.Or(h.memory.first, d.lastHandle)
	return d.lastHandle
}

func (d *Driver) handle(verb string, h driver.Handle) (*handle, error) {
	x := d.handles[h]
	if x == nil {
		return nil, refuse(verb, driver.ErrInvalid, "no handle %d", h)
	}
	return x, nil
}

// charge counts size bytes on u, or returns ErrOutOfMemory.
func (d *Driver) charge(verb string, u *deviceState, size uint64) error {
	if size > u.memory-u.used {
		d.collectOrphans()
	}
	if free := u.memory - u.used; size > free {
		return refuse(verb, driver.ErrOutOfMemory, "%d bytes of host:%d, which has %d free of %d", size, u.ordinal, free, u.memory)
	}
	u.used += size
	return nil
}

// freeIfUnused frees memory if nothing refers to it.
func (d *Driver) freeIfUnused(m *memory) {
	switch {
	case m.handles > 0 || m.mapped > 0:
	case m.charged && m.exported && m.shared():
		d.addOrphan(m)
	default:
		d.freeMemory(m)
	}
}

func (d *Driver) freeMemory(m *memory) {
	if m.part.arena != nil {
		d.freed.addPart(m.part)
	} else {
		d.freed.fds = append(d.freed.fds, m.fd)
		delete(d.created, m.id)
	}
	if m.charged {
		m.state.used -= m.size
	}
}

// freed is memory whose pages are yet to go back to the system.
type freed struct {
	fds    []int
	parts  []part
	blocks []*region // of sparse files
}

// addPart adds a part to the last one, if it is its neighbour, or by itself.
func (f *freed) addPart(p part) {
	if n := len(f.parts); n > 0 {
		if last := &f.parts[n-1]; last.arena == p.arena && last.end() == p.off {
			last.size += p.size
			return
		}
	}
	f.parts = append(f.parts, p)
}

// unlockAndClose unlocks memMu and then closes the memory that was freed: the kernel
// takes long to free the pages, and copies need not wait for that.
func (d *Driver) unlockAndClose() {
	f := d.freed
	d.freed = freed{}
	d.memMu.Unlock()
	d.close(f)
}

func (d *Driver) close(f freed) {
	for _, fd := range f.fds {
		_ = unix.Close(fd)
	}
	for _, p := range f.parts {
		d.arenas.give(p)
	}
	for _, r := range f.blocks {
		r.file.give(r.off, r.size)
	}
}

// memfdName is what /proc/self/maps calls the memory.
const memfdName = "cuvmm"

// private is memory that is not shared.
const private driver.Share = 0

// memfd makes a memory file of size bytes with seals. With ShareFD it returns a countable
// descriptor, or ErrNotSupported where there can be none.
func (d *Driver) memfd(size uint64, seals int, share driver.Share) (int, inode, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(memfdName, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(memfdName, flags)
	}
	if err != nil {
		return 0, inode{}, d.fail("memfd_create", driver.ErrOutOfMemory, err)
	}
	var st unix.Stat_t
	call, err := "ftruncate", unix.Ftruncate(fd, int64(size))
	if err == nil {
		call = "fcntl(F_ADD_SEALS)"
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		call, err = "fstat", unix.Fstat(fd, &st)
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, inode{}, d.fail(call, driver.ErrOutOfMemory, err)
	}
	if share&driver.ShareFD != 0 {
		counted, err := d.countable(fd)
		_ = unix.Close(fd)
		if err != nil {
			return 0, inode{}, err
		}
		fd = counted
	}
	return fd, inode{uint64(st.Dev), st.Ino}, nil
}
