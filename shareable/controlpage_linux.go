package shareable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// ownerPage is an object's control page in the owner: words that readers load
// without a request. Each changes by one atomic store, so an owner that is killed
// leaves none half written.
type ownerPage struct {
	mem     []byte
	fd      int         // for readers: opened for reading only
	foreign *readerPage // the same page, if another process writes the words; nil: this one does

	queued, published, generation, state, heartbeat *atomic.Uint64 // nil of a foreign page
}

// begun is how many bytes are done or being written.
func (p *ownerPage) begun() uint64 {
	if p.foreign != nil {
		return p.foreign.queued()
	}
	return p.queued.Load()
}

// newOwnerPage makes a page that only this mapping can write.
func newOwnerPage(instance [16]byte, id uint64) (*ownerPage, error) {
	mem, fd, err := newSharedPage()
	if err != nil {
		return nil, err
	}
	p := &ownerPage{mem: mem, fd: fd}
	p.initWords(instance, id)
	return p, nil
}

// pageSeals protect a page that only the mappings that exist can write.
const pageSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// newSharedPage maps a page of zeros that only this mapping can write, and returns a
// descriptor of it for readers.
func newSharedPage() (mem []byte, fd int, err error) {
	own, err := newPageFile()
	if err != nil {
		return nil, -1, err
	}
	defer unix.Close(own) //nolint:errcheck // the mapping holds the memory
	mem, err = unix.Mmap(own, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, -1, systemError("control page: mmap", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Munmap(mem)
		}
	}()
	// F_SEAL_FUTURE_WRITE comes after the mapping: it spares writable mappings that
	// exist. F_SEAL_SHRINK protects readers from SIGBUS.
	if _, err := unix.FcntlInt(uintptr(own), unix.F_ADD_SEALS, pageSeals); err != nil {
		return nil, -1, systemError("control page: fcntl(F_ADD_SEALS)", err)
	}
	// Readers get a descriptor of their own, opened for reading.
	if fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(own), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, -1, systemError("control page: open", err)
	}
	return mem, fd, nil
}

// newFinalPage makes a page that never changes, and returns a descriptor of it for a reader.
// It is written before it is sealed and mapped nowhere, so nothing can write to it: a new
// opening for reading is not needed, nor a mapping, whose end costs every thread.
func newFinalPage(instance [16]byte, id, length, generation uint64) (fd int, err error) {
	fd, err = newPageFile()
	if err != nil {
		return -1, err
	}
	b := make([]byte, atHeartbeat+8) // the rest is zeros
	p := ownerPage{mem: b}
	p.initWords(instance, id)
	p.published.Store(length)
	p.queued.Store(length)
	p.generation.Store(generation)
	_, err = unix.Pwrite(fd, b, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, pageSeals)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, systemError("control page: pwrite, fcntl(F_ADD_SEALS)", err)
	}
	return fd, nil
}

func (p *ownerPage) close() {
	_ = unix.Close(p.fd)
	_ = unix.Munmap(p.mem)
}

// newPageFile makes a file in memory of a page of zeros, without seals.
func newPageFile() (fd int, err error) {
	const name, flags = "cuvmm-control", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // a kernel before 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, systemError("control page: memfd_create", err)
	}
	if err := unix.Ftruncate(fd, pageBytes); err != nil {
		_ = unix.Close(fd)
		return -1, systemError("control page: ftruncate", err)
	}
	return fd, nil
}

// systemError makes a driver.CallError of a failed system call of the owner's side.
func systemError(call string, err error) error {
	kind := driver.ErrInvalid // it breaks one of the kernel's rules
	var errno unix.Errno
	errors.As(err, &errno)
	switch errno {
	case unix.EMFILE, unix.ENFILE:
		kind = driver.ErrLimit
	case unix.EFBIG:
		kind = driver.ErrLimit
		err = fmt.Errorf("RLIMIT_FSIZE allows no file of %d bytes: %w", pageBytes, err)
	case unix.ENOMEM, unix.ENOSPC, unix.EDQUOT, unix.ENOBUFS:
		kind = driver.ErrOutOfMemory
	case unix.EPERM, unix.EACCES:
		kind = driver.ErrPermission
	case unix.ENOSYS:
		kind = driver.ErrNotSupported
	case unix.ENOENT: // only files of /proc/self/fd are opened
		kind = driver.ErrNotSupported
		err = fmt.Errorf("/proc is not mounted: %w", err)
	}
	return &driver.CallError{Call: call, Kind: kind, Err: err}
}

