package shareable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// AttachOptions is how to attach; its zero value is the default.
type AttachOptions struct {
	// Write asks for memory that can be written; vmm.ErrPermission if the owner
	// does not give it.
	Write bool
	// Token is what the owner may ask for, up to 32 bytes; nil is nothing.
	Token []byte
	// UIDs is who may be the owner; nil: the user of this process, and root.
	UIDs []uint32
	// MaxBytes is how many bytes to map, and addresses to reserve, at most: an
	// owner that sends more is let go of, with vmm.ErrLimit. 0 is the device's
	// memory.
	MaxBytes uint64
	// Timeout is how long the other side may take for an answer, and work here
	// to leave memory that the owner takes back. 0 is 5 s.
	Timeout time.Duration
	// Align is the alignment of the first address, a power of two. 0 is the
	// granularity.
	Align uint64
}

const (
	defaultTimeout = 5 * time.Second
	attachRequest  = 1 // the number of the one request of a connection
)

// settle checks the options and fills in the defaults.
func (o AttachOptions) resolve(dev *vmm.Device) (AttachOptions, error) {
	switch {
	case dev == nil:
		return o, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	case len(o.Token) > tokenSize:
		return o, errToken(o.Token)
	case o.Timeout < 0:
		return o, fmt.Errorf("%w: a timeout of %v", vmm.ErrInvalid, o.Timeout)
	}
	if o.UIDs == nil {
		o.UIDs = []uint32{uint32(os.Getuid()), 0}
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = dev.Info().Memory
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return o, nil
}

// Attach makes a view of an object that the owner who listens at path has
// published under name; path "" is the default. It returns when the addresses
// are reserved and the bytes are on their way: wait for them with Wait.
//
// ErrOwnerGone says that nobody listens, ErrNotFound that there is no such
// object, vmm.ErrPermission that the other side is not who it should be or
// turns this one away; os.ErrDeadlineExceeded that it did not answer in time.
// The caller must Close the View.
func Attach(ctx context.Context, path, name string, dev *vmm.Device, o AttachOptions) (*View, error) {
	if ctx == nil {
		return nil, attachFail(name, fmt.Errorf("%w: no context", vmm.ErrInvalid))
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, attachFail(name, err)
	}
	conn, err := connect(ctx, path, o)
	if err != nil {
		return nil, attachFail(name, err)
	}
	return AttachConn(ctx, conn, name, dev, o)
}

// connect finds the owner who listens at path.
func connect(ctx context.Context, path string, o AttachOptions) (*net.UnixConn, error) {
	path, err := socketPath(path)
	if err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{Timeout: o.Timeout}).DialContext(ctx, "unixpacket", path)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: nobody listens: %w", ErrOwnerGone, err)
	}
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("%w: a connection of type %T", vmm.ErrInvalid, c)
	}
	return conn, nil
}

// AttachConn is Attach over a connection that is there already, of the kind
// "unixpacket". It takes conn over and closes it, also where it fails.
func AttachConn(ctx context.Context, conn *net.UnixConn, name string, dev *vmm.Device, o AttachOptions) (*View, error) {
	if conn == nil {
		return nil, attachFail(name, fmt.Errorf("%w: no connection", vmm.ErrInvalid))
	}
	v, err := attach(ctx, conn, name, dev, o)
	if err != nil {
		_ = conn.Close()
		return nil, attachFail(name, err)
	}
	v.tasks.Add(1)
	go v.follow()
	return v, nil
}

func attachFail(name string, err error) error { return fmt.Errorf("attach to %q: %w", name, err) }

