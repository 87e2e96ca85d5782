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

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// localHello is the HELLO of this process for memory of dev's driver. An owner
// adds its instance, a reader its token.
func localHello(dev *vmm.Device) (wire.Hello, error) {
	if dev == nil {
		return wire.Hello{}, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	}
	info := dev.Info()
	gran, err := dev.Driver().Granularity(driver.Prop{Location: driver.Location{Kind: driver.LocationDevice, ID: info.Ordinal}})
	h := wire.Hello{UUID: info.UUID, PID: uint32(os.Getpid()), Granularity: gran, Backend: wire.BackendCUDA}
	if dev.Driver().Name() == "host" {
		h.Backend = wire.BackendHost
	}
	return h, err
}

// handshake is the reader's side of a connection until there is a View. The goroutine
// of its readerConn uses it.
type handshake struct {
	opts AttachOptions
	dev  *vmm.Device
	c    *readerConn

	path    string     // of the socket; empty over an existing connection
	live    bool       // set by askObject: frames follow that were not asked for
	gran    uint64     // set by sendHello
	backend uint32     // set by sendHello
	peer    wire.Hello // set by readHello
	view    *View      // set by newView, as work of c
}

// openHandshake connects to the server at path.
func openHandshake(ctx context.Context, path string, dev *vmm.Device, o AttachOptions) (*handshake, error) {
	if ctx == nil {
		return nil, fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, err
	}
	if err := leftBehind.admit(ctx, o.Timeout); err != nil {
		return nil, err
	}
	conn, err := connect(ctx, path, o)
	if err != nil {
		return nil, err
	}
	h, err := newHandshake(conn, dev, o)
	if err == nil {
		h.path = path
	}
	return h, err
}

