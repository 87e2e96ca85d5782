package shareable

import (
	"context"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// spare is a connection made ahead of the Attach that will use it. A goroutine holds it, which does
// not read: if the server has ended, Attach finds out.
type spare struct {
	h      *handshake
	name   chan string // what to attach to
	result chan error  // of that; of capacity 1
}

// DialSpare connects to the server at path and exchanges HELLO. The errors are those of Attach. The
// caller must Attach or Close what it returns.
func (forStore) DialSpare(ctx context.Context, path string, dev *vmm.Device, o AttachOptions) (serve.Spare[*View], error) {
	path, err := socket.Path(path)
	if err != nil {
		return nil, err
	}
	h, err := openHandshake(ctx, path, dev, o)
	if err != nil {
		return nil, err
	}
	return startSpare(ctx, h)
}

// DialSpareConn is DialSpare over an existing connection, which it takes over.
func (forStore) DialSpareConn(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (serve.Spare[*View], error) {
	h, err := openHandshakeOn(ctx, conn, dev, o)
	if err != nil {
		return nil, err
	}
	return startSpare(ctx, h)
}

func startSpare(ctx context.Context, h *handshake) (serve.Spare[*View], error) {
	s := &spare{h: h, name: make(chan string), result: make(chan error, 1)}
	if err := h.c.start(ctx, h.exchangeHello, s.serve); err != nil {
		return nil, err
	}
	return s, nil
}

// serve waits for Attach, and then is the goroutine of the View.
func (s *spare) serve() {
	select {
	case name := <-s.name:
		err := s.h.askObject(name)
		if err == nil {
			err = s.h.takeObject(name)
		}
		s.result <- err
		if err == nil {
			s.h.view.follow()
		}
	case <-s.h.c.ended:
	}
}

// Attach is as the Attach of this package, with AttachOptions.Unsealed and Write as given.
// If it returns ErrOwnerGone, a new connection may do better. It ends the spare.
func (s *spare) Attach(ctx context.Context, name string, unsealed, write bool) (_ *View, err error) {
	defer errtext.Wrapf(&err, "attach to %q", name)
	if err := wire.CheckName(name); err != nil {
		s.Close()
		return nil, fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	s.h.opts.Unsealed, s.h.opts.Write = unsealed, write
	select {
	case s.name <- name:
	case <-s.h.c.ended:
		return nil, errViewClosed
	}
	return s.h.result(s.h.c.await(ctx, s.result))
}

// Close ends the connection. It never waits.
func (s *spare) Close() { s.h.c.end() }
