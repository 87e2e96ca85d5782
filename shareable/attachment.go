package shareable

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// attachment is one reader's state of one publication: what was sent to it, and
// what it has acknowledged. The next frame follows from the difference between
// this state and the publication's, so nothing is queued for a reader.
type attachment struct {
	// Immutable.
	obj          *object
	ses          *session
	wantsPublish bool // the reader asked for PUBLISH frames, as no View of this package does

	// All that follows is guarded by obj.mu.
	started  bool // OBJECT was sent
	detached bool

	// Chunks.
	nextChunk    int       // index in the publication's chunks of the next one to send
	sentID       uint64    // the highest id sent
	ackedID      uint64    // the highest id that the reader has acknowledged
	unacked      []uint64  // the last id of each frame that is not acknowledged
	batch        int       // chunks in one frame at most
	charged      uint64    // bytes sent of what is published, counted for the user
	retryAt      time.Time // no chunks before then; zero: at once
	blockedClock stopwatch // since when the next chunks cannot be sent

	// Generations. At most one RETIRE is not acknowledged.
	sentGeneration  uint64
	ackedGeneration uint64
	retireFrom      uint64 // the capacity for the next RETIRE
	retiredID       uint64 // sentID when the last RETIRE was sent

	// Lengths.
	sentPage   *ownerPage // the page that the reader has; lostPage if it may lack it
	sentLen    uint64     // of the last PUBLISH
	sentSealed bool       // SEALED was sent

	// Since when the reader has had chunks to map without progress, or since when it
	// lacks a generation. See due.
	chunksClock, retireClock stopwatch
}

