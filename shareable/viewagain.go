package shareable

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// connectAgain has the View go on with the next server, if one comes. What is mapped can be read
// meanwhile, and the page shows what a writer publishes.
func (v *View) connectAgain() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed || v.detached || !isKept(v.owner, v.path) {
		return false
	}
	v.again.Go(func() {
		err := reconnect(v.ctx, v.path, v.dev, v.opts, v.owner.Instance, &v.short, v.resume, func(*handshake) { v.follow() })
		if errors.Is(err, ErrNotFound) {
			err = fmt.Errorf("%w: the object has gone: %w", ErrOwnerGone, err)
		}
		if err != nil {
			v.detach(err)
		}
	})
	return true
}

// resume attaches over a new connection. Chunks that are mapped are not sent again.
func (v *View) resume(h *handshake) error {
	ask := wire.Attach{Access: wire.AccessRead, Flags: wire.AttachBare | wire.AttachAgain, Name: wire.IDName(v.obj.ID), After: v.track.LastID()}
	if v.opts.Write {
		ask.Access = wire.AccessReadWrite
	}
	if v.opts.Unsealed {
		ask.Flags |= wire.AttachUnsealed
	}
	if err := h.write(wire.TypeAttach, attachRequest, ask.Append(nil)); err != nil {
		return err
	}
	obj, f, err := h.readObject(attachRequest, 2)
	switch {
	case err != nil:
		return err
	case obj.ID != v.obj.ID || obj.Max != v.obj.Max || obj.Generation < v.track.Generation():
		return fmt.Errorf("%w: object %d of %d bytes in generation %d, and it was object %d of %d in %d", errNotSame,
			obj.ID, obj.Max, obj.Generation, v.obj.ID, v.obj.Max, v.track.Generation())
	case obj.State == wire.StateClosed:
		return fmt.Errorf("%w: it is closed", ErrNotFound)
	}
	if len(f.FDs) > 0 {
		if h.c.wake, err = openWakeReceiver(f.FDs[1]); err != nil {
			return err
		}
	}
	return h.c.work(func() error { return v.resumeOn(h, obj, f) })
}

// resumeOn has the connection take the place of the one before. It is work of the connection.
func (v *View) resumeOn(h *handshake, obj wire.Object, f wire.Frame) error {
	var page *readerPage
	if len(f.FDs) > 0 {
		var err error
		if page, err = mapReaderPage(f.FDs[0].Int()); err != nil { // nothing is compared, as for PAGE
			return err
		}
		_ = f.FDs[0].Close() // it is memory, whose close does not wait
	}
	v.resyncing, v.staleFrames = false, 0
	v.short.had(wire.TypeObject)
	if page != nil {
		v.short.had(wire.TypePage)
	}
	if err := v.replaceConn(h.c, page); err != nil {
		return err
	}
	if obj.Generation == v.track.Generation() {
		return nil
	}
	// What was taken back meanwhile. Memory of a store is taken back from the end only, and none
	// comes after that.
	return v.handleRetire(wire.Retire{Object: obj.ID, Generation: obj.Generation, Capacity: obj.Capacity})
}

// replaceConn replaces the connection, and the page if there is one.
func (v *View) replaceConn(c *readerConn, page *readerPage) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return closeAfter(errViewClosed, page)
	}
	v.conn, v.wake = c, c.wake
	if page == nil {
		return nil
	}
	if v.waitedForLocked() {
		v.watchLocked()
	}
	return v.replacePageLocked(page)
}
