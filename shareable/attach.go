package shareable

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// AttachOptions configures Attach; its zero value is the default.
type AttachOptions struct {
	// Write asks for writable memory. Attach returns vmm.ErrPermission if the owner does not allow
	// it.
	Write bool
	// Unsealed accepts an object of a store that is not sealed: it may grow, and its bytes may
	// change. Otherwise Attach returns ErrNotSealed.
	Unsealed bool
	// Wait makes Attach and Reattach wait, as long as the context allows, until
	//   - a server listens at the path;
	//   - it has an object of that name;
	//   - the object is sealed, if it is a store's and Unsealed is false.
	//
	// A store notifies Attach of this. If nothing can notify it, Attach tries again after pauses
	// that grow to 100 ms. It does not wait for other errors to pass, nor for an ID that no object
	// has. Calls over an existing connection, and List, do not wait.
	Wait bool
	// Token is the shared secret that the owner may ask for, up to 32 bytes.
	Token []byte
	// UIDs are the users that the owner may run as. nil is root and the user of this process, but
	// only root if others look like that user here (see Options.UIDs).
	UIDs []uint32
	// MaxBytes limits the bytes that are mapped and the addresses that are reserved. The View ends
	// with vmm.ErrLimit if the owner sends more. 0 is the size of the device's memory.
	MaxBytes uint64
	// MaxChunks limits the chunks that are mapped at a time, up to 65,536. The View ends with
	// vmm.ErrLimit if the owner sends more. 0 is 65,536, but half of RLIMIT_NOFILE on the host,
	// where each chunk keeps a descriptor open.
	MaxChunks int
	// Timeout limits each wait for the other side, and the wait for local work on memory that the owner
	// takes back. It also limits how long a View tries again while no descriptor is free: that time goes
	// on while the View connects to the next server. 0 is 5 s.
	Timeout time.Duration

	made []uintptr // who attaches

	keepLen bool // negative control, for tests: what a writer without a lease has shown stays
}

const (
	defaultTimeout = 5 * time.Second
	attachRequest  = 1 // the request number of ATTACH, the only request of a View
)

// defaultOwners are the users that an owner may run as unless the caller says others.
func defaultOwners() []uint32 {
	if own := uint32(os.Getuid()); wire.IsOwn(own) {
		return []uint32{own, 0}
	}
	return []uint32{0}
}

