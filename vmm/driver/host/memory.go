//go:build linux

package host

import (
	"slices"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// memory is one memfd. It goes back to the system with its last reference:
// handles, mappings, and descriptors that were exported.
type memory struct {
	fd       int
	id       inode
	size     uint64
	home     *unit
	charged  bool // made here, so counted here
	exported bool
	sealed   bool // no new mapping may write it
	handles  int
	mapped   int
	touched  atomic.Uint64 // bytes below this have been written, or may have been
}

// inode names a file of the system.
type inode struct{ dev, ino uint64 }

// handle is a caller's reference. Size and rights are its own: an importer may
// claim a wrong size or hold a descriptor that only reads.
type handle struct {
	memory   *memory
	size     uint64
	share    driver.Share
	writable bool
}

// Create makes a memfd that can neither shrink nor grow.
func (d *Driver) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	const verb = "Create"
	u, err := d.home(verb, p)
	if err != nil {
		return 0, err
	}
	if err := d.whole(verb, 0, size); err != nil {
		return 0, err
	}
	d.mem.Lock()
	defer d.unlock()
	d.collectSome()
	if err := d.charge(verb, u, size); err != nil {
		return 0, err
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if p.Share&driver.ShareReadOnly == 0 {
		// Whoever holds a writable descriptor could add seals of his own.
		seals |= unix.F_SEAL_SEAL
	}
	fd, id, err := d.memfd(size, seals, p.Share&driver.ShareFD != 0)
	if err != nil {
		u.used -= size
		return 0, err
	}
	m := &memory{fd: fd, id: id, size: size, home: u, charged: true}
	d.created[id] = m
	return d.newHandle(m, size, p.Share, true), nil
}

// Location is the device that the memory was created on. Of memory that another
// process created it is what Import was told: a memory file does not say.
func (d *Driver) Location(h driver.Handle) (driver.Location, error) {
	const verb = "Location"
	d.mem.RLock()
	defer d.mem.RUnlock()
	x, err := d.handle(verb, h)
	if err != nil {
		return driver.Location{}, err
	}
	n := x.memory.home.ordinal
	if _, err := d.unit(verb, n); err != nil {
		return driver.Location{}, err
	}
	return driver.Location{Kind: driver.LocationDevice, ID: n}, nil
}

// Release drops the caller's reference.
func (d *Driver) Release(h driver.Handle) error {
	d.mem.Lock()
	defer d.unlock()
	x, err := d.handle("Release", h)
	if err != nil {
		return err
	}
	delete(d.handles, h)
	x.memory.handles--
	d.settle(x.memory)
	return nil
}

func (d *Driver) newHandle(m *memory, size uint64, share driver.Share, writable bool) driver.Handle {
	d.lastHandle++
	d.handles[d.lastHandle] = &handle{m, size, share, writable}
	m.handles++
	return d.lastHandle
}

func (d *Driver) handle(verb string, h driver.Handle) (*handle, error) {
	x := d.handles[h]
	if x == nil {
		return nil, rule(verb, driver.ErrInvalid, "no handle %d", h)
	}
	return x, nil
}

// charge counts size bytes on u, or answers ErrOutOfMemory.
func (d *Driver) charge(verb string, u *unit, size uint64) error {
	if size > u.memory-u.used {
		d.collect()
	}
	if free := u.memory - u.used; size > free {
		return rule(verb, driver.ErrOutOfMemory, "%d bytes of host:%d, which has %d free of %d", size, u.ordinal, free, u.memory)
	}
	u.used += size
	return nil
}

// settle gives memory back if nothing refers to it.
func (d *Driver) settle(m *memory) {
	switch {
	case m.handles > 0 || m.mapped > 0:
	case m.charged && m.exported && m.shared():
		d.orphans = append(d.orphans, m)
	default:
		d.giveBack(m)
	}
}

func (d *Driver) giveBack(m *memory) {
	d.closing = append(d.closing, m.fd)
	if m.charged {
		m.home.used -= m.size
		delete(d.created, m.id)
	}
}

// unlock lets go of mem and then closes what was given back: the kernel takes
// its time to free the pages, and copies need not wait for that.
func (d *Driver) unlock() {
	fds := d.closing
	d.closing = nil
	d.mem.Unlock()
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// collect gives back the orphans whose last descriptor has been closed. The
// system tells nobody when that happens, so it is asked when it matters.
func (d *Driver) collect() {
	d.orphans = slices.DeleteFunc(d.orphans, func(m *memory) bool {
		if m.shared() {
			return false
		}
		d.giveBack(m)
		return true
	})
}

// collectSome is collect for the two orphans that were looked at longest ago:
// each keeps a descriptor and its pages, and there may be room for more memory
// long after there is none for more descriptors.
func (d *Driver) collectSome() {
	for range min(2, len(d.orphans)) {
		m := d.orphans[0]
		d.orphans = d.orphans[1:]
		if m.shared() {
			d.orphans = append(d.orphans, m)
		} else {
			d.giveBack(m)
		}
	}
}

// memfdName is what /proc/self/maps calls the memory.
const memfdName = "cuvmm"

// memfd makes a file of size bytes that lives in memory, with seals. For sharing
// it gives a countable descriptor, and ErrNotSupported where there can be none.
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
