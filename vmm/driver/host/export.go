//go:build linux

package host

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// Export opens the memory once more. A read-only share is opened for reading. At its
// first export it is sealed too, so that the descriptor cannot be reopened for
// writing; only mappings that exist by then stay writable.
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
	readOnly := x.share&driver.ShareReadOnly != 0
	if readOnly && x.writable && !m.sealed && m.mapped == 0 {
		return -1, refuse(verb, driver.ErrInvalid, "a read-only share must be mapped before its first export, or no process could ever write it")
	}
	// An importer can open the file again with the rights of the descriptor at most.
	mode := unix.O_RDWR
	if readOnly || !x.writable {
		mode = unix.O_RDONLY
	}
	fd, err := reopen(m.fd, mode)
	if err == unix.EACCES {
		fd, err = reopenDenied(m.fd, mode)
	}
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

// reopen opens the file of fd again. The new descriptor can have other rights than
// fd, and the kernel counts it as another opening.
func reopen(fd, mode int) (int, error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), mode|unix.O_CLOEXEC, 0)
}

// reopenDenied is reopen where the system has returned EACCES: no seal keeps another
// process of the same user, which has a descriptor, from taking all rights to the file
// away with fchmod. So this process gives them back.
func reopenDenied(fd, mode int) (int, error) {
	// The other process may take them away again before the file is open. A second
	// thread here is as fast, so of many tries some find them given.
	const tries = 10_000
	var stop atomic.Bool
	var second sync.WaitGroup
	second.Go(func() {
		for !stop.Load() && unix.Fchmod(fd, 0o600) == nil {
		}
	})
	defer second.Wait()
	defer stop.Store(true)
	for range tries {
		if err := unix.Fchmod(fd, 0o600); err != nil {
			return -1, unix.EACCES // the file is another user's, or was made as one
		}
		again, err := reopen(fd, mode)
		if err != unix.EACCES {
			return again, err
		}
	}
	return -1, unix.EACCES
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
		return d.newHandle(handle{memory: m, size: size, writable: writable}), nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, d.fail("fcntl(F_DUPFD_CLOEXEC)", driver.ErrOutOfMemory, err)
	}
	m := &memory{fd: own, size: uint64(st.Size), state: u}
	m.touched.Store(m.size)
	return d.newHandle(handle{memory: m, size: size, writable: writable}), nil
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
func (d *Driver) probe(seals int, share driver.Share) error {
	fd, _, err := d.memfd(d.granularity, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|seals, share)
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	return nil
}
