package shareable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// client is a client's end of a connection to a store. A goroutine reads it, for which no
// call waits: see readerConn.
type client struct {
	// Immutable.
	h     *handshake
	event func(wire.Frame) error

	// Guarded by mu.
	mu      sync.Mutex
	last    uint32           // the number of the last request
	calls   map[uint32]*call // by number
	err     error            // why the connection has ended
	isEnded bool
	ended   chan struct{}
}

// call is a request that waits for its reply.
type call struct {
	reply wire.Type
	done  func(wire.Frame) error
	err   chan error // of capacity 1
}

var _ serve.Client = (*client)(nil)

// Dial is for package store: it connects to the store at path. event is called for each
// frame that no request asked for, in the goroutine that reads; its error ends the
// connection. The errors are those of Attach.
func Dial(ctx context.Context, path string, dev *vmm.Device, o AttachOptions, event func(wire.Frame) error) (serve.Client, error) {
	h, err := openHandshake(ctx, path, dev, o)
	if err != nil {
		return nil, err
	}
	return startClient(ctx, h, event)
}

// DialConn is Dial over an existing connection, which it takes over.
func DialConn(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions, event func(wire.Frame) error) (serve.Client, error) {
	h, err := openHandshakeOn(ctx, conn, dev, o)
	if err != nil {
		return nil, err
	}
	return startClient(ctx, h, event)
}

func startClient(ctx context.Context, h *handshake, event func(wire.Frame) error) (serve.Client, error) {
	c := &client{h: h, event: event, calls: map[uint32]*call{}, ended: make(chan struct{})}
	if err := h.c.start(ctx, h.exchangeHello, c.follow); err != nil {
		return nil, err
	}
	return c, nil
}

// Hello is the owner's.
func (c *client) Hello() wire.Hello { return c.h.peer }

// Ended is closed when the connection has ended.
func (c *client) Ended() <-chan struct{} { return c.ended }

// Err returns why the connection has ended; nil while it has not.
func (c *client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection.
func (c *client) Close() { c.end(fmt.Errorf("%w: connection", vmm.ErrClosed)) }

// end ends the connection and all calls, unless it has ended before.
func (c *client) end(why error) {
	c.mu.Lock()
	if c.isEnded {
		c.mu.Unlock()
		return
	}
	c.isEnded, c.err = true, why
	calls := c.calls
	c.calls = nil
	close(c.ended)
	c.mu.Unlock()
	c.h.c.end()
	for _, x := range calls {
		x.err <- why
	}
}

// follow handles the owner's frames until the connection ends.
func (c *client) follow() {
	for {
		f, err := c.h.c.conn.Read()
		if errors.Is(err, wire.ErrTruncated) && f.Request != 0 { // the reply is lost, and not the connection
			c.fail(f.Request, wireError(err))
			continue
		}
		if err != nil {
			c.end(c.h.connError(err))
			return
		}
		err = c.h.c.work(func() error { return c.handle(f) })
		if errors.Is(err, errEnded) {
			return
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// fail ends a call.
func (c *client) fail(request uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.calls[request]; x != nil {
		delete(c.calls, request)
		x.err <- err
	}
}

// handle handles one frame. An error ends the connection.
func (c *client) handle(f wire.Frame) error {
	if f.Request == 0 {
		switch f.Type {
		case wire.TypeClosing:
			return fmt.Errorf("%w: it is closing down", ErrOwnerGone)
		case wire.TypeError:
			return c.refusal(f)
		}
		return c.event(f)
	}
	c.mu.Lock()
	x := c.calls[f.Request]
	delete(c.calls, f.Request)
	c.mu.Unlock()
	switch {
	case x == nil: // its context has ended
		return nil
	case f.Type == wire.TypeError:
		x.err <- c.refusal(f)
		return nil
	case f.Type != x.reply:
		err := fmt.Errorf("%w: %v instead of %v", ErrProtocol, f.Type, x.reply)
		x.err <- err
		return err
	}
	x.err <- x.done(f)
	return nil
}

func (c *client) refusal(f wire.Frame) error {
	e, err := wire.DecodeError(f.Payload)
	if err != nil {
		return wireError(err)
	}
	return peerError(e)
}

// Call sends a request and handles its reply.
func (c *client) Call(ctx context.Context, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) error {
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	x := &call{reply: reply, done: done, err: make(chan error, 1)}
	c.mu.Lock()
	if c.isEnded {
		defer c.mu.Unlock()
		return c.err
	}
	if c.last++; c.last == 0 {
		c.last++
	}
	request := c.last
	c.calls[request] = x
	c.mu.Unlock()
	if err := c.write(t, request, payload); err != nil {
		_ = c.writeFailed(err) // it is what the call returns, unless the owner has said why
	}
	select {
	case err := <-x.err:
		return err
	case <-ctx.Done():
	}
	// The reply may be handled now: then its outcome counts.
	c.mu.Lock()
	_, waits := c.calls[request]
	delete(c.calls, request)
	c.mu.Unlock()
	if waits {
		return ctx.Err()
	}
	return <-x.err
}

// Send sends a frame that has no reply.
func (c *client) Send(t wire.Type, payload []byte) error {
	if err := c.Err(); err != nil {
		return err
	}
	if err := c.write(t, 0, payload); err != nil {
		err = c.writeFailed(err)
		return cmp.Or(c.Err(), err)
	}
	return nil
}

// writeFailed ends the connection, unless the owner has closed it: then what it sent before
// says why, and follow reads that.
func (c *client) writeFailed(err error) error {
	err = c.h.connError(err)
	if !errors.Is(err, ErrOwnerGone) {
		c.end(err)
	}
	return err
}

func (c *client) write(t wire.Type, request uint32, payload []byte) error {
	if err := c.h.c.conn.SetWriteDeadline(time.Now().Add(c.h.opts.Timeout)); err != nil {
		return err
	}
	return c.h.c.conn.Write(t, request, 0, payload)
}
