package shareable

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
)

// openPage maps the control page behind fd for reading, after checking that it
// cannot be taken away below the mapping, which would end the process, and that
// it is the page of this object. It does not take fd.
func openReaderPage(fd int, instance [16]byte, object uint64) (*readerPage, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("control page: fstat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != pageBytes {
		return nil, fmt.Errorf("%w: control page is a file of mode %#o and %d bytes", ErrProtocol, st.Mode, st.Size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: control page is no memory file: %w", ErrProtocol, err)
	}
	if need := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE; seals&need != need {
		return nil, fmt.Errorf("%w: control page has seals %#x and needs %#x", ErrProtocol, seals, need)
	}
	b, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ, unix.MAP_SHARED)
	switch {
	case errors.Is(err, unix.ENOMEM):
		return nil, fmt.Errorf("%w: control page: mmap: %w", vmm.ErrLimit, err)
	case err != nil:
		return nil, fmt.Errorf("control page: mmap: %w", err)
	}
	p := &readerPage{b: b}
	if err := p.check(instance, object); err != nil {
		return nil, fmt.Errorf("%w: control page: %w", ErrProtocol, closeAfter(err, p))
	}
	return p, nil
}

// close unmaps the page. Nobody may be using it.
func (p *readerPage) close() error {
	if p == nil || p.b == nil {
		return nil
	}
	b := p.b
	p.b = nil
	return unix.Munmap(b)
}
