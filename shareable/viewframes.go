package shareable

import (
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// follow handles the owner's frames until the connection ends. What others wait for is
// done before the goroutine closes any descriptor of the owner's.
func (v *View) follow() {
	var err error
	for err == nil {
		_, err = v.handleNext()
	}
	if (errors.Is(err, errLost) || errors.Is(err, ErrTooSlow)) && v.connectAgain() {
		return
	}
	v.detach(err)
	if errors.Is(err, ErrProtocol) {
		v.sendError(err)
	}
	if ended := errors.Is(err, ErrOwnerGone) && !errors.Is(err, errLost); !ended {
		v.awaitWrites()
	}
}

// awaitWrites waits until nothing is mapped that may be written, or for Close: as long as the
// connection is there, the owner does not use that memory for something else.
func (v *View) awaitWrites() {
	if !v.opts.Write {
		return
	}
	v.tasks.Wait() // of unmaps
	if len(v.res.Segments()) > 0 {
		<-v.conn.ended
	}
}

// sendError tells the owner why the View ends the connection. The owner may be
// gone, so errors are ignored.
func (v *View) sendError(err error) {
	_ = v.send(wire.TypeError, wire.Error{Code: wire.CodeProtocol, Text: err.Error()}.Append(nil))
}

// handleNext reads a frame and handles it. It reports whether the frame was DONE.
func (v *View) handleNext() (done bool, err error) {
	f, err := v.conn.read()
	switch {
	case errors.Is(err, wire.ErrTruncated):
		return false, v.requestAgain(f, wireError(err))
	case disconnected(err):
		return false, errLost
	case err != nil:
		return false, wireError(err)
	}
	err = v.conn.work(func() error { return v.handle(f) })
	if errors.Is(err, errNoFDs) {
		return false, v.requestAgain(f, err)
	}
	return f.Type == wire.TypeDone, err
}

// handle handles one frame of the owner. An error ends the connection.
func (v *View) handle(f wire.Frame) error {
	switch f.Type {
	case wire.TypeChunks:
		c, err := wire.DecodeChunks(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return v.handleChunks(f, c)
	case wire.TypePage:
		p, err := wire.DecodePage(f.Payload)
		if err != nil {
			return wireError(err)
		}
		return v.handlePage(f, p)
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
	case wire.TypeDone:
		if !v.live {
			return nil
		}
	}
	return fmt.Errorf("%w: %v to a reader that did not ask for it", ErrProtocol, f.Type)
}

// send sends a frame that has no reply.
func (v *View) send(t wire.Type, payload []byte) error {
	if err := v.conn.conn.SetWriteDeadline(time.Now().Add(v.opts.Timeout)); err != nil {
		return errLost
	}
	err := v.conn.conn.Write(t, 0, 0, payload)
	if disconnected(err) {
		return errLost
	}
	return err
}

// ack acknowledges what is mapped and the generation applied. If the owner is
// gone, that is no error here: frames that it sent before can still be read, and
// then follow notices.
func (v *View) ack() error {
	err := v.send(wire.TypeAck, wire.Ack{
		Object: v.obj.ID, Chunk: v.track.LastID(), Generation: v.track.Generation(),
	}.Append(nil))
	if errors.Is(err, ErrOwnerGone) {
		return nil
	}
	return err
}

// handleChunks maps the chunks of a frame: all of them or none.
func (v *View) handleChunks(f wire.Frame, c wire.Chunks) error {
	// After a RESYNC a frame with a gap before it was sent too early: it comes
	// again.
	if v.resyncing && c.Records[0].Offset > v.track.End() {
		return v.skipStale()
	}
	v.resyncing = false
	// Every record is checked before any descriptor is used.
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
		// The mapping keeps the memory, and without it the chunks must go: in both
		// cases they are closed.
		for _, c := range chunks {
			if second := c.Close(); err == nil {
				err = second
			}
		}
		if err != nil {
			return fmt.Errorf("map chunks: %w", err)
		}
	}
	// The length is shown before the acknowledgement: the owner may act on it.
	v.track.Mapped(len(fresh))
	v.staleFrames = 0
	if len(fresh) > 0 {
		v.short.had(f.Type)
	}
	v.counts.frames.Add(1)
	v.mu.Lock()
	v.mapped, v.chunks = v.beyond(v.track.End()), v.track.Len()
	v.notifyLenLocked(v.lenLocked())
	v.mu.Unlock()
	for _, fd := range f.FDs[skip:] {
		_ = fd.Close() // what could be imported is memory, whose close does not wait; the others may
	}
	return v.ack()
}

// importAll imports the memory of the records, one after the other: the driver
// takes longer for several at a time. The fds stay open: the closes of all take a while, in which
// nothing should wait for the memory. The caller must close the chunks, also after
// an error.
func (v *View) importAll(records []wire.Chunk, fds []*wire.FD) (chunks []*vmm.Chunk, err error) {
	for i, r := range records {
		c, err := inside.VMM.ImportMade(v.dev, fds[i].Int(), r.Size, vmm.Prop{}, v.opts.made)
		if errors.Is(err, vmm.ErrLimit) {
			err = fmt.Errorf("%w (RLIMIT_NOFILE): %w", errNoFDs, err)
		}
		if err != nil {
			return chunks, err
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

// maxStaleFrames limits the frames that may come after a RESYNC although they were
// sent before it. An owner has two outstanding; the rest is a margin.
const maxStaleFrames = 8

// skipStale skips a frame that comes again.
func (v *View) skipStale() error {
	if v.staleFrames++; v.staleFrames > maxStaleFrames {
		return fmt.Errorf("%w: the owner ignores RESYNC", ErrProtocol)
	}
	return nil
}

// requestAgain sends RESYNC after a frame whose fds did not all fit: it asks for the
// same chunks in frames of half as many. If not even one fits, it asks again after a
// pause that grows, until Timeout has passed without any chunk. After a RESYNC the owner
// sends a page again as well. f has no FDs.
func (v *View) requestAgain(f wire.Frame, cause error) error {
	v.conn.release() // those that came take up room
	had := uint32(f.Header.FDs)
	switch {
	case f.Type != wire.TypeChunks && f.Type != wire.TypePage:
		return nil // its fds are not needed
	case f.Type == wire.TypeChunks && v.resyncing && (had > v.batch || v.leavesGap(f)):
		return v.skipStale()
	}
	v.short.lacks(f.Type)
	if had <= 1 {
		if err := v.short.over(cause); err != nil {
			return err
		}
		select {
		case <-v.conn.ended:
			return errEnded
		case <-time.After(v.short.nextPause()):
		}
	}
	if f.Type == wire.TypeChunks {
		v.batch = max(min(v.batch, had)/2, 1)
	}
	v.resyncing, v.staleFrames = true, 0
	v.counts.resyncs.Add(1)
	r := wire.Resync{Object: v.obj.ID, Batch: v.batch}
	if last := v.track.LastID(); last > 0 {
		r.Next = last + 1
	}
	return v.send(wire.TypeResync, r.Append(nil))
}

// leavesGap reports whether a frame of chunks does not follow on those that are mapped.
func (v *View) leavesGap(f wire.Frame) bool {
	c, err := wire.DecodeChunks(f.Payload)
	return err == nil && c.Records[0].Offset > v.track.End()
}

// handlePage replaces the control page: another process writes to the object.
func (v *View) handlePage(f wire.Frame, p wire.Page) error {
	if p.Object != v.obj.ID || len(f.FDs) != 1 || !v.live {
		return fmt.Errorf("%w: a page of object %d with %d descriptors", ErrProtocol, p.Object, len(f.FDs))
	}
	// The writer can have changed all words of it, for which this owner is not to blame. So
	// none is compared.
	page, err := mapReaderPage(f.FDs[0].Int())
	if err != nil {
		return err
	}
	_ = f.FDs[0].Close() // it is memory, whose close does not wait
	v.staleFrames = 0
	v.short.had(f.Type)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return page.close()
	}
	return v.replacePageLocked(page)
}

// replacePageLocked replaces the control page. What the old one shows that is not on the new one does
// not count: the writer has stored it after its lease ended. If it was seen here, that is an error.
// Requires mu.
func (v *View) replacePageLocked(page *readerPage) error {
	invariants.Held(&v.mu)
	old, shown := v.page, v.lastLen.Load()
	v.page = page
	if n := page.published(); n < shown && page.generation() == v.generation && !v.opts.keepLen {
		v.lastLen.Store(n)
		return closeAfter(fmt.Errorf("%w: its writer has lost the lease, and %d of the %d bytes that it showed count", ErrRetired, n, shown), old)
	}
	v.notifyLenLocked(v.lenLocked())
	return old.close()
}

// handleSealed records the final length.
func (v *View) handleSealed(s wire.Sealed) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	// The final length may not contradict an earlier one, nor hide bytes that were
	// shown.
	n := v.lenLocked()
	switch {
	case s.Object != v.obj.ID || s.Length > v.obj.Max-v.obj.Base:
		return fmt.Errorf("%w: object %d of at most %d bytes is sealed as %d with %d bytes",
			ErrProtocol, v.obj.ID, v.obj.Max, s.Object, s.Length)
	case v.sealed && s.Length != v.sealedLen:
		return fmt.Errorf("%w: sealed with %d bytes after %d", ErrProtocol, s.Length, v.sealedLen)
	case s.Length < n && !v.opts.Unsealed: // else its writer may have shown anything
		return fmt.Errorf("%w: sealed with %d bytes, and %d were published", ErrProtocol, s.Length, n)
	}
	v.sealed, v.sealedLen, v.finished = true, s.Length, true
	if s.HasDigest {
		v.digest = &s.Digest
	}
	v.notifyLenLocked(v.lenLocked())
	return nil
}

// handleDeleted handles the end of the publication. An object that is sealed and
// wholly mapped loses nothing; any other will not grow, which is an error.
func (v *View) handleDeleted(d wire.Deleted) error {
	v.mu.RLock()
	defer v.mu.RUnlock()
	switch {
	case d.Object != v.obj.ID:
		return fmt.Errorf("%w: object %d is deleted instead of %d", ErrProtocol, d.Object, v.obj.ID)
	case v.sealed && v.mapped >= v.sealedLen:
		return nil
	}
	return fmt.Errorf("%w: the publication is closed", ErrOwnerGone)
}

// handleRetire hides, unmaps and acknowledges what the owner takes back, in this
// order: new work must not start on memory that is about to go. After SEALED that can be
// all memory only: the object is deleted by force.
func (v *View) handleRetire(r wire.Retire) error {
	// Only this goroutine sets sealed.
	if v.sealed && (r.Capacity > 0 || !v.live) {
		return fmt.Errorf("%w: sealed memory is taken back", ErrProtocol)
	}
	before := v.track.End()
	_, from, err := v.track.Retire(r)
	if err != nil {
		return wireError(err)
	}
	if err := v.hideFrom(r.Generation, v.beyond(from), v.beyond(before)); err != nil {
		return err
	}
	if from < before {
		if err := v.unmapInTime(from, before-from); err != nil {
			return err
		}
	}
	return v.ack()
}

// hideFrom limits Len and Cap to from and applies the generation. It returns
// ErrRetired if a slice of Host, or a stream that waits, needs the bytes beyond.
func (v *View) hideFrom(generation, from, before uint64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if from < v.hostLen {
		return fmt.Errorf("%w: Host returned %d bytes, and %d are left", ErrRetired, v.hostLen, from)
	}
	// Unmapping waits for the streams that use the memory. One of them that waits
	// for more bytes than are left would never end.
	for _, s := range v.pendingWaits {
		if s.n > from && from < before {
			return fmt.Errorf("%w: a stream waits for %d bytes, and %d are left", ErrRetired, s.n, from)
		}
	}
	v.mapped, v.chunks, v.generation = from, v.track.Len(), generation
	// The owner can take the length back inside a chunk that stays. If the page has
	// the new generation already, its length replaces the old one.
	last := v.lastLen.Load()
	if v.page != nil {
		if n := v.page.published(); v.page.generation() == generation {
			last = n
		}
	}
	v.lastLen.Store(min(last, from))
	v.notifyLenLocked(v.lenLocked())
	return nil
}

// unmapInTime unmaps chunks. If local work on them does not end within Timeout, it
// returns ErrRetired: the View detaches rather than keep the owner waiting.
func (v *View) unmapInTime(off, size uint64) error {
	// The unmap goes on by itself after the timeout; Close waits for it.
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
	case <-v.ctx.Done():
		return errViewClosed
	case <-late.C:
		return fmt.Errorf("%w: work on it has not ended within %v", ErrRetired, v.opts.Timeout)
	}
}

// unmapRetry is the pause between two tries to unmap during a capture, or what is held.
const unmapRetry = 5 * time.Millisecond

// unmap is Reservation.Unmap, except that it tries again until a capture has
// ended, and until a mirror or another library that holds the memory has released it.
func (v *View) unmap(off, size uint64) error {
	for {
		err := v.res.Unmap(off, size)
		if !errors.Is(err, vmm.ErrCapturing) && !errors.Is(err, vmm.ErrBusy) {
			return err
		}
		select {
		case <-v.ctx.Done():
			return err
		case <-time.After(unmapRetry):
		}
		v.mu.RLock()
		ended := v.detached
		v.mu.RUnlock()
		if ended {
			return err
		}
	}
}
