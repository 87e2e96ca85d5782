//go:build linux

package host

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// Export opens the memory once more. A read-only share is opened for reading,
// and sealed at the first export so that the descriptor cannot be reopened for
// writing; only mappings that exist by then keep the right to write.
func (d *Driver) Export(h driver.Handle) (int, error) {
	const verb = "Export"
	d.mem.Lock()
	defer d.unlock()
	x, err := d.handle(verb, h)
	if err != nil {
		return -1, err
	}
	m := x.memory
	if _, err := d.unit(verb, m.home.ordinal); err != nil {
		return -1, err
	}
	if x.share&driver.ShareFD == 0 {
		return -1, rule(verb, driver.ErrInvalid, "imported, or created without a way to share")
	}
	readOnly := x.share&driver.ShareReadOnly != 0
	if readOnly && x.writable && !m.sealed && m.mapped == 0 {
		return -1, rule(verb, driver.ErrInvalid, "a read-only share must be mapped before its first export, or nobody could ever write it")
	}
	mode := unix.O_RDWR
	if readOnly || !x.writable {
		mode = unix.O_RDONLY
	}
	fd, err := reopen(m.fd, mode)
	if err != nil {
		return -1, d.fail("open", driver.ErrOutOfMemory, err)
	}
	if readOnly && x.writable && !m.sealed {
		if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
			_ = unix.Close(fd)
			return -1, d.fail("fcntl(F_ADD_SEALS)", driver.ErrOutOfMemory, err)
		}
		m.sealed = true
	}
	m.exported = true
	return fd, nil
}

// reopen makes a descriptor with a description of its own, so that it can have
// other rights than fd and be told apart from it.
func reopen(fd, mode int) (int, error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), mode|unix.O_CLOEXEC, 0)
}

// Import makes a handle of a sealed memory file, one that cannot be exported
// again, as on the card. What was created here is found again and not counted
// twice; what another process created is counted there.
func (d *Driver) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	const verb = "Import"
	u, err := d.home(verb, p)
	if err != nil {
		return 0, err
	}
	if err := d.whole(verb, 0, size); err != nil {
		return 0, err
	}
	st, writable, err := d.inspect(verb, fd)
	if err != nil {
		return 0, err
	}
	d.mem.Lock()
	defer d.unlock()
	if m := d.created[inode{uint64(st.Dev), st.Ino}]; m != nil {
		d.adopt(m)
		return d.newHandle(m, size, 0, writable), nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, d.fail("fcntl(F_DUPFD_CLOEXEC)", driver.ErrOutOfMemory, err)
	}
	m := &memory{fd: own, size: uint64(st.Size), home: u}
	m.touched.Store(m.size)
	return d.newHandle(m, size, 0, writable), nil
}

// inspect refuses what is no memory, and what would end the process with
// SIGBUS: a file that can shrink below its mapping, and huge pages, which may
// turn out not to be there when they are touched.
func (d *Driver) inspect(verb string, fd int) (st unix.Stat_t, writable bool, err error) {
	if err := unix.Fstat(fd, &st); err != nil {
		return st, false, d.fail("fstat", driver.ErrInvalid, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return st, false, d.fail("fstatfs", driver.ErrInvalid, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.TMPFS_MAGIC {
		return st, false, rule(verb, driver.ErrInvalid, "fd %d is not a memory file (mode %#o, file system %#x)", fd, st.Mode, fs.Type)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return st, false, d.fail("fcntl(F_GET_SEALS)", driver.ErrInvalid, err)
	}
	if need := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW; seals&need != need {
		return st, false, rule(verb, driver.ErrInvalid, "fd %d is not sealed against shrinking and growing (seals %#x)", fd, seals)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return st, false, d.fail("fcntl(F_GETFL)", driver.ErrInvalid, err)
	}
	mode := flags & unix.O_ACCMODE
	if mode == unix.O_WRONLY {
		return st, false, rule(verb, driver.ErrInvalid, "fd %d cannot be read", fd)
	}
	return st, mode == unix.O_RDWR && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) == 0, nil
}

// adopt takes m off the orphans if it is one.
func (d *Driver) adopt(m *memory) {
	d.orphans = slices.DeleteFunc(d.orphans, func(o *memory) bool { return o == m })
}

// shared says whether an exported descriptor, or a mapping of one, may be alive
// anywhere: no answer is a yes, because memory that is still in use must not
// count as free.
func (m *memory) shared() bool { return lease(m.fd) != nil }

// lease takes a lease for writing and gives it back. It is granted only on a
// file that nobody else has open, else it is EAGAIN; asking for one is how the
// kernel can be made to tell. Any other error says that it does not tell: that
// leases are switched off, or the process is no longer the file's owner.
func lease(fd int) error {
	if err := takeLease(fd); err != nil {
		return err
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err
}

// takeLease chooses what the kernel sends if somebody opens the file during the
// lease: SIGIO ends a process that does not handle it, SIGURG does nothing. The
// end of a lease forgets the choice.
func takeLease(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETSIG, int(unix.SIGURG)); err != nil {
		return err
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	return err
}

// countable opens a memory file once more, as one that the kernel counts among
// those that have it open and grants leases on. What memfd_create gives is
// neither.
func (d *Driver) countable(fd int) (int, error) {
	counted, err := reopen(fd, unix.O_RDWR)
	if err != nil {
		return -1, d.fail("open", driver.ErrOutOfMemory, err)
	}
	if err := lease(counted); err == unix.EINVAL || err == unix.EACCES {
		_ = unix.Close(counted)
		err = fmt.Errorf("without leases nobody can tell when shared memory is free: %w", err)
		return -1, &driver.CallError{Call: "fcntl(F_SETLEASE)", Kind: driver.ErrNotSupported, Err: err}
	}
	return counted, nil
}

// probe tries what memory files need of the system, and what sharing does.
func (d *Driver) probe(sharing bool) error {
	fd, _, err := d.memfd(d.granularity, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW, sharing)
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	return nil
}