// register adds the attachment to its object. It returns the description for the
// reader and a descriptor of the control page, which the caller must close. With bare
// there is none, and fd is -1.
func (a *attachment) register(q wire.Attach, bare bool) (desc wire.Object, fd int, err error) {
	o := a.obj
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == wire.StateClosed || a.detached {
		return desc, -1, fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	if o.stored != nil && !o.sealed && q.Flags&wire.AttachUnsealed == 0 {
		return desc, -1, fmt.Errorf("%w: object %d", ErrNotSealed, o.id)
	}
	if o.stored != nil && o.sealed && q.Access == wire.AccessReadWrite && q.Flags&wire.AttachAgain == 0 {
		return desc, -1, fmt.Errorf("%w: object %d is sealed", vmm.ErrPermission, o.id)
	}
	if q.Flags&wire.AttachAgain != 0 {
		if err := a.skipSentLocked(q.After); err != nil {
			return desc, -1, err
		}
	}
	fd = -1
	if !bare {
		if fd, err = o.pageFDLocked(); err != nil {
			return desc, -1, err
		}
	}
	a.sentPage = o.page
	desc = o.describeLocked(q.Name, q.Access)
	a.sentGeneration, a.ackedGeneration, a.retireFrom, a.sentLen = desc.Generation, desc.Generation, o.endLocked(), desc.Length
	o.attachments[a] = struct{}{}
	return desc, fd, nil
}

// skipSentLocked records that the reader has mapped the chunks up to an id, which a server before
// this one has sent. Requires obj.mu.
func (a *attachment) skipSentLocked(id uint64) error {
	o := a.obj
	invariants.Held(&o.mu)
	if o.stored == nil || id > o.lastID {
		return fmt.Errorf("%w: no server before this one had chunk %d of object %d", ErrNotFound, id, o.id)
	}
	i := o.indexLocked(id + 1)
	if i > 0 {
		end := o.chunks[i-1].Offset + o.chunks[i-1].Size
		if err := o.srv.charge(a.ses.cred.UID, end); err != nil {
			return err
		}
		a.charged = end
	}
	a.nextChunk, a.sentID, a.ackedID = i, id, id
	return nil
}

// start lets nextFrame send chunks: the reader has OBJECT now. The caller wakes the writer.
func (a *attachment) start() {
	a.obj.mu.Lock()
	defer a.obj.mu.Unlock()
	a.started = true
}

// retireLocked has the reader unmap from capacity on, which is the offset of
// chunk i. Requires obj.mu.
func (a *attachment) retireLocked(capacity uint64, i int) {
	invariants.Held(&a.obj.mu)
	a.nextChunk = min(a.nextChunk, i)
	a.retireFrom = min(a.retireFrom, capacity)
	// The reader's time for this generation starts now, even if no frame can go yet. If an
	// earlier RETIRE is not acknowledged, its time runs on.
	a.retireClock.start(a.obj.srv)
	a.unblockLocked()
	if capacity < a.charged {
		a.obj.srv.refund(a.ses.cred.UID, a.charged-capacity)
		a.charged = capacity
	}
}

// outFrame is a frame to be sent.
type outFrame struct {
	kind    wire.Type
	payload []byte
	page    int // the descriptor of a PAGE, which is closed when it is sent
	last    bool
}

// sendNext sends the next frame. It returns false if none can be sent now.
func (a *attachment) sendNext() (sent bool, err error) {
	// Chunks are exported without a lock, and before anything is recorded: the driver
	// takes long, and can refuse.
	next := a.nextChunks()
	acquired, fds, err := a.exportChunks(next)
	defer func() {
		for i, d := range acquired {
			a.obj.releaseFD(next[i], d)
		}
	}()
	if err != nil {
		_ = a.ses.refuse(0, wire.CodeInternal, err.Error())
		return false, err
	}
	var chunks []publishedChunk
	if len(fds) == len(next) { // else later; other frames can go
		chunks = next
	}
	a.ses.sending.Lock()
	defer a.ses.sending.Unlock()
	f, ok, err := a.nextFrame(chunks)
	if errors.Is(err, errStillHeld) {
		if a.obj.srv.forgetFreed(a.ses.cred.UID) {
			return true, nil
		}
		if a.block() {
			chunks = nil // later; other frames can go
			f, ok, err = a.nextFrame(nil)
		}
	}
	if err != nil {
		_ = a.ses.refuse(0, codeOf(err), err.Error())
		return false, err
	}
	if !ok {
		return len(chunks) > 0, nil // the next chunks have changed: try again
	}
	switch f.kind {
	case wire.TypeChunks:
	case wire.TypePage:
		fds = []int{f.page}
		defer closeFD(f.page) //nolint:errcheck // the reader has its own
	default:
		fds = nil
	}
	if err := a.ses.write(f.kind, 0, f.payload, fds...); err != nil {
		return false, err
	}
	if f.kind == wire.TypeChunks {
		a.ses.unreadFrames.Add(1)
		a.obj.srv.counts.frames.Add(1)
	}
	if f.last {
		a.detach()
	}
	return true, nil
}

// nextChunks returns the chunks to send next; none while they have to wait.
func (a *attachment) nextChunks() []publishedChunk {
	o := a.obj
	o.mu.Lock()
	defer o.mu.Unlock()
	if !a.retryAt.IsZero() {
		if time.Now().Before(a.retryAt) {
			return nil
		}
		a.retryAt = time.Time{}
	}
	chunks := a.sendableLocked()
	switch {
	case len(chunks) == 0:
		return nil
	case a.ses.mayHaveUnread(): // the reader's time runs until it reads that
		a.chunksClock.start(o.srv)
		a.retryAt = time.Now().Add(retryDelay)
		return nil
	case a.hasAllLocked():
		a.chunksClock = stopwatch{}
	}
	return slices.Clone(chunks)
}

// hasAllLocked reports whether the reader has acknowledged all chunks that were sent.
// Requires obj.mu.
func (a *attachment) hasAllLocked() bool {
	invariants.Held(&a.obj.mu)
	return len(a.unacked) == 0 && a.ackedID == a.sentID
}

// sendableLocked returns the chunks that the reader lacks and may have now. Requires
// obj.mu.
func (a *attachment) sendableLocked() []publishedChunk {
	invariants.Held(&a.obj.mu)
	o := a.obj
	if !a.started || a.detached || a.sentGeneration != o.generation || a.nextChunk >= len(o.chunks) || len(a.unacked) >= a.windowLocked() {
		return nil
	}
	chunks := o.chunks[a.nextChunk:min(len(o.chunks), a.nextChunk+a.batch)]
	if o.stored != nil {
		chunks = chunks[:o.stored.promisedLocked(chunks)]
	}
	return chunks
}

// windowLocked is how many frames of chunks may be unacknowledged: descriptors in
// flight keep memory. A chunk that is not exported yet waits until the reader has
// imported the last frame, because the driver takes longer for an export and an
// import at a time than for one after the other. Requires obj.mu.
func (a *attachment) windowLocked() int {
	invariants.Held(&a.obj.mu)
	if a.obj.srv.fds.hasChunk(a.obj.chunks[a.nextChunk]) {
		return 2
	}
	return 1
}

// blockRetry is the pause before chunks that could not be sent are tried again. A new
// generation ends it.
const blockRetry = 50 * time.Millisecond

// exportChunks returns a descriptor of each chunk, or fewer if one cannot be exported
// now. The caller must release those it has acquired. After an error no try will help.
func (a *attachment) exportChunks(chunks []publishedChunk) (acquired []*cachedFD, fds []int, err error) {
	for _, c := range chunks {
		d, err := a.obj.srv.fds.acquireChunk(c)
		if err != nil {
			return acquired, fds, a.exportFailed(c, err)
		}
		acquired, fds = append(acquired, d), append(fds, d.fd)
	}
	return acquired, fds, nil
}

// exportFailed has a chunk tried again later. It returns the cause once that has lasted
// for AckTimeout. Which error an export returns while the range gives the chunk up
// depends on how far that is, so the range is asked instead: what it does not have any
// more is waited for, since the publication will notice too.
func (a *attachment) exportFailed(c publishedChunk, cause error) error {
	o := a.obj
	gone := o.gaveUp != nil && o.gaveUp(c.seg)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.hasLocked(c) {
		return nil
	}
	if gone {
		a.blockedClock = stopwatch{}
	}
	if !a.blockLocked() {
		return fmt.Errorf("export chunk %d: %w", c.ID, cause)
	}
	return nil
}

// block has the next chunks wait, unless they have done so for AckTimeout.
func (a *attachment) block() (waits bool) {
	a.obj.mu.Lock()
	defer a.obj.mu.Unlock()
	return a.blockLocked()
}

// blockLocked is block. Requires obj.mu.
func (a *attachment) blockLocked() (waits bool) {
	invariants.Held(&a.obj.mu)
	a.retryAt = time.Now().Add(blockRetry)
	a.blockedClock.start(a.obj.srv)
	return !a.blockedClock.isOver(a.obj.srv)
}

// unblockLocked undoes blockLocked. Requires obj.mu.
func (a *attachment) unblockLocked() {
	invariants.Held(&a.obj.mu)
	a.retryAt, a.blockedClock = time.Time{}, stopwatch{}
}

// lostPage stands for a page of a writer's that is no object's any more.
var lostPage = &ownerPage{foreign: &readerPage{}}

// nextFrame returns the next frame for the reader and records it as sent; chunks are
// those that can be sent. Its priorities, the first that applies:
//
//  1. DELETED, once the publication is closed, the reader knows whether it was
//     sealed, and it has no page that a writer may write to yet: nothing else matters then;
//  2. RETIRE, if the generation has moved and the last RETIRE is acknowledged: the
//     owner waits for it, and all that follows must come after it;
//  3. PAGE, if another process writes to the object than before, or none any more;
//  4. CHUNKS, while the window has room;
//  5. PUBLISH, if the reader asked for it and the length has moved;
//  6. SEALED, after the chunks;
//  7. DELETED, if the publication has failed and all of the above is sent, or never
//     can be.
func (a *attachment) nextFrame(chunks []publishedChunk) (f outFrame, ok bool, err error) {
	o := a.obj
	o.mu.Lock()
	defer o.mu.Unlock()
	closed := o.state == wire.StateClosed
	otherPage := o.page != a.sentPage && !o.sealed && (!closed || a.sentPage != nil && a.sentPage.foreign != nil)
	deleted := outFrame{kind: wire.TypeDeleted, payload: wire.Deleted{Object: o.id}.Append(nil), last: true}
	switch {
	case !a.started || a.detached:
		return f, false, nil
	case closed && o.sealed == a.sentSealed && !otherPage:
		return deleted, true, nil
	case a.sentGeneration != o.generation:
		// A closed publication waits for no reader.
		if a.ackedGeneration != a.sentGeneration && !closed {
			return f, false, nil
		}
		return a.retireFrameLocked(), true, nil
	case otherPage:
		fd, err := o.pageFDLocked()
		if err != nil && closed {
			return deleted, true, nil
		}
		if err != nil {
			if a.blockLocked() { // the limit on open files is reached: later
				err = nil
			}
			return f, false, err
		}
		a.unblockLocked()
		a.sentPage = o.page
		return outFrame{kind: wire.TypePage, payload: wire.Page{Object: o.id}.Append(nil), page: fd}, true, nil
	case len(chunks) > 0:
		return a.chunksFrameLocked(chunks)
	case a.wantsPublish && a.tookLenLocked():
		f := wire.Publish{Object: o.id, Length: a.sentLen, Generation: o.generation, Timeline: a.sentLen}
		return outFrame{kind: wire.TypePublish, payload: f.Append(nil)}, true, nil
	case o.sealed && !a.sentSealed:
		a.sentSealed = true
		f := wire.Sealed{Object: o.id, Length: o.published}
		if o.digest != nil {
			f.HasDigest, f.Digest = true, *o.digest
		}
		return outFrame{kind: wire.TypeSealed, payload: f.Append(nil)}, true, nil
	case o.failed != nil && o.state == wire.StateLive && (a.nextChunk == len(o.chunks) || a.blockedClock.runs()):
		return deleted, true, nil
	}
	return f, false, nil
}

// tookLenLocked takes the length for a PUBLISH, and reports whether it has moved since the last one.
// Requires obj.mu.
func (a *attachment) tookLenLocked() bool {
	invariants.Held(&a.obj.mu)
	before := a.sentLen
	a.sentLen = a.obj.lenLocked()
	return a.sentLen != before
}

// retireFrameLocked makes a RETIRE of the newest generation and records it as sent.
// Requires obj.mu.
func (a *attachment) retireFrameLocked() outFrame {
	invariants.Held(&a.obj.mu)
	o := a.obj
	a.sentGeneration = o.generation
	f := wire.Retire{Object: o.id, Generation: a.sentGeneration, Capacity: a.retireFrom}
	a.retireFrom = o.endLocked()
	a.retiredID = a.sentID
	return outFrame{kind: wire.TypeRetire, payload: f.Append(nil)}
}

// chunksFrameLocked makes a frame of the chunks and records them as sent, unless others
// have become the next. Requires obj.mu.
func (a *attachment) chunksFrameLocked(chunks []publishedChunk) (f outFrame, ok bool, err error) {
	invariants.Held(&a.obj.mu)
	o := a.obj
	if !slices.EqualFunc(chunks, a.sendableLocked(), sameChunk) {
		return f, false, nil
	}
	last := chunks[len(chunks)-1]
	// The user is charged before the descriptors are sent: they cannot be taken back.
	if end := last.Offset + last.Size; end > a.charged {
		if err := o.srv.charge(a.ses.cred.UID, end-a.charged); err != nil {
			return f, false, err
		}
		a.charged = end
	}
	if o.srv.limitsBytes() {
		o.noteSentLocked(a.nextChunk, len(chunks), a.ses.cred.UID)
	}
	a.unblockLocked()
	a.nextChunk += len(chunks)
	msg := wire.Chunks{Object: o.id, Generation: a.sentGeneration}
	for _, c := range chunks {
		msg.Records = append(msg.Records, c.Chunk)
	}
	a.sentID = max(a.sentID, last.ID)
	a.unacked = append(a.unacked, last.ID)
	a.retireFrom = max(a.retireFrom, o.endLocked())
	a.chunksClock.start(o.srv)
	return outFrame{kind: wire.TypeChunks, payload: msg.Append(nil)}, true, nil
}

// stopwatch measures how long something lasts, in looks of the server, so it stands still while the process does.
// The zero value does not run.
type stopwatch struct {
	since time.Time
	look  uint64 // of the server at that time
}

// start starts a stopwatch, unless it runs.
func (w *stopwatch) start(s *Server) {
	if !w.runs() {
		*w = stopwatch{time.Now(), s.looks.Load()}
	}
}

func (w stopwatch) runs() bool { return !w.since.IsZero() }

// isOver reports whether a stopwatch has run for AckTimeout.
func (w stopwatch) isOver(s *Server) bool { return w.runs() && s.looks.Load()-w.look > ackLooks }

// acknowledge records what the reader has mapped and applied, and reports whether
// that is new.
func (a *attachment) acknowledge(ack wire.Ack) (changed bool, err error) {
	o := a.obj
	o.mu.Lock()
	defer o.mu.Unlock()
	// A reader cannot have more than was sent to it.
	if ack.Chunk > a.sentID || ack.Generation > a.sentGeneration {
		return false, &wire.ProtocolError{What: fmt.Sprintf("chunk %d and generation %d are acknowledged, but %d and %d were sent", ack.Chunk, ack.Generation, a.sentID, a.sentGeneration)}
	}
	acked := ack.Chunk
	if ack.Generation == a.sentGeneration && ack.Generation > a.ackedGeneration {
		a.ackedGeneration, a.retireClock, changed = ack.Generation, stopwatch{}, true
		if a.sentGeneration != o.generation {
			a.retireClock.start(o.srv)
		}
		acked = max(acked, a.retiredID) // it stands for all frames before the RETIRE
	}
	progress := acked > a.ackedID
	a.ackedID = max(a.ackedID, acked)
	// One acknowledgement may stand for several frames.
	for len(a.unacked) > 0 && a.unacked[0] <= a.ackedID {
		a.unacked = a.unacked[1:]
		changed = true
	}
	changed = changed || progress
	// Only new acknowledgements give the reader more time, and not those of chunks that it had
	// acknowledged before and asked for again.
	switch {
	case changed && a.hasAllLocked():
		a.chunksClock = stopwatch{}
	case progress:
		a.chunksClock = stopwatch{}
		a.chunksClock.start(o.srv)
	}
	if changed {
		o.signalLocked()
	}
	return changed, nil
}

// behindLocked is since when the reader has not done what it was told. Requires obj.mu.
func (a *attachment) behindLocked() stopwatch {
	invariants.Held(&a.obj.mu)
	if !a.chunksClock.runs() || a.retireClock.runs() && a.retireClock.since.Before(a.chunksClock.since) {
		return a.retireClock
	}
	return a.chunksClock
}

// due returns errTooSlow if the reader's time is over. Otherwise it returns when to look again; zero means after
// the next event.
func (a *attachment) due() (at time.Time, err error) {
	a.obj.mu.Lock()
	defer a.obj.mu.Unlock()
	if a.detached {
		return at, nil
	}
	at = a.retryAt
	switch first := a.behindLocked(); {
	case first.isOver(a.obj.srv):
		return at, fmt.Errorf("%w to acknowledge", errTooSlow)
	case first.runs():
		if look := time.Now().Add(a.obj.srv.lookPause()); at.IsZero() || look.Before(at) {
			at = look
		}
	}
	return at, nil
}

// resync goes back to the chunk that the reader asks for, in smaller frames.
func (a *attachment) resync(q wire.Resync) {
	o := a.obj
	o.mu.Lock()
	defer o.mu.Unlock()
	a.batch = int(min(max(q.Batch, 1), wire.MaxFDs))
	if o.stored != nil { // the reader may have had no room for it
		a.sentPage = lostPage
	}
	if i := o.indexLocked(q.Next); i < a.nextChunk {
		a.nextChunk, a.unacked = i, nil // the clock runs on: a RESYNC wins the reader no time
	}
}

// isLent reports whether the reader was sent memory that it has to give back before the object can
// end unused.
func (a *attachment) isLent() bool {
	a.obj.mu.Lock()
	defer a.obj.mu.Unlock()
	return a.obj.lent && a.sentID > 0 && !a.detached && a.obj.state != wire.StateClosed
}

// detach ends the attachment. Twice is fine.
func (a *attachment) detach() {
	o := a.obj
	o.mu.Lock()
	wasDetached := a.detached
	a.detached = true
	delete(o.attachments, a)
	charged := a.charged
	a.charged = 0
	o.signalLocked()
	o.mu.Unlock()
	o.wakes.remove(a)
	a.ses.removeAttachment(a)
	if wasDetached {
		return
	}
	o.srv.refund(a.ses.cred.UID, charged)
	if h := o.srv.opts.hooks.handler; h != nil && o.stored != nil {
		h.Readers(o.stored)
	}
}
