package shareable

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// AttachOptions configures Attach; its zero value is the default.
type AttachOptions struct {
	// Write asks for memory that can be written. If the owner does not allow it,
	// Attach returns vmm.ErrPermission.
	Write bool
	// Token is the shared secret that the owner may ask for, up to 32 bytes.
	Token []byte
	// UIDs are the users that the owner may run as; nil is the user of this
	// process, and root.
	UIDs []uint32
	// MaxBytes limits the bytes that are mapped and the addresses that are
	// reserved. If the owner sends more, the View ends with vmm.ErrLimit. 0 is the
	// size of the device's memory.
	MaxBytes uint64
	// Timeout limits each wait for the other side, and the wait for local work on
	// memory that the owner takes back. 0 is 5 s.
	Timeout time.Duration
	// Align is the alignment of the first address, a power of two. 0 is the
	// granularity.
	Align uint64
}

const (
	defaultTimeout = 5 * time.Second
	attachRequest  = 1 // the request number of ATTACH, the only request of a View
)

// resolve checks the options and fills in the defaults.
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
	// The View keeps both for Reattach.
	o.UIDs, o.Token = slices.Clone(o.UIDs), slices.Clone(o.Token)
	if o.MaxBytes == 0 {
		o.MaxBytes = dev.Info().Memory
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return o, nil
}

// Attach makes a View of the object that the server at path has published under
// name; path is as for Listen. It returns once the addresses are reserved. The
// memory arrives later: use View.Wait.
//
// It returns ErrOwnerGone if no server listens at path, ErrNotFound if there is no
// such object, vmm.ErrPermission if the server runs as another user or refuses
// this process, and os.ErrDeadlineExceeded if the server does not reply in time.
// The caller must Close the View.
func Attach(ctx context.Context, path, name string, dev *vmm.Device, o AttachOptions) (*View, error) {
	if ctx == nil {
		return nil, attachFail(name, fmt.Errorf("%w: no context", vmm.ErrInvalid))
	}
	o, err := o.resolve(dev)
	if err != nil {
		return nil, attachFail(name, err)
	}
	path, err = socketPath(path)
	if err != nil {
		return nil, attachFail(name, err)
	}
	conn, err := connect(ctx, path, o)
	if err != nil {
		return nil, attachFail(name, err)
	}
	v, err := AttachConn(ctx, conn, name, dev, o)
	if err != nil {
		return nil, err
	}
	v.path = path
	return v, nil
}

// AttachConn is Attach over an existing connection of the kind "unixpacket". It
// closes conn when the View ends, and also if it fails.
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
	h := handshake{opts: o, dev: dev}
	if err := h.checkPeer(ctx, conn); err != nil {
		return nil, err
	}
	v, err := h.attach(ctx, name)
	// If ctx ended, its deadline in the past may be set: the connection is lost.
	if canceled := h.clearDeadlines(ctx); canceled != nil {
		_ = v.Close() // nothing uses it yet
		return nil, canceled
	}
	return v, err
}

// attach requests the object and makes a View of the reply.
func (h *handshake) attach(ctx context.Context, name string) (*View, error) {
	if err := h.exchangeHello(ctx); err != nil {
		return nil, err
	}
	ask := wire.Attach{Access: wire.AccessRead, Name: name}
	if h.opts.Write {
		ask.Access = wire.AccessReadWrite
	}
	if err := h.write(wire.TypeAttach, attachRequest, ask.Append(nil)); err != nil {
		return nil, err
	}
	obj, f, err := h.readObject(ctx, attachRequest)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // the page is mapped or refused
	switch {
	case obj.Name != name:
		return nil, fmt.Errorf("%w: the reply describes %q", ErrProtocol, obj.Name)
	case obj.State == wire.StateClosed:
		return nil, fmt.Errorf("%w: it is closed", ErrNotFound)
	case len(f.FDs) != 1:
		return nil, fmt.Errorf("%w: no control page", ErrProtocol)
	}
	page, err := openReaderPage(f.FDs[0].Int(), obj.Instance, obj.ID)
	if err != nil {
		return nil, err
	}
	// The page comes first: it can be unmapped without a driver call.
	v, err := h.newView(obj, page)
	if err != nil {
		return nil, closeAfter(err, page)
	}
	return v, nil
}
