package shareable

import (
	"context"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Spare is for package store: a connection made ahead of the Attach that will use it. A
// goroutine holds it, which does not read: if the server has ended, Attach finds out.
type Spare struct {
	h      *handshake
	path   string      // of the socket; empty after DialSpareConn
	name   chan string // what to attach to
	result chan error  // of that; of capacity 1
}

// DialSpare is for package store: it connects to the server at path and exchanges HELLO.
// The errors are those of Attach. The caller must Attach or Close the Spare.
func DialSpare(ctx context.Context, path string, dev *vmm.Device, o AttachOptions) (*Spare, error) {
	if ctx == nil {
		return nil, fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, err
	}
	if path, err = socketPath(path); err != nil {
		return nil, err
	}
	conn, err := connect(ctx, path, o)
	if err != nil {
		return nil, err
	}
	return dialSpare(ctx, path, conn, dev, o)
}

// DialSpareConn is DialSpare over an existing connection, which it takes over.
func DialSpareConn(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (*Spare, error) {
	if conn == nil || ctx == nil {
		return nil, fmt.Errorf("%w: no connection, or no context", vmm.ErrInvalid)
	}
	o, err := o.resolve(dev)
	if err != nil {
		closeLater(conn)
		return nil, err
	}
	return dialSpare(ctx, "", conn, dev, o)
}

// dialSpare takes over conn. The options are resolved.
func dialSpare(ctx context.Context, path string, conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (*Spare, error) {
	if err := leftBehind.admit(ctx, o.Timeout); err != nil {
		closeLater(conn)
		return nil, err
	}
	h, err := newHandshake(conn, dev, o)
	if err != nil {
		return nil, err
	}
	s := &Spare{h: h, path: path, name: make(chan string), result: make(chan error, 1)}
	if err := h.c.start(ctx, h.exchangeHello, s.serve); err != nil {
		return nil, err
	}
	return s, nil
}

// serve waits for Attach, and then is the goroutine of the View.
func (s *Spare) serve() {
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
// If it returns ErrOwnerGone, a new connection may do better. It ends the Spare.
func (s *Spare) Attach(ctx context.Context, name string, unsealed, write bool) (*View, error) {
	if err := wire.CheckName(name); err != nil {
		s.Close()
		return nil, attachFail(name, fmt.Errorf("%w: %w", vmm.ErrInvalid, err))
	}
	s.h.opts.Unsealed, s.h.opts.Write = unsealed, write
	select {
	case s.name <- name:
	case <-s.h.c.ended:
		return nil, attachFail(name, errViewClosed)
	}
	v, err := s.h.result(s.h.c.await(ctx, s.result))
	if err != nil {
		return nil, attachFail(name, err)
	}
	v.path = s.path
	return v, nil
}

// Close ends the connection. It never waits.
func (s *Spare) Close() { s.h.c.end() }
