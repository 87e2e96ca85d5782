package shareable

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// client is a client's end of its connections to a store, of which there is one at a time. A
// goroutine reads it, for which no call waits: see readerConn. If a server ends that another one
// replaces, the client connects again and sends the requests again that have no reply:
// the server knows those that it has done by their numbers.
type client struct {
	// Immutable.
	path    string         // of the socket; empty: it does not connect again
	token   [16]byte       // by which servers know the client
	hello   wire.Hello     // the owner's
	on      serve.Notified // what it tells
	ended   chan struct{}
	context context.Context // ends with the client
	cancel  context.CancelFunc

	sending sync.Mutex // before mu: requests are written in the order of their numbers

	// Guarded by mu.
	mu      sync.Mutex
	h       *handshake       // the connection, or the last one
	last    uint32           // the number of the last request
	calls   map[uint32]*call // by number
	times   int              // how often it has connected again
	err     error            // why it has ended
	isEnded bool
}

// call is a request that waits for its reply.
type call struct {
	t       wire.Type
	payload []byte
	reply   wire.Type
	done    func(wire.Frame) error
	err     chan error // of capacity 1
}

var _ serve.Client = (*client)(nil)

// Dial connects to the store at path. The errors are those of Attach.
func (forStore) Dial(ctx context.Context, path string, dev *vmm.Device, o AttachOptions, on serve.Notified) (serve.Client, error) {
	var c serve.Client
	err := connectFirst(ctx, firstTries, func() error {
		h, err := openHandshake(ctx, path, dev, o)
		if err == nil {
			c, err = startClient(ctx, h, path, on)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialConn is Dial over an existing connection, which it takes over. It does not connect again.
func (forStore) DialConn(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions, on serve.Notified) (serve.Client, error) {
	h, err := openHandshakeOn(ctx, conn, dev, o)
	if err != nil {
		return nil, err
	}
	return startClient(ctx, h, "", on)
}

func startClient(ctx context.Context, h *handshake, path string, on serve.Notified) (serve.Client, error) {
	c := &client{path: path, h: h, on: on, calls: map[uint32]*call{}, ended: make(chan struct{})}
	_, _ = rand.Read(c.token[:]) // it never fails
	c.context, c.cancel = context.WithCancel(context.Background())
	err := h.c.start(ctx, func() error {
		err := h.exchangeHello()
		if err == nil {
			c.hello = h.peer
			err = c.introduce(h)
		}
		return err
	}, func() { c.follow(h) })
	if err != nil {
		c.cancel()
		return nil, err
	}
	return c, nil
}

// introduce tells a server that continues with what others had who the client is.
func (c *client) introduce(h *handshake) error {
	if !isKept(c.hello, c.path) {
		return nil
	}
	return h.write(wire.TypeResume, 0, wire.Resume{Token: c.token}.Append(nil))
}

// Hello is the owner's.
func (c *client) Hello() wire.Hello { return c.hello }

// Times is how often the client has connected again.
func (c *client) Times() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.times
}

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
func (c *client) end(cause error) {
	c.mu.Lock()
	if c.isEnded {
		c.mu.Unlock()
		return
	}
	c.isEnded, c.err = true, cause
	calls, h := c.calls, c.h
	c.calls = nil
	close(c.ended)
	c.mu.Unlock()
	c.cancel()
	h.c.end()
	for _, x := range calls {
		x.err <- cause
	}
}

// follow handles the owner's frames until a connection ends.
func (c *client) follow(h *handshake) {
	for {
		f, err := h.c.conn.Read()
		if errors.Is(err, wire.ErrTruncated) && f.Request != 0 { // the reply is lost, and not the connection
			c.fail(f.Request, wireError(err))
			continue
		}
		if disconnected(err) && isKept(c.hello, c.path) {
			go c.connectAgain(h)
			return
		}
		if err != nil {
			c.end(h.connError(err))
			return
		}
		err = h.c.work(func() error { return c.handle(f) })
		if errors.Is(err, errEnded) {
			return
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// connectAgain continues with another connection.
func (c *client) connectAgain(before *handshake) {
	err := reconnect(c.context, c.path, before.dev, before.opts, c.hello.Instance, &shortage{limit: againTime}, c.resume, c.follow)
	if err != nil {
		c.end(err)
	} else if f := c.on.Again; f != nil {
		f()
	}
}

// resume has a new connection take the place of the last one, and sends again what has no reply.
func (c *client) resume(h *handshake) error {
	if err := c.introduce(h); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isEnded {
		return c.err
	}
	for _, n := range slices.Sorted(maps.Keys(c.calls)) {
		if err := h.write(c.calls[n].t, n, c.calls[n].payload); err != nil {
			return err
		}
	}
	c.h = h
	c.times++
	return nil
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
		return c.on.Event(f)
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
	c.sending.Lock() // in the order of the numbers
	x := &call{t: t, payload: payload, reply: reply, done: done, err: make(chan error, 1)}
	request, err := c.send(x)
	c.sending.Unlock()
	if err != nil {
		return err
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

// send numbers a request and sends it. Requires sending.
func (c *client) send(x *call) (request uint32, err error) {
	c.mu.Lock()
	switch {
	case c.isEnded:
		err = c.err
	case c.last == math.MaxUint32:
		err = fmt.Errorf("%w: the connection has no more numbers for requests", vmm.ErrLimit)
	}
	if err != nil {
		c.mu.Unlock()
		return 0, err
	}
	c.last++
	request = c.last
	c.calls[request] = x
	h := c.h // what is in calls is sent again over the next one
	c.mu.Unlock()
	if err := c.write(h, x.t, request, x.payload); err != nil {
		_ = c.writeFailed(h, err) // it is what the call returns, unless the owner has said why
	}
	return request, nil
}

// Send sends a frame that has no reply, and that is not sent again.
func (c *client) Send(t wire.Type, payload []byte) error {
	c.mu.Lock()
	h, err := c.h, c.err
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.write(h, t, 0, payload); err != nil {
		err = c.writeFailed(h, err)
		if isKept(c.hello, c.path) && errors.Is(err, ErrOwnerGone) {
			return c.Err()
		}
		return cmp.Or(c.Err(), err)
	}
	return nil
}

// writeFailed ends the connection, unless the owner has closed it: then what it sent before
// says why, and follow reads that.
func (c *client) writeFailed(h *handshake, err error) error {
	err = h.connError(err)
	if !errors.Is(err, ErrOwnerGone) {
		c.end(err)
	}
	return err
}

func (c *client) write(h *handshake, t wire.Type, request uint32, payload []byte) error {
	if err := h.c.conn.SetWriteDeadline(time.Now().Add(h.opts.Timeout)); err != nil {
		return err
	}
	return h.c.conn.Write(t, request, 0, payload)
}
