package shareable

import (
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// follow does what the owner's frames say until one of the two goes.
func (v *View) follow() {
	defer v.tasks.Done()
	err := v.readLoop()
	if errors.Is(err, ErrProtocol) {
		v.sendError(err)
	}
	v.detach(err)
	_ = v.conn.Close()
}

// complain tells the owner why, if it listens.
func (v *View) sendError(err error) {
	_ = v.send(wire.TypeError, wire.Error{Code: wire.CodeProtocol, Text: err.Error()}.Append(nil))
}

func (v *View) readLoop() error {
	for {
		f, err := v.conn.Read()
		switch {
		case errors.Is(err, wire.ErrTruncated):
			if err := v.requestSmallerFrames(f, wireError(err)); err != nil {
				return err
			}
			continue
		case disconnected(err):
			return ErrOwnerGone
		case err != nil:
			return wireError(err)
		}
		err = v.handle(f)
		_ = f.Close() // what is mapped does not need its fd
		if err != nil {
			return err
		}
	}
}

// take does what a frame says.
func (v *View) handle(f wire.Frame) error {
	switch f.Type {
	case wire.TypeChunks:
		c, err := wire.DecodeChunks(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return v.handleChunks(f, c)
	case wire.TypeRetire:
		r, err := wire.DecodeRetire(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return v.handleRetire(r)
	case wire.TypeSealed:
		s, err := wire.DecodeSealed(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return v.handleSealed(s)
	case wire.TypePublish: // the page says it better
		v.mu.Lock()
		defer v.mu.Unlock()
		v.updateLenLocked()
		return nil
	case wire.TypeDeleted:
		d, err := wire.DecodeDeleted(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return v.handleDeleted(d)
	case wire.TypeClosing:
		c, err := wire.DecodeClosing(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return fmt.Errorf("%w: it says %q", ErrOwnerGone, c.Reason)
	case wire.TypeError:
		e, err := wire.DecodeError(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return peerError(e)
	}
	return fmt.Errorf("%w: %v to a reader", ErrProtocol, f.Type)
}

// send writes a frame that nothing answers.
func (v *View) send(t wire.Type, payload []byte) error {
	if err := v.conn.SetWriteDeadline(time.Now().Add(v.opts.Timeout)); err != nil {
		return ErrOwnerGone
	}
	err := v.conn.Write(t, 0, 0, payload)
	if disconnected(err) {
		return ErrOwnerGone
	}
	return err
}

// ack says how far this side is. An owner that is gone may have left frames that
// are still to be read, whose end says the same.
func (v *View) ack() error {
	err := v.send(wire.TypeAck, wire.Ack{
		Object: v.obj.ID, Chunk: v.track.LastID(), Generation: v.track.Generation(),
	}.Append(nil))
	if errors.Is(err, ErrOwnerGone) {
		return nil
	}
	return err
}

// chunks maps what a frame brings: all of it or nothing.
func (v *View) handleChunks(f wire.Frame, c wire.Chunks) error {
	if v.resyncing && len(c.Records) > 0 && c.Records[0].Offset > v.track.End() {
		return v.skipStale() // what lies before it was lost
	}
	v.resyncing = false
	fresh, skip, err := v.track.Chunks(c)
	if errors.Is(err, wire.ErrLimit) {
		return fmt.Errorf("%w: %w", vmm.ErrLimit, err)
	}
	if err != nil {
		return wireError(err)
	}
	if len(fresh) > 0 {
		chunks, err := v.importAll(fresh, f.FDs[skip:])
		if err == nil {
			err = v.res.Map(fresh[0].Offset, chunks...)
		}
		for _, c := range chunks {
			if second := c.Close(); err == nil { // the mapping holds the memory
				err = second
			}
		}
		if errors.Is(err, errNoFDs) {
			return v.requestSmallerFrames(f, err)
		}
		if err != nil {
			return fmt.Errorf("map what the owner sent: %w", err)
		}
	}
	v.track.Mapped(len(fresh))
	v.staleFrames = 0
	v.mu.Lock()
	v.mapped = v.track.End()
	v.updateLenLocked()
	v.mu.Unlock()
	return v.ack()
}

// errNoFDs tells a limit on fds from others.
var errNoFDs = errors.New("too few file descriptors for a frame")

// importAll imports the memory of records, one by one: the driver takes longer
// for several at a time. The caller closes the chunks, whatever the error.
func (v *View) importAll(records []wire.Chunk, fds []*wire.FD) (chunks []*vmm.Chunk, err error) {
	for i, r := range records {
		c, err := v.dev.Import(fds[i].Int(), r.Size, vmm.Prop{})
		if errors.Is(err, vmm.ErrLimit) {
			err = fmt.Errorf("%w (RLIMIT_NOFILE): %w", errNoFDs, err)
		}
		if err != nil {
			return chunks, err
		}
		chunks = append(chunks, c)
		if err := fds[i].Close(); err != nil {
			return chunks, err
		}
	}
	return chunks, nil
}

// staleMost is how many frames may come that were sent before the owner heard of
// a RESYNC, which are two at most, with a margin.
const maxStaleFrames = 8

// old lets a frame go that comes again.
func (v *View) skipStale() error {
	if v.staleFrames++; v.staleFrames > maxStaleFrames {
		return fmt.Errorf("%w: a RESYNC is ignored", ErrProtocol)
	}
	return nil
}

// fewer asks for what was not mapped once more, in frames of half the fds of f.
func (v *View) requestSmallerFrames(f wire.Frame, why error) error {
	had := uint32(f.Header.FDs)
	switch {
	case f.Type != wire.TypeChunks:
		return nil // nothing that is missed
	case v.resyncing && had > v.batch:
		return v.skipStale()
	case had <= 1:
		return fmt.Errorf("one fd at a time: %w", why)
	}
	v.batch, v.resyncing = max(min(v.batch, had)/2, 1), true
	r := wire.Resync{Object: v.obj.ID, Batch: v.batch}
	if last := v.track.LastID(); last > 0 {
		r.Next = last + 1
	}
	return v.send(wire.TypeResync, r.Append(nil))
}

// seal notes the last length.
func (v *View) handleSealed(s wire.Sealed) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case s.Object != v.obj.ID || s.Length > v.obj.Max:
		return fmt.Errorf("%w: object %d of %d bytes at most is sealed as %d with %d bytes",
			ErrProtocol, v.obj.ID, v.obj.Max, s.Object, s.Length)
	case v.sealed && s.Length != v.sealedLen:
		return fmt.Errorf("%w: sealed with %d bytes after %d", ErrProtocol, s.Length, v.sealedLen)
	case s.Length < v.lenLocked():
		return fmt.Errorf("%w: sealed with %d bytes, and %d were published", ErrProtocol, s.Length, v.lenLocked())
	}
	v.sealed, v.sealedLen = true, s.Length
	if s.HasDigest {
		v.digest = &s.Digest
	}
	v.notifiedLen = v.lenLocked()
	v.notifyLocked()
	return nil
}

// deleted notes that the object is published no more: what is sealed stays what
// it is, and anything else will not grow.
func (v *View) handleDeleted(d wire.Deleted) error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	switch {
	case d.Object != v.obj.ID:
		return fmt.Errorf("%w: object %d is deleted, and this is %d", ErrProtocol, d.Object, v.obj.ID)
	case v.sealed && v.mapped >= v.sealedLen:
		return nil
	}
	return fmt.Errorf("%w: it publishes this no longer", ErrOwnerGone)
}

// retire unmaps what the owner takes back, once nothing here uses it.
func (v *View) handleRetire(r wire.Retire) error {
	before := v.track.End()
	_, from, err := v.track.Retire(r)
	if err != nil {
		return wireError(err)
	}
	if err := v.hideFrom(r.Generation, from, before); err != nil {
		return err
	}
	if from < before {
		if err := v.unmapInTime(from, before-from); err != nil {
			return err
		}
	}
	return v.ack()
}

// recede hides what lies from from on, unless somebody relies on it.
func (v *View) hideFrom(generation, from, before uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if from < v.hostLen {
		return fmt.Errorf("%w: Host gave out %d bytes, and %d are left", ErrRetired, v.hostLen, from)
	}
	for _, s := range v.pendingWaits {
		if s.n > from && from < before {
			return fmt.Errorf("%w: a stream waits for %d bytes, and %d are left", ErrRetired, s.n, from)
		}
	}
	v.mapped, v.generation = from, generation
	seen := v.lastLen.Load()
	if v.page != nil {
		if n := v.page.done(); v.page.generation() == generation {
			seen = n
		}
	}
	v.lastLen.Store(min(seen, from))
	v.notifiedLen = v.lenLocked()
	v.notifyLocked()
	return nil
}

// unmapInTime unmaps chunks, but lets go of the owner rather than keep it
// waiting for work that does not end.
func (v *View) unmapInTime(off, size uint64) error {
	done := make(chan error, 1)
	v.tasks.Add(1)
	go func() {
		defer v.tasks.Done()
		done <- v.unmap(off, size)
	}()
	late := time.NewTimer(v.opts.Timeout)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-v.stop:
		return errViewClosed
	case <-late.C:
		return fmt.Errorf("%w: work on it has not ended in %v", ErrRetired, v.opts.Timeout)
	}
}

const captureRetry = 5 * time.Millisecond

// unmap is Reservation.Unmap that sits a capture out.
func (v *View) unmap(off, size uint64) error {
	for {
		err := v.res.Unmap(off, size)
		if !errors.Is(err, vmm.ErrCapturing) {
			return err
		}
		select {
		case <-v.stop:
			return err
		case <-time.After(captureRetry):
		}
		v.mu.RLock()
		ended := v.detached
		v.mu.RUnlock()
		if ended {
			return err
		}
	}
}
