package shareable

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// wakePage is a page with one word, a futex on which one reader sleeps. Each connection
// has a page of its own, which only the owner can write: whoever can map a futex, also
// for reading only, can wake or move the threads that sleep on it.
type wakePage struct {
	mem []byte
	fd  int // in the owner: for the reader, opened for reading only
}

// newWakePage makes the page in the owner.
func newWakePage() (*wakePage, error) {
	mem, fd, err := newSharedPage("cuvmm-wake")
	if err != nil {
		return nil, err
	}
	p := &wakePage{mem: mem, fd: fd}
	p.word().Store(0) // allocates the page: later that could fail, with SIGBUS
	return p, nil
}

// openWakePage maps the page in the reader. It does not take fd.
func openWakePage(fd int) (*wakePage, error) {
	mem, err := mapSharedPage(fd)
	if err != nil {
		return nil, fmt.Errorf("wake page: %w", err)
	}
	return &wakePage{mem: mem, fd: -1}, nil
}

// close unmaps the page. Nothing may use it any more. A nil page is fine.
func (p *wakePage) close() {
	if p == nil {
		return
	}
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
	}
	_ = unix.Munmap(p.mem)
}
