package shareable

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// page is an object's control page on the owner's side: words that readers see
// without asking. Each changes by one atomic store, so there is no moment in
// which a killed owner leaves something half done.
type ownerPage struct {
	mem []byte
	fd  int // for readers; nobody can write through it

	queued, done, generation, state, heartbeat *atomic.Uint64
	wake                                       *atomic.Uint32
}

// newPage makes a page that is sealed against all writers but this mapping.
func newOwnerPage(instance [16]byte, id uint64) (*ownerPage, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("cuvmm-control", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3
		fd, err = unix.MemfdCreate("cuvmm-control", flags)
	}
	if err != nil {
		return nil, systemError("memfd_create", err)
	}
	defer unix.Close(fd) //nolint:errcheck // the mapping holds the memory
	if err := unix.Ftruncate(fd, pageBytes); err != nil {
		return nil, systemError("ftruncate", err)
	}
	mem, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, systemError("mmap", err)
	}
	p := &ownerPage{mem: mem}
	p.init(instance, id)
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Munmap(mem)
		return nil, systemError("fcntl(F_ADD_SEALS)", err)
	}
	if p.fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		_ = unix.Munmap(mem)
		return nil, systemError("open", err)
	}
	return p, nil
}

// ring wakes readers that wait for the page to change.
func (p *ownerPage) notify() {
	p.wake.Add(1)
	futexWakeAll(p.mem)
}

func (p *ownerPage) close() {
	_ = unix.Close(p.fd)
	_ = unix.Munmap(p.mem)
}

// systemError is what a system call of our own answered, as drivers say it.
func systemError(call string, err error) error {
	kind := driver.ErrOutOfMemory
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		kind = driver.ErrLimit
	}
	return fmt.Errorf("control page: %w", &driver.CallError{Call: call, Kind: kind, Err: err})
}

// dup gives a descriptor of the same file that the caller has to close.
func dup(fd int) (int, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, systemError("fcntl(F_DUPFD_CLOEXEC)", err)
	}
	return own, nil
}
