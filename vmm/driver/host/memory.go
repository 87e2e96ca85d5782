//go:build linux

package host

import (
	"slices"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// memory is one memfd. It is freed with its last reference: handles, mappings and
// exported descriptors.
type memory struct {
	fd       int
	first    driver.Handle
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

// Create makes a memfd that can neither shrink nor grow.
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
	d.collectSomeOrphans()
	if err := d.charge(verb, u, size); err != nil {
		return 0, err
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if p.Share&driver.ShareReadOnly == 0 {
		// Else the holder of a writable descriptor could add more seals.
		seals |= unix.F_SEAL_SEAL
	}
	fd, id, err := d.memfd(size, seals, p.Share&driver.ShareFD != 0)
	if err != nil {
		u.used -= size
		return 0, err
	}
	m := &memory{fd: fd, id: id, size: size, state: u, charged: true}
	d.created[id] = m
	return d.newHandle(m, size, p.Share, true), nil
}

// Location is the device that the memory was created on. For memory that another
// process created it is the device that Import named: a memory file has none.
func (d *Driver) Location(h driver.Handle) (driver.Location, error) {
	const verb = "Location"
	d.memMu.RLock()
	defer d.memMu.RUnlock()
	x, err := d.handle(verb, h)
	if err != nil {
		return driver.Location{}, err
	}
	n := x.memory.state.ordinal
	if _, err := d.state(verb, n); err != nil {
		return driver.Location{}, err
	}
	return driver.Location{Kind: driver.LocationDevice, ID: n}, nil
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

func (d *Driver) newHandle(m *memory, size uint64, share driver.Share, writable bool) driver.Handle {
	d.lastHandle++
	d.handles[d.lastHandle] = &handle{m, size, share, writable}
	m.handles++
	if m.first == 0 {
		m.first = d.lastHandle
	}
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
		d.orphans = append(d.orphans, m)
	default:
		d.freeMemory(m)
	}
}

func (d *Driver) freeMemory(m *memory) {
	d.closing = append(d.closing, m.fd)
	if m.charged {
		m.state.used -= m.size
		delete(d.created, m.id)
	}
}

// unlockAndClose unlocks memMu and then closes the memory that was freed: the kernel
// takes long to free the pages, and copies need not wait for that.
func (d *Driver) unlockAndClose() {
	fds := d.closing
	d.closing = nil
	d.memMu.Unlock()
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// collectOrphans frees the orphans whose last descriptor is closed. The system does
// not notify about that, so it is asked when it matters.
func (d *Driver) collectOrphans() {
	d.orphans = slices.DeleteFunc(d.orphans, func(m *memory) bool {
		if m.shared() {
			return false
		}
		d.freeMemory(m)
		return true
	})
}

// collectSomeOrphans is collectOrphans for the two orphans that were checked longest
// ago. Each holds a descriptor and its pages, and a process may run out of
// descriptors long before it runs out of memory.
func (d *Driver) collectSomeOrphans() {
	for range min(2, len(d.orphans)) {
		m := d.orphans[0]
		d.orphans = d.orphans[1:]
		if m.shared() {
			d.orphans = append(d.orphans, m)
		} else {
			d.freeMemory(m)
		}
	}
}

// memfdName is what /proc/self/maps calls the memory.
const memfdName = "cuvmm"

// memfd makes a memory file of size bytes with seals. For sharing it returns a
// countable descriptor, or ErrNotSupported where there can be none.
func (d *Driver) memfd(size uint64, seals int, sharing bool) (int, inode, error) {
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
	if sharing {
		counted, err := d.countable(fd)
		_ = unix.Close(fd)
		if err != nil {
			return 0, inode{}, err
		}
		fd = counted
	}
	return fd, inode{uint64(st.Dev), st.Ino}, nil
}