func attach(ctx context.Context, conn *net.UnixConn, name string, dev *vmm.Device, o AttachOptions) (*View, error) {
	o, err := o.resolve(dev)
	if err != nil {
		return nil, err
	}
	if err := wire.CheckName(name); err != nil {
		return nil, fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	j := handshake{opts: o, dev: dev}
	if err := j.checkPeer(ctx, conn); err != nil {
		return nil, err
	}
	v, err := j.attach(ctx, name)
	if done := j.clearDeadlines(ctx); done != nil {
		_ = v.Close() // nothing uses it
		return nil, done
	}
	return v, err
}

// joining is a connection on its way to a view.
type handshake struct {
	opts    AttachOptions
	dev  *vmm.Device
	c    *wire.Conn
	gran uint64
	peer wire.Hello
	stopAbort func() bool // stops what ctx would do; false if it has begun
}

// open checks who is at the other end before anything of it is read, and has
// ctx end whatever waits for it.
func (j *handshake) checkPeer(ctx context.Context, conn *net.UnixConn) error {
	if ctx == nil {
		return fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	c, err := wire.NewConn(conn)
	if err != nil {
		return fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	cred, err := c.Cred()
	if err != nil {
		return err
	}
	if !slices.Contains(j.opts.UIDs, cred.UID) {
		return fmt.Errorf("%w: the other side is user %d", vmm.ErrPermission, cred.UID)
	}
	j.c = c
	past := time.Unix(1, 0)
	j.stopAbort = context.AfterFunc(ctx, func() {
		_ = c.SetReadDeadline(past)
		_ = c.SetWriteDeadline(past)
	})
	return nil
}

// hurry gives the other side its time from now on. ctx is asked last: what its
// end did to the deadlines may just have been undone.
func (j *handshake) extendDeadline(ctx context.Context) error {
	until := time.Now().Add(j.opts.Timeout)
	if err := j.c.SetReadDeadline(until); err != nil {
		return err
	}
	if err := j.c.SetWriteDeadline(until); err != nil {
		return err
	}
	return ctx.Err()
}

// settle takes the deadlines off, or answers that ctx is done.
func (j *handshake) clearDeadlines(ctx context.Context) error {
	if !j.stopAbort() {
		return ctx.Err()
	}
	if err := j.c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return j.c.SetWriteDeadline(time.Time{})
}

// attach asks for the object and makes a view of the answer.
func (j *handshake) attach(ctx context.Context, name string) (*View, error) {
	if err := j.exchangeHello(ctx); err != nil {
		return nil, err
	}
	ask := wire.Attach{Access: wire.AccessRead, Name: name}
	if j.opts.Write {
		ask.Access = wire.AccessReadWrite
	}
	if err := j.write(wire.TypeAttach, attachRequest, ask.Append(nil)); err != nil {
		return nil, err
	}
	obj, fds, err := j.readObject(ctx, attachRequest)
	if err != nil {
		return nil, err
	}
	defer fds.Close() //nolint:errcheck // the page is mapped or refused
	switch {
	case obj.Name != name:
		return nil, fmt.Errorf("%w: the answer is about %q", ErrProtocol, obj.Name)
	case obj.State == wire.StateClosed:
		return nil, fmt.Errorf("%w: it is closed", ErrNotFound)
	case len(fds.FDs) != 1:
		return nil, fmt.Errorf("%w: no control page", ErrProtocol)
	}
	page, err := openReaderPage(fds.FDs[0].Int(), obj.Instance, obj.ID)
	if err != nil {
		return nil, err
	}
	v, err := j.newView(obj, page)
	if err != nil {
		return nil, closeAfter(err, page)
	}
	return v, nil
}

// why gives what came of a call on the connection its kind.
func (j *handshake) connError(err error) error {
	if disconnected(err) {
		return fmt.Errorf("%w: %w", ErrOwnerGone, err)
	}
	return wireError(err)
}

// gone says whether err is the end of the other side.
func disconnected(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, net.ErrClosed)
}

// greet exchanges HELLOs.
func (j *handshake) exchangeHello(ctx context.Context) error {
	if err := j.extendDeadline(ctx); err != nil {
		return err
	}
	hello, err := localHello(j.dev)
	if err != nil {
		return err
	}
	j.gran = hello.Granularity
	hello.HasToken = copy(hello.Token[:], j.opts.Token) > 0
	if err := j.write(wire.TypeHello, 0, hello.Append(nil)); err != nil {
		return err
	}
	f, err := j.readFrame(ctx, wire.TypeHello, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a HELLO has no fds
	if j.peer, err = wire.DecodeHello(f.Payload); err != nil {
		return wireError(err)
	}
	if j.peer.Backend != hello.Backend {
		return fmt.Errorf("%w: its memory is of another kind of device", vmm.ErrNotSupported)
	}
	return nil
}

// write sends a frame. That the peer is gone is left for next to find: one that
// turned us away has said so before it closed.
func (j *handshake) write(t wire.Type, request uint32, payload []byte) error {
	if err := j.c.Write(t, request, 0, payload); err != nil && !disconnected(err) {
		return j.connError(err)
	}
	return nil
}

// next reads the frame that has to come now.
func (j *handshake) readFrame(ctx context.Context, t wire.Type, request uint32) (wire.Frame, error) {
	if err := j.extendDeadline(ctx); err != nil {
		return wire.Frame{}, err
	}
	f, err := j.c.Read()
	if errors.Is(err, syscall.ECONNRESET) { // it left words of ours unread; its own are still to come
		f, err = j.c.Read()
	}
	if err != nil {
		if errors.Is(err, wire.ErrVersion) {
			_ = j.c.Write(wire.TypeError, 0, 0, wire.Error{Code: wire.CodeVersion, Text: err.Error()}.Append(nil))
		}
		return wire.Frame{}, j.connError(err)
	}
	if f.Type == t && f.Request == request {
		return f, nil
	}
	defer f.Close() //nolint:errcheck // it is refused
	switch f.Type {
	case wire.TypeError:
		e, err := wire.DecodeError(f.Payload)
		if err != nil {
			return wire.Frame{}, wireError(err)
		}
		return wire.Frame{}, peerError(e)
	case wire.TypeClosing:
		return wire.Frame{}, fmt.Errorf("%w: it is closing", ErrOwnerGone)
	}
	return wire.Frame{}, fmt.Errorf("%w: %v (request %d) instead of %v (%d)", ErrProtocol, f.Type, f.Request, t, request)
}

// object reads an OBJECT. The caller closes the frame.
func (j *handshake) readObject(ctx context.Context, request uint32) (wire.Object, wire.Frame, error) {
	f, err := j.readFrame(ctx, wire.TypeObject, request)
	if err != nil {
		return wire.Object{}, f, err
	}
	obj, err := wire.DecodeObject(f.Payload)
	switch {
	case err != nil:
		err = wireError(err)
	case obj.Instance != j.peer.Instance:
		err = fmt.Errorf("%w: an object of instance %x from %x", ErrProtocol, obj.Instance, j.peer.Instance)
	case j.opts.Write && obj.Access != wire.AccessReadWrite:
		err = fmt.Errorf("%w: the owner lets nobody write", vmm.ErrPermission)
	}
	if err != nil {
		_ = f.Close()
		return wire.Object{}, wire.Frame{}, err
	}
	return obj, f, nil
}

// view reserves the addresses of an object.
func (j *handshake) newView(obj wire.Object, page *readerPage) (*View, error) {
	track, err := wire.NewTracker(obj, wire.Limits{Granularity: j.gran, Quota: j.opts.MaxBytes})
	if err != nil {
		return nil, wireError(err)
	}
	// More than MaxBytes is never mapped, and an owner can name any maximum: the
	// addresses of all reservations of a process together are limited.
	size := obj.Max
	if most := j.opts.MaxBytes; most < size {
		size = min(size, max(most/j.gran*j.gran, j.gran))
	}
	res, err := j.dev.Reserve(size, vmm.ReserveOptions{Align: j.opts.Align, ReadOnly: !j.opts.Write})
	if err != nil {
		return nil, err
	}
	return &View{
		dev: j.dev, res: res, obj: obj, opts: j.opts,
		conn: j.c, track: track, batch: wire.MaxFDs,
		stop: make(chan struct{}), page: page, generation: obj.Generation,
		sealed: obj.State == wire.StateSealed, sealedLen: obj.Length,
	}, nil
}