// openHandshakeOn is openHandshake over an existing connection. It takes over conn, also if it
// returns an error.
func openHandshakeOn(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (*handshake, error) {
	if conn == nil {
		return nil, fmt.Errorf("%w: no connection", vmm.ErrInvalid)
	}
	var err error
	if ctx == nil {
		err = fmt.Errorf("%w: no context", vmm.ErrInvalid)
	} else if o, err = o.resolve(dev); err == nil {
		err = leftBehind.admit(ctx, o.Timeout)
	}
	if err != nil {
		closeLater(conn)
		return nil, err
	}
	return newHandshake(conn, dev, o)
}

// newHandshake takes over conn, also if it returns an error.
func newHandshake(conn *net.UnixConn, dev *vmm.Device, o AttachOptions) (*handshake, error) {
	c, err := newReaderConn(conn, o.Timeout)
	if err != nil {
		return nil, err
	}
	return &handshake{opts: o, dev: dev, c: c}, nil
}

// run runs f in the goroutine that reads the connection, and then next, as
// readerConn.start does. If it returns an error, there is no View.
func (h *handshake) run(ctx context.Context, f func() error, next func()) (*View, error) {
	return h.result(h.c.start(ctx, f, next))
}

// result is the View, unless there is an error: then there is none.
func (h *handshake) result(err error) (*View, error) {
	if err != nil {
		return nil, inside.VMM.Discard(h.dev, err, h.view.Close)
	}
	return h.view, nil
}

// checkPeer checks the user at the other end, before anything is read.
func (h *handshake) checkPeer() error {
	cred, err := h.c.conn.Cred()
	if err != nil {
		return err
	}
	if !slices.Contains(h.opts.UIDs, cred.UID) {
		return fmt.Errorf("%w: the other side is user %d", vmm.ErrPermission, cred.UID)
	}
	return nil
}

// exchangeHello sends HELLO and reads the owner's.
func (h *handshake) exchangeHello() error {
	if err := h.sendHello(); err != nil {
		return err
	}
	return h.readHello()
}

// sendHello checks the peer and sends HELLO. Both sides send before they read, so that
// neither waits for the other. What follows may be sent before readHello, too.
func (h *handshake) sendHello() error {
	if err := h.checkPeer(); err != nil {
		return err
	}
	hello, err := localHello(h.dev)
	if err != nil {
		return err
	}
	h.gran, h.backend = hello.Granularity, hello.Backend
	hello.SetToken(h.opts.Token)
	return h.write(wire.TypeHello, 0, hello.Append(nil))
}

// readHello reads the owner's HELLO, and checks that both have memory of one kind.
func (h *handshake) readHello() error {
	f, err := h.readFrame(wire.TypeHello, 0)
	if err != nil {
		return err
	}
	if h.peer, err = wire.DecodeHello(f.Payload); err != nil {
		return wireError(err)
	}
	if h.peer.Backend != h.backend {
		return fmt.Errorf("%w: the owner's memory is of another kind of device", vmm.ErrNotSupported)
	}
	return nil
}

// write sends a frame. It ignores that the peer has closed the connection, because
// readFrame then reads the refusal that the peer sent before the close.
func (h *handshake) write(t wire.Type, request uint32, payload []byte) error {
	if err := h.c.write(t, request, payload); err != nil && !disconnected(err) {
		return h.connError(err)
	}
	return nil
}

// readFrame reads the next frame, which must be of type t for this request.
func (h *handshake) readFrame(t wire.Type, request uint32) (wire.Frame, error) {
	f, err := h.c.read()
	if errors.Is(err, syscall.ECONNRESET) {
		// The peer closed before it had read everything. What it sent before can
		// still be read.
		f, err = h.c.read()
	}
	if err != nil {
		if errors.Is(err, wire.ErrVersion) {
			_ = h.c.write(wire.TypeError, 0, wire.Error{Code: wire.CodeVersion, Text: err.Error()}.Append(nil))
		}
		return wire.Frame{}, h.connError(err)
	}
	if f.Type == t && f.Request == request {
		return f, nil
	}
	// Any other frame is the reason why the expected one does not come, or a
	// breach of the protocol.
	switch f.Type {
	case wire.TypeError:
		e, err := wire.DecodeError(f.Payload)
		if err != nil {
			return wire.Frame{}, wireError(err)
		}
		return wire.Frame{}, peerError(e)
	case wire.TypeClosing:
		return wire.Frame{}, fmt.Errorf("%w: it is closing down", ErrOwnerGone)
	}
	return wire.Frame{}, fmt.Errorf("%w: %v (request %d) instead of %v (%d)", ErrProtocol, f.Type, f.Request, t, request)
}

// readObject reads OBJECT, with so many descriptors, or none if it is sealed.
func (h *handshake) readObject(request uint32, fds int) (wire.Object, wire.Frame, error) {
	f, err := h.readFrame(wire.TypeObject, request)
	if err != nil {
		return wire.Object{}, f, err
	}
	obj, err := wire.DecodeObject(f.Payload)
	switch {
	case err != nil:
		return wire.Object{}, f, wireError(err)
	case obj.Instance != h.peer.Instance:
		return wire.Object{}, f, fmt.Errorf("%w: an object of instance %x from %x", ErrProtocol, obj.Instance, h.peer.Instance)
	case len(f.FDs) != fds && !(obj.State == wire.StateSealed && len(f.FDs) == 0):
		return wire.Object{}, f, fmt.Errorf("%w: an object with %d descriptors instead of %d", ErrProtocol, len(f.FDs), fds)
	case h.opts.Write && obj.Access != wire.AccessReadWrite:
		return wire.Object{}, f, fmt.Errorf("%w: the owner allows reading only", vmm.ErrPermission)
	}
	return obj, f, nil
}

// newView reserves the object's addresses and makes the View. It is work of the
// connection.
func (h *handshake) newView(obj wire.Object, page *readerPage) error {
	if h.peer.Granularity%h.gran != 0 {
		return fmt.Errorf("%w: the owner's chunks are multiples of %d bytes, and this device's of %d", vmm.ErrNotSupported, h.peer.Granularity, h.gran)
	}
	// The tracker checks the object, so that its maximum can be trusted below.
	limits := wire.Limits{Granularity: max(h.gran, h.peer.Granularity), Quota: h.opts.MaxBytes, MaxChunks: h.opts.MaxChunks}
	track, err := wire.NewTracker(obj, limits)
	if err != nil {
		return wireError(err)
	}
	// More than MaxBytes is never mapped, so no more is reserved: an owner can send
	// any maximum, and the addresses of a process are limited.
	size := min(obj.Max, h.opts.MaxBytes/h.gran*h.gran)
	v := &View{obj: obj}
	res, err := h.dev.Reserve(max(size, h.gran), vmm.ReserveOptions{ReadOnly: !h.opts.Write, Owner: v, Made: h.opts.made})
	if err != nil {
		return err
	}
	*v = View{
		dev: h.dev, res: res, obj: obj, opts: h.opts, path: h.path, owner: h.peer, max: size - min(size, obj.Base),
		conn: h.c, track: track, batch: wire.MaxFDs,
		live: h.live, page: page, wake: h.c.wake, generation: obj.Generation, short: shortage{limit: h.opts.Timeout},
		sealed: obj.State == wire.StateSealed, sealedLen: obj.Length,
	}
	v.ctx, v.stop = context.WithCancel(context.Background())
	h.view = v
	return nil
}

// connError turns an error of the connection into one of this package.
func (h *handshake) connError(err error) error {
	if disconnected(err) {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return wireError(err)
}

// disconnected reports whether err means that the other side has closed the
// connection.
func disconnected(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, net.ErrClosed)
}
