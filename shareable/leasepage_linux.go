package shareable

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// leasePage is a control page that is to be a writer's in another process. Until seal the
// writer can map it.
type leasePage struct {
	fd       int
	instance [16]byte
	id       uint64
}

// leaseSeals are there before the writer has the page: it can make the file neither
// shorter nor longer.
const leaseSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// newLeasePage makes a page that shows length bytes.
func newLeasePage(instance [16]byte, id, length, generation uint64) (*leasePage, error) {
	fd, err := newPageFile()
	if err != nil {
		return nil, err
	}
	p := &leasePage{fd: fd, instance: instance, id: id}
	mem, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		p.close()
		return nil, systemError("control page: mmap", err)
	}
	page := ownerPage{mem: mem}
	page.initWords(instance, id)
	page.published.Store(length)
	page.queued.Store(length)
	page.generation.Store(generation)
	err = unix.Munmap(mem)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, leaseSeals)
	}
	if err != nil {
		p.close()
		return nil, systemError("control page: munmap, fcntl(F_ADD_SEALS)", err)
	}
	return p, nil
}

// seal ends the mapping for writing, apart from the mappings that exist, and maps the page
// for reading. The writer has had the file: what it has done to it is not trusted.
func (p *leasePage) seal() (*ownerPage, error) {
	if _, err := unix.FcntlInt(uintptr(p.fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("%w: %w", errTampered, err)
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(p.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, systemError("control page: open", err)
	}
	page, err := openForeignPage(fd, p.instance, p.id)
	if err != nil {
		_ = unix.Close(fd)
	}
	if errors.Is(err, ErrProtocol) { // else there is no room for it here
		err = fmt.Errorf("%w: %w", errTampered, err)
	}
	return page, err
}

// openForeignPage maps a page for reading whose words another process writes. It takes fd,
// unless it returns an error.
func openForeignPage(fd int, instance [16]byte, id uint64) (*ownerPage, error) {
	r, err := openReaderPage(fd, instance, id)
	if err != nil {
		return nil, err
	}
	return foreignPage(r, fd), nil
}

// mapForeignPage is openForeignPage, but compares no words.
func mapForeignPage(fd int) (*ownerPage, error) {
	r, err := mapReaderPage(fd)
	if err != nil {
		return nil, err
	}
	return foreignPage(r, fd), nil
}

func foreignPage(r *readerPage, fd int) *ownerPage {
	return &ownerPage{mem: r.b, fd: fd, foreign: r}
}

// close closes the descriptor. The writer keeps its mapping. A nil leasePage is fine.
func (p *leasePage) close() {
	if p != nil {
		_ = unix.Close(p.fd)
	}
}

// OpenWriterPage maps the control page that a store sends to the writer of an object. It does
// not take fd.
func (forStore) OpenWriterPage(fd int, instance [16]byte, object uint64) (serve.WriterPage, error) {
	// The seals come first: an owner that could shrink the file would kill this process
	// with SIGBUS.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: no file in memory: %w", ErrProtocol, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if seals&leaseSeals != leaseSeals || st.Size != pageBytes {
		return nil, fmt.Errorf("%w: control page: seals %#x, %d bytes", ErrProtocol, seals, st.Size)
	}
	b, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("%w: mmap: %w", vmm.ErrLimit, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: control page: mmap: %w", ErrProtocol, err)
	}
	r := readerPage{b: b}
	if err := r.check(instance, object); err != nil {
		return nil, fmt.Errorf("%w: control page: %w", ErrProtocol, closeAfter(err, &r))
	}
	p := &writerPage{ownerPage: ownerPage{mem: b, fd: -1}}
	p.setWords()
	return p, nil
}

// writerPage is a control page in the writer of a store's object.
type writerPage struct {
	ownerPage
	closed atomic.Bool
}

// Queued stores how many bytes are being written.
func (p *writerPage) Queued(n uint64) { raise(p.queued, n) }

// Publish stores how many bytes readers can see.
func (p *writerPage) Publish(n uint64) {
	raise(p.queued, n)
	raise(p.published, n)
}

// raise stores n unless the word is above it.
func raise(w *atomic.Uint64, n uint64) {
	for {
		old := w.Load()
		if n <= old || w.CompareAndSwap(old, n) {
			return
		}
	}
}

// Beat shows that the writer runs.
func (p *writerPage) Beat() { p.heartbeat.Store(uint64(time.Now().UnixNano())) }

// Close unmaps the page. Nothing may use it any more.
func (p *writerPage) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	return unix.Munmap(p.mem)
}

// errTampered is that a writer has changed what protects its control page.
var errTampered = &wire.ProtocolError{What: "the control page cannot be sealed"}
