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

// handshake is the reader's side of a connection until there is a View. One
// goroutine uses it.
type handshake struct {
	opts AttachOptions
	dev  *vmm.Device

	c         *wire.Conn  // set by checkPeer
	stopAbort func() bool // set by checkPeer: keeps ctx from ending reads and writes; false if it has

	gran uint64     // set by exchangeHello
	peer wire.Hello // set by exchangeHello
}

// checkPeer checks the user at the other end before anything is read. From then
// on the end of ctx ends reads and writes.
func (h *handshake) checkPeer(ctx context.Context, conn *net.UnixConn) error {
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
	if !slices.Contains(h.opts.UIDs, cred.UID) {
		return fmt.Errorf("%w: the other side is user %d", vmm.ErrPermission, cred.UID)
	}
	h.c = c
	// A deadline in the past ends whatever read or write waits when ctx ends.
	past := time.Unix(1, 0)
	h.stopAbort = context.AfterFunc(ctx, func() {
		_ = c.SetReadDeadline(past)
		_ = c.SetWriteDeadline(past)
	})
	return nil
}

// extendDeadline allows the other side Timeout from now on. ctx is checked last:
// had it ended before, its deadlines in the past would be overwritten now.
func (h *handshake) extendDeadline(ctx context.Context) error {
	until := time.Now().Add(h.opts.Timeout)
	if err := h.c.SetReadDeadline(until); err != nil {
		return err
	}
	if err := h.c.SetWriteDeadline(until); err != nil {
		return err
	}
	return ctx.Err()
}

// clearDeadlines removes the deadlines. If ctx has ended, it returns its error.
func (h *handshake) clearDeadlines(ctx context.Context) error {
	if !h.stopAbort() {
		return ctx.Err()
	}
	if err := h.c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return h.c.SetWriteDeadline(time.Time{})
}

// exchangeHello sends HELLO, reads the owner's, and checks that both have memory
// of one kind.
func (h *handshake) exchangeHello(ctx context.Context) error {
	if err := h.extendDeadline(ctx); err != nil {
		return err
	}
	hello, err := localHello(h.dev)
	if err != nil {
		return err
	}
	h.gran = hello.Granularity
	// Both sides send before they read, so that neither waits for the other.
	hello.HasToken = copy(hello.Token[:], h.opts.Token) > 0
	if err := h.write(wire.TypeHello, 0, hello.Append(nil)); err != nil {
		return err
	}
	f, err := h.readFrame(ctx, wire.TypeHello, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // HELLO has no fds
	if h.peer, err = wire.DecodeHello(f.Payload); err != nil {
		return wireError(err)
	}
	if h.peer.Backend != hello.Backend {
		return fmt.Errorf("%w: the owner's memory is of another kind of device", vmm.ErrNotSupported)
	}
	return nil
}

// write sends a frame. It ignores that the peer has closed the connection, because
// readFrame then reads the refusal that the peer sent before the close.
func (h *handshake) write(t wire.Type, request uint32, payload []byte) error {
	if err := h.c.Write(t, request, 0, payload); err != nil && !disconnected(err) {
		return h.connError(err)
	}
	return nil
}

// readFrame reads the next frame, which must be of type t for this request.
func (h *handshake) readFrame(ctx context.Context, t wire.Type, request uint32) (wire.Frame, error) {
	if err := h.extendDeadline(ctx); err != nil {
		return wire.Frame{}, err
	}
	f, err := h.c.Read()
	if errors.Is(err, syscall.ECONNRESET) {
		// The peer closed before it had read everything. What it sent before can
		// still be read.
		f, err = h.c.Read()
	}
	if err != nil {
		if errors.Is(err, wire.ErrVersion) {
			_ = h.c.Write(wire.TypeError, 0, 0, wire.Error{Code: wire.CodeVersion, Text: err.Error()}.Append(nil))
		}
		return wire.Frame{}, h.connError(err)
	}
	if f.Type == t && f.Request == request {
		return f, nil
	}
	// Any other frame is the reason why the expected one does not come, or a
	// breach of the protocol.
	defer f.Close() //nolint:errcheck // it is refused
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

// readObject reads OBJECT. The caller must close the frame.
func (h *handshake) readObject(ctx context.Context, request uint32) (wire.Object, wire.Frame, error) {
	f, err := h.readFrame(ctx, wire.TypeObject, request)
	if err != nil {
		return wire.Object{}, f, err
	}
	obj, err := wire.DecodeObject(f.Payload)
	switch {
	case err != nil:
		err = wireError(err)
	case obj.Instance != h.peer.Instance:
		err = fmt.Errorf("%w: an object of instance %x from %x", ErrProtocol, obj.Instance, h.peer.Instance)
	case h.opts.Write && obj.Access != wire.AccessReadWrite:
		err = fmt.Errorf("%w: the owner allows reading only", vmm.ErrPermission)
	}
	if err != nil {
		_ = f.Close()
		return wire.Object{}, wire.Frame{}, err
	}
	return obj, f, nil
}

// newView reserves the object's addresses and makes the View.
func (h *handshake) newView(obj wire.Object, page *readerPage) (*View, error) {
	// The tracker checks the object, so that its maximum can be trusted below.
	track, err := wire.NewTracker(obj, wire.Limits{Granularity: h.gran, Quota: h.opts.MaxBytes})
	if err != nil {
		return nil, wireError(err)
	}
	// More than MaxBytes is never mapped, so no more is reserved: an owner can send
	// any maximum, and the addresses of a process are limited.
	size := obj.Max
	if limit := h.opts.MaxBytes; limit < size {
		size = min(size, max(limit/h.gran*h.gran, h.gran))
	}
	res, err := h.dev.Reserve(size, vmm.ReserveOptions{Align: h.opts.Align, ReadOnly: !h.opts.Write})
	if err != nil {
		return nil, err
	}
	return &View{
		dev: h.dev, res: res, obj: obj, opts: h.opts,
		conn: h.c, track: track, batch: wire.MaxFDs,
		stop: make(chan struct{}), page: page, generation: obj.Generation,
		sealed: obj.State == wire.StateSealed, sealedLen: obj.Length,
	}, nil
}

// connError turns an error of the connection into one of this package.
func (h *handshake) connError(err error) error {
	if disconnected(err) {
		return fmt.Errorf("%w: %w", ErrOwnerGone, err)
	}
	return wireError(err)
}

// disconnected reports whether err means that the other side has closed the
// connection.
func disconnected(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, net.ErrClosed)
}