// resolve checks the options and fills in the defaults.
func (o AttachOptions) resolve(dev *vmm.Device) (AttachOptions, error) {
	if err := checkToken(o.Token); err != nil {
		return o, err
	}
	switch {
	case dev == nil:
		return o, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	case o.Timeout < 0:
		return o, fmt.Errorf("%w: a timeout of %v", vmm.ErrInvalid, o.Timeout)
	case o.MaxChunks < 0:
		return o, fmt.Errorf("%w: at most %d chunks", vmm.ErrInvalid, o.MaxChunks)
	}
	if o.UIDs == nil {
		o.UIDs = defaultOwners()
	}
	// The View keeps both for Reattach.
	o.UIDs, o.Token = slices.Clone(o.UIDs), slices.Clone(o.Token)
	if o.MaxBytes == 0 {
		o.MaxBytes = dev.Info().Memory
	}
	if o.MaxChunks == 0 && dev.Driver().Name() == "host" {
		o.MaxChunks = fileLimit() / 2
	}
	if o.MaxChunks == 0 || o.MaxChunks > wire.MaxChunks {
		o.MaxChunks = wire.MaxChunks
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.made == nil {
		o.made = make([]uintptr, 16)
		o.made = o.made[:runtime.Callers(2, o.made)]
	}
	return o, nil
}

// Attach makes a View of the object that the server at path has published under name. path is as
// for Listen. Attach returns once the addresses are reserved. The memory arrives later: View.Wait
// with View.Queued waits for all that there is so far.
//
// Attach returns
//   - ErrOwnerGone if no server listens at path;
//   - ErrNotFound if there is no such object;
//   - vmm.ErrPermission if the server runs as another user or refuses this process;
//   - os.ErrDeadlineExceeded if the server does not reply in time;
//   - vmm.ErrLimit if 64 connections of this process have ended and cannot be closed, because their
//     owners passed descriptors whose close waits.
//
// With AttachOptions.Wait it waits instead of returning ErrOwnerGone, ErrNotFound or ErrNotSealed.
// If ctx ends meanwhile, it returns the error of ctx together with the one it waited for. If the
// writer of a store's object gives that object up meanwhile, it returns ErrAborted.
//
// The owner passes descriptors of files that it chooses, and this process closes them. As with any
// close, this process then loses its POSIX record locks (fcntl F_SETLK) on such a file. In a
// process that attaches to owners it does not trust, use open file description locks (F_OFD_SETLK)
// or flock.
//
// The caller must Close the View.
func Attach(ctx context.Context, path, name string, dev *vmm.Device, o AttachOptions) (_ *View, err error) {
	defer errtext.Wrapf(&err, "attach to %q", name)
	if o, err = checkAttach(ctx, name, dev, o); err != nil {
		return nil, err
	}
	if path, err = socket.Path(path); err != nil {
		return nil, err
	}
	if o.Wait {
		w := attachWait{path: path, name: name, dev: dev, opts: o}
		return w.run(ctx)
	}
	return attachOnce(ctx, path, name, dev, o)
}

// attachOnce attaches to the object as it is now. The options are resolved.
func attachOnce(ctx context.Context, path, name string, dev *vmm.Device, o AttachOptions) (v *View, err error) {
	if err := leftBehind.admit(ctx, o.Timeout); err != nil {
		return nil, err
	}
	err = connectFirst(ctx, firstTries, func() error {
		conn, err := connect(ctx, path, o)
		if err == nil {
			v, err = attach(ctx, path, conn, name, dev, o)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// checkAttach checks the arguments of Attach, and returns the options with their defaults.
func checkAttach(ctx context.Context, name string, dev *vmm.Device, o AttachOptions) (AttachOptions, error) {
	if ctx == nil {
		return o, fmt.Errorf("%w: no context", vmm.ErrInvalid)
	}
	o, err := o.resolve(dev)
	if err != nil {
		return o, err
	}
	if err := wire.CheckName(name); err != nil {
		return o, fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	return o, nil
}

// AttachConn is Attach over an existing connection of the kind "unixpacket". It takes conn over,
// and closes it when the View ends or AttachConn fails. The close can end after the call.
func AttachConn(ctx context.Context, conn *net.UnixConn, name string, dev *vmm.Device, o AttachOptions) (_ *View, err error) {
	defer errtext.Wrapf(&err, "attach to %q", name)
	if conn == nil {
		return nil, fmt.Errorf("%w: no connection", vmm.ErrInvalid)
	}
	if o, err = checkAttach(ctx, name, dev, o); err == nil {
		err = leftBehind.admit(ctx, o.Timeout)
	}
	if err != nil {
		closeLater(conn)
		return nil, err
	}
	return attach(ctx, "", conn, name, dev, o)
}

// attach takes over conn, of the socket at path. The options are resolved.
func attach(ctx context.Context, path string, conn *net.UnixConn, name string, dev *vmm.Device, o AttachOptions) (*View, error) {
	h, err := newHandshake(conn, dev, o)
	if err != nil {
		return nil, err
	}
	h.path = path
	return h.run(ctx, func() error { return h.attach(name) }, func() { h.view.follow() })
}

// attach exchanges HELLO, requests the object and makes a View of the reply.
func (h *handshake) attach(name string) error {
	if err := h.sendHello(); err != nil {
		return err
	}
	if err := h.askObject(name); err != nil {
		return err
	}
	// ATTACH has not waited for the owner's HELLO: that would be another turn.
	if err := h.readHello(); err != nil {
		return err
	}
	return h.takeObject(name)
}

// askObject sends ATTACH.
func (h *handshake) askObject(name string) error {
	h.live = true
	ask := wire.Attach{Access: wire.AccessRead, Flags: wire.AttachBare, Name: name}
	if h.opts.Write {
		ask.Access = wire.AccessReadWrite
	}
	if h.opts.Unsealed {
		ask.Flags |= wire.AttachUnsealed
	}
	return h.write(wire.TypeAttach, attachRequest, ask.Append(nil))
}

// takeObject makes a View of the reply to ATTACH.
func (h *handshake) takeObject(name string) error {
	obj, f, err := h.readObject(attachRequest, 2)
	if err != nil {
		return err
	}
	switch {
	case obj.Name != name:
		return fmt.Errorf("%w: the reply describes %q", ErrProtocol, obj.Name)
	case obj.State == wire.StateClosed:
		return fmt.Errorf("%w: it is closed", ErrNotFound)
	}
	if len(f.FDs) == 0 { // nothing on a page would change any more
		return h.c.work(func() error { return h.newView(obj, nil) })
	}
	// The goroutine closes the wake socket at its end: the owner made it.
	if h.c.wake, err = openWakeReceiver(f.FDs[1]); err != nil {
		return err
	}
	return h.c.work(func() error {
		// The page comes first: it can be unmapped without a driver call.
		page, err := openReaderPage(f.FDs[0].Int(), obj.Instance, obj.ID)
		if err != nil {
			return err
		}
		_ = f.FDs[0].Close() // it is memory, whose close does not wait
		if err := h.newView(obj, page); err != nil {
			return closeAfter(err, page)
		}
		return nil
	})
}
