package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// sharing is what package shareable does for this one alone.
var sharing = door.Through[serve.Sharing[*shareable.Server, *shareable.View, shareable.Options, shareable.AttachOptions]]()

// Client makes objects in a store and gets them. Requests share one connection. If a server ends
// that a Keeper has started, Clients, Writers, Views and Watches connect to the next one by
// themselves and go on, and a request that has no reply is done once. Any other that has ended is
// another store when it is started again: the next request connects to that, and Instance tells the
// two apart. Each Writer and each View has a connection of its own, and needs neither that of the
// Client nor an open Client. For a moment after each Get a Client has one more, for the next.
//
// Wherever a call takes a name, an ID as text will do. The errors are those of package shareable:
// ErrNotFound, ErrNotSealed, ErrAborted, ErrSealed, ErrProtocol, and ErrOwnerGone if no server
// listens, or if it ends during the call and no Keeper starts another one. Beside them there are
// those of package vmm: ErrBusy, ErrLimit, ErrOutOfMemory, ErrInvalid, ErrPermission,
// ErrNotSupported, ErrClosed, ErrBounds. A call returns its context's error if that ends first, and
// os.ErrDeadlineExceeded if the server does not reply within ClientOptions.Timeout.
//
// Safe for concurrent use. The caller must Close it.
type Client struct {
	// Immutable.
	dev  *vmm.Device
	opts ClientOptions
	path string                                       // of the socket, if dial is nil
	dial func(context.Context) (*net.UnixConn, error) // connects to a server in this process
	stop context.CancelFunc                           // ends what Close ends
	ctx  context.Context                              // ends with Close

	// connecting has an element while a call connects.
	connecting chan struct{}

	// Guarded by mu.
	mu       sync.Mutex
	control  serve.Client // the connection of requests; nil before the first, after a while without any, and after Close
	users    int          // calls that use it
	idle     *time.Timer  // which ends it
	instance [16]byte
	spare    serve.Spare[*shareable.View] // for the next Get; nil if there is none
	isMaking bool                         // a task makes spare

	tasks sync.WaitGroup // what makes spare; added to under mu, before Close
}

// ClientOptions configures Connect; its zero value is the default.
type ClientOptions struct {
	// Token is the shared secret that the server may ask for, up to 32 bytes.
	Token []byte
	// UIDs are the users that the server may run as; nil is the user of this process, unless
	// others look like it here (see shareable.Options), and root.
	UIDs []uint32
	// Timeout limits each wait for the server, apart from those that a call asks for; 0 is
	// 15 s. A server that lacks memory looks for some for up to 10 s, and then says who has
	// it.
	Timeout time.Duration
	// MaxBytes limits the size of each Writer and each View; 0 is the size of the device's
	// memory.
	MaxBytes uint64

	unasked bool // negative control, for tests: Flush does not ask the server
}

func errTimeout(t time.Duration) error { return fmt.Errorf("%w: a timeout of %v", vmm.ErrInvalid, t) }

// defaultTimeout is that of shareable.AttachOptions.
const defaultTimeout = 15 * time.Second

// resolve checks what the client itself uses, and fills in the defaults. Package shareable
// checks the rest.
func (o ClientOptions) resolve(dev *vmm.Device) (ClientOptions, error) {
	switch {
	case dev == nil:
		return o, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	case o.Timeout < 0:
		return o, errTimeout(o.Timeout)
	}
	o.Token, o.UIDs = slices.Clone(o.Token), slices.Clone(o.UIDs)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.MaxBytes = cmp.Or(o.MaxBytes, dev.Info().Memory)
	return o, nil
}

// attach is the options of a connection.
func (o ClientOptions) attach() shareable.AttachOptions {
	return shareable.AttachOptions{Token: o.Token, UIDs: o.UIDs, Timeout: o.Timeout, MaxBytes: o.MaxBytes}
}

// Connect makes a Client of the store at path, which is as for Listen. dev is the device that
// objects are mapped for. If no server listens there, it returns shareable.ErrOwnerGone. The
// caller must Close the Client, before the device.
func Connect(ctx context.Context, path string, dev *vmm.Device, o ClientOptions) (_ *Client, err error) {
	defer errtext.Wrapf(&err, "connect to store")
	return newClient(ctx, cmp.Or(path, defaultName), nil, dev, o)
}