// The control page: one word for each thing that changes, each on a cache line
// of its own, all little-endian. docs/reference/protocol.md says how to read it.
const (
	pageBytes   = 4096
	pageMagic   = 0x50565543 // "CUVP"
	pageVersion = 1

	atMagic      = 0
	atVersion    = 4
	atInstance   = 8
	atObject     = 24
	atQueued     = 64
	atDone       = 128
	atGeneration = 192
	atState      = 256
	atHeartbeat  = 320
)

// readerPage is another process's control page, mapped for reading. That process
// can store anything to it at any time. So a loaded value is only compared, or limited to what
// is mapped here, and each decision is made of one load of a word.
type readerPage struct {
	b      []byte
	loaded func(at int) // of tests: called after each load of a word that changes
}

func (p *readerPage) queued() uint64 { return p.load(atQueued) }

func (p *readerPage) published() uint64 { return p.load(atDone) }

func (p *readerPage) generation() uint64 { return p.load(atGeneration) }

func (p *readerPage) heartbeat() uint64 { return p.load(atHeartbeat) }

func (p *readerPage) load(at int) uint64 {
	n := word(p.b, at).Load()
	if p.loaded != nil {
		p.loaded(at)
	}
	return n
}

// check checks the words that never change.
func (p *readerPage) check(instance [16]byte, object uint64) error {
	head := p.b[:atObject+8]
	magic, version := binary.LittleEndian.Uint32(head[atMagic:]), binary.LittleEndian.Uint32(head[atVersion:])
	id := binary.LittleEndian.Uint64(head[atObject:])
	b := [16]byte(head[atInstance:])
	switch {
	case magic != pageMagic:
		return fmt.Errorf("magic %#x instead of %#x", magic, uint32(pageMagic))
	case version != pageVersion:
		return fmt.Errorf("version %d instead of %d", version, pageVersion)
	case b != instance || id != object:
		return fmt.Errorf("object %d of instance %x instead of object %d of %x", id, b, object, instance)
	}
	return nil
}

// closeAfter unmaps the page after err, and returns err with what the unmapping
// adds.
func closeAfter(err error, p *readerPage) error {
	if second := p.close(); second != nil {
		return fmt.Errorf("%w; then munmap: %w", err, second)
	}
	return err
}

// openReaderPage maps the control page behind fd for reading, and checks that it is
// the page of this object. It does not take fd.
func openReaderPage(fd int, instance [16]byte, object uint64) (*readerPage, error) {
	p, err := mapReaderPage(fd)
	if err != nil {
		return nil, err
	}
	if err := p.check(instance, object); err != nil {
		return nil, fmt.Errorf("%w: control page: %w", ErrProtocol, closeAfter(err, p))
	}
	return p, nil
}

// mapReaderPage is openReaderPage without the check of the words.
//
// The seals come first: an owner that could shrink the file would kill this process
// with SIGBUS. Only a file in memory has seals, so fstat does not wait for a daemon.
func mapReaderPage(fd int) (_ *readerPage, err error) {
	defer errtext.Wrapf(&err, "control page")
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: no file in memory: %w", ErrProtocol, err)
	}
	if need := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE; seals&need != need {
		return nil, fmt.Errorf("%w: seals %#x instead of %#x", ErrProtocol, seals, need)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if st.Size != pageBytes {
		return nil, fmt.Errorf("%w: %d bytes instead of %d", ErrProtocol, st.Size, pageBytes)
	}
	b, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ, unix.MAP_SHARED)
	if errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("%w: mmap: %w", vmm.ErrLimit, err)
	}
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return &readerPage{b: b}, nil
}

// close unmaps the page. Nothing may use it any more.
func (p *readerPage) close() error {
	if p == nil || p.b == nil {
		return nil
	}
	b := p.b
	p.b = nil
	return unix.Munmap(b)
}
