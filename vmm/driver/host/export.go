//go:build linux

package host

import (
	"fmt"
	"strconv"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// Export returns a duplicate of the memory's second opening. Memory that is shared
// read-only is opened for reading. At its first export it is sealed too, so that the
// descriptor cannot be reopened for writing; only mappings that exist by then stay
// writable.
func (d *Driver) Export(h driver.Handle) (int, error) {
	const verb = "Export"
	d.memMu.Lock()
	defer d.unlockAndClose()
	x, err := d.handle(verb, h)
	if err != nil {
		return -1, err
	}
	m := x.memory
	if _, err := d.state(verb, m.state.ordinal); err != nil {
		return -1, err
	}
	if x.share&driver.ShareFD == 0 {
		return -1, refuse(verb, driver.ErrInvalid, "imported, or created without a way to share")
	}
	if m.export < 0 {
		readOnly := x.share&driver.ShareReadOnly != 0
		if readOnly && m.mapped == 0 {
			return -1, refuse(verb, driver.ErrInvalid, "a read-only share must be mapped before its first export, or no process could ever write it")
		}
		if err := d.openExport(m, readOnly); err != nil {
			return -1, err
		}
	}
	fd, err := unix.FcntlInt(uintptr(m.export), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, d.fail("fcntl(F_DUPFD_CLOEXEC)", driver.ErrOutOfMemory, err)
	}
	return fd, nil
}

// openExport opens the memory for all exports to come. Once another process has a
// descriptor the owner may not be able to: with fchmod, any process of its user can
// take the right away.
func (d *Driver) openExport(m *memory, readOnly bool) error {
	// An importer can open the file again with the rights of the descriptor at most.
	mode := unix.O_RDWR
	if readOnly {
		mode = unix.O_RDONLY
	}
	fd, err := reopen(m.fd, mode)
	if err != nil {
		return d.fail("open", driver.ErrOutOfMemory, err)
	}
	if readOnly {
		if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
			_ = unix.Close(fd)
			return d.fail("fcntl(F_ADD_SEALS)", driver.ErrOutOfMemory, err)
		}
		m.sealed = true
	}
	m.export, m.exported = fd, true
	return nil
}

// reopen opens the file of fd again. The new descriptor can have other rights than
// fd, and the kernel counts it as another opening.
func reopen(fd, mode int) (int, error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), mode|unix.O_CLOEXEC, 0)
}

// Import makes a handle of a sealed memory file. As on the card, the handle cannot
// be exported. Memory that was created here is found again and not counted twice;
// memory of another process is counted there.
func (d *Driver) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	const verb = "Import"
	u, err := d.stateFor(verb, p)
	if err != nil {
		return 0, err
	}
	if err := d.checkSpan(verb, 0, size); err != nil {
		return 0, err
	}
	st, writable, err := d.inspect(verb, fd)
	if err != nil {
		return 0, err
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	// Memory of this Driver has a count, a location and a device already.
	if m := d.created[inode{uint64(st.Dev), st.Ino}]; m != nil {
		d.unorphan(m)
		return d.newHandle(m, size, 0, writable), nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, d.fail("fcntl(F_DUPFD_CLOEXEC)", driver.ErrOutOfMemory, err)
	}
	m := &memory{fd: own, export: -1, size: uint64(st.Size), state: u}
	m.touched.Store(m.size)
	return d.newHandle(m, size, 0, writable), nil
}

// inspect refuses a descriptor of anything else than memory, and memory that could
// end the process with SIGBUS: a file that can shrink below its mapping, and huge
// pages, which may be missing when they are touched.
func (d *Driver) inspect(verb string, fd int) (st unix.Stat_t, writable bool, err error) {
	// The seals first: the kernel itself knows that only a memory file has some. Any
	// other question may go to the file's file system, which can be a daemon that does
	// not reply.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return st, false, d.fail("fcntl(F_GET_SEALS)", driver.ErrInvalid, err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return st, false, d.fail("fstat", driver.ErrInvalid, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return st, false, d.fail("fstatfs", driver.ErrInvalid, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.TMPFS_MAGIC {
		return st, false, refuse(verb, driver.ErrInvalid, "fd %d is not a memory file (mode %#o, file system %#x)", fd, st.Mode, fs.Type)
	}
	// Without these seals the file could become smaller than its mappings.
	if need := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW; seals&need != need {
		return st, false, refuse(verb, driver.ErrInvalid, "fd %d is not sealed against shrinking and growing (seals %#x)", fd, seals)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return st, false, d.fail("fcntl(F_GETFL)", driver.ErrInvalid, err)
	}
	mode := flags & unix.O_ACCMODE
	if mode == unix.O_WRONLY {
		return st, false, refuse(verb, driver.ErrInvalid, "fd %d cannot be read", fd)
	}
	return st, mode == unix.O_RDWR && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) == 0, nil
}

// countable opens a memory file once more, as a descriptor that the kernel counts as
// an opening and grants leases on. That of memfd_create is neither.
func (d *Driver) countable(fd int) (int, error) {
	counted, err := reopen(fd, unix.O_RDWR)
	if err != nil {
		return -1, d.fail("open", driver.ErrOutOfMemory, err)
	}
	if err := lease(counted); err == unix.EINVAL || err == unix.EACCES {
		_ = unix.Close(counted)
		err = fmt.Errorf("without leases there is no way to know when shared memory is free: %w", err)
		return -1, &driver.CallError{Call: "fcntl(F_SETLEASE)", Kind: driver.ErrNotSupported, Err: err}
	}
	return counted, nil
}

// probe tries whether the system has what memory files need: these seals besides the
// usual ones, and sharing.
func (d *Driver) probe(seals int, sharing bool) error {
	fd, _, err := d.memfd(d.granularity, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|seals, sharing)
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	return nil
}