// newClient makes a Client of the server at path, or, with dial, of one in this process.
func newClient(ctx context.Context, path string, dial func(context.Context) (*net.UnixConn, error), dev *vmm.Device, o ClientOptions) (*Client, error) {
	o, err := o.resolve(dev)
	if err != nil {
		return nil, err
	}
	c := &Client{dev: dev, opts: o, path: path, dial: dial, connecting: make(chan struct{}, 1)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	// A server that refuses the client says so only in reply to something.
	if _, err := c.read(ctx, target{}, wire.TypeCount, nil, wire.TypeCounters, ignore); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

var (
	errNoClient     = fmt.Errorf("%w: no client", vmm.ErrInvalid)
	errNoContext    = fmt.Errorf("%w: no context", vmm.ErrInvalid)
	errClientClosed = fmt.Errorf("%w: client", vmm.ErrClosed)
)

// check is nil if the client can be used with ctx.
func (c *Client) check(ctx context.Context) error {
	switch {
	case c == nil || c.dev == nil:
		return errNoClient
	case ctx == nil:
		return errNoContext
	case c.ctx.Err() != nil:
		return errClientClosed
	}
	return ctx.Err()
}

// target is what a call means by a name, if the client can be used with ctx.
func (c *Client) target(ctx context.Context, name string) (target, error) {
	if err := c.check(ctx); err != nil {
		return target{}, err
	}
	return resolveTarget(name)
}

// Close ends the requests that run, and the Client. Writers and Views stay. Twice is fine,
// and so is a nil Client.
func (c *Client) Close() error {
	if c == nil || c.dev == nil {
		return nil
	}
	c.stop()
	c.mu.Lock()
	if c.control != nil {
		c.control.Close()
		c.control = nil
	}
	if c.idle != nil {
		c.idle.Stop()
	}
	if c.spare != nil {
		c.spare.Close()
		c.spare = nil
	}
	c.mu.Unlock()
	c.tasks.Wait() // it uses the device
	return nil
}

// Device is the device that objects are mapped for.
func (c *Client) Device() *vmm.Device { return nonnil.Of(c).dev }

// Instance is a random number of the server that the last request went to: another one
// after each start.
func (c *Client) Instance() [16]byte {
	c = nonnil.Of(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instance
}

// both returns a context that ends with ctx and with Close.
func (c *Client) both(ctx context.Context) (context.Context, context.CancelFunc) {
	sub, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return sub, func() { stop(); cancel() }
}

// why is the error of a call whose context, which is of both, may have ended.
func (c *Client) why(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() == nil && c.ctx.Err() != nil {
		return errClientClosed
	}
	return err
}

// connection is the connection of requests. fresh reports whether this call has made it. Without an
// error the caller calls release.
func (c *Client) connection(ctx context.Context) (conn serve.Client, fresh bool, err error) {
	if err := c.check(ctx); err != nil {
		return nil, false, err
	}
	// A call that connects holds up those that need the connection, each as long as its
	// context allows.
	select {
	case c.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case <-c.ctx.Done():
		return nil, false, errClientClosed
	}
	defer func() { <-c.connecting }()
	c.mu.Lock()
	if conn = c.control; conn != nil && conn.Err() == nil {
		c.users++
		c.mu.Unlock()
		return conn, false, nil
	}
	c.mu.Unlock()
	sub, cancel := c.both(ctx)
	defer cancel()
	if conn, err = c.connect(sub, serve.Notified{Event: unasked}); err != nil {
		return nil, false, c.why(ctx, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		conn.Close()
		return nil, false, errClientClosed
	}
	c.control, c.instance = conn, conn.Hello().Instance
	c.users++
	return conn, true, nil
}

// idleTime is how long the connection of requests stays without one: each is a descriptor of the
// server's. A server waits longer before it disconnects a client. It is a variable for tests.
var idleTime = 30 * time.Second

// release ends the use of the connection of requests.
func (c *Client) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.users--; {
	case c.users > 0:
	case c.idle == nil:
		c.idle = time.AfterFunc(idleTime, c.dropIdle)
	default:
		c.idle.Reset(idleTime)
	}
}

// dropIdle ends the connection of requests, unless one has come meanwhile.
func (c *Client) dropIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users == 0 && c.control != nil {
		c.control.Close()
		c.control = nil
	}
}

// unasked handles a frame that nothing asked for.
func unasked(f wire.Frame) error {
	return fmt.Errorf("%w: %v that no request asked for", shareable.ErrProtocol, f.Type)
}

// connect makes a new connection.
func (c *Client) connect(ctx context.Context, on serve.Notified) (serve.Client, error) {
	if c.dial == nil {
		return sharing.Dial(ctx, c.path, c.dev, c.opts.attach(), on)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	return sharing.DialConn(ctx, conn, c.dev, c.opts.attach(), on)
}

// request sends a request about an object, and handles its reply. instance is that of the
// server which has replied.
func (c *Client) request(ctx context.Context, about target, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) (instance [16]byte, err error) {
	conn, _, err := c.connection(ctx)
	if err != nil {
		return instance, err
	}
	defer c.release()
	return c.requestOn(ctx, conn, about, t, payload, reply, done)
}

// read is request for what changes nothing: if the connection turns out to have ended, the
// request is sent to the server that has taken its place.
func (c *Client) read(ctx context.Context, about target, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) (instance [16]byte, err error) {
	conn, fresh, err := c.connection(ctx)
	if err != nil {
		return instance, err
	}
	defer c.release()
	instance, err = c.requestOn(ctx, conn, about, t, payload, reply, done)
	if err != nil && !fresh && conn.Err() != nil && c.check(ctx) == nil {
		return c.request(ctx, about, t, payload, reply, done)
	}
	return instance, err
}

func (c *Client) requestOn(ctx context.Context, conn serve.Client, about target, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) (instance [16]byte, err error) {
	instance = conn.Hello().Instance
	if err := about.check(instance); err != nil {
		return instance, err
	}
	sub, cancel := c.both(ctx)
	defer cancel()
	return instance, c.why(ctx, call(sub, c.opts.Timeout, conn, t, payload, reply, done))
}

// call is Call within a time limit.
func call(ctx context.Context, limit time.Duration, conn serve.Client, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) error {
	sub, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := conn.Call(sub, t, payload, reply, done)
	if err != nil && errors.Is(err, sub.Err()) && ctx.Err() == nil {
		return fmt.Errorf("%w: no reply to %v within %v", os.ErrDeadlineExceeded, t, limit)
	}
	return err
}

// ignore is for a reply that says no more than that it is one.
func ignore(wire.Frame) error { return nil }

// into is for a reply whose payload decode reads into to.
func into[T any](to *T, decode func([]byte) (T, error)) func(wire.Frame) error {
	return func(f wire.Frame) (err error) {
		if *to, err = decode(f.Payload); err != nil {
			return protocolError(err)
		}
		return nil
	}
}

// protocolError is the error for a payload that breaks the protocol.
func protocolError(err error) error { return fmt.Errorf("%w: %w", shareable.ErrProtocol, err) }
