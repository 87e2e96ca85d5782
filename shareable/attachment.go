package shareable

import (
	"errors"
	"fmt"
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
	pub          *Publication
	ses          *session
	wantsPublish bool // the reader asked for PUBLISH frames

	// All that follows is guarded by pub.mu.
	started  bool // OBJECT was sent
	detached bool

	// Chunks.
	nextChunk int      // index in the publication's chunks of the next one to send
	sentID    uint64   // the highest id sent
	ackedID   uint64   // the highest id mapped, as the reader says
	unacked   []uint64 // the last id of each frame that is not acknowledged
	batch     int      // chunks in one frame at most
	charged   uint64   // bytes sent, counted for the user
	stalled   bool     // the next chunk is gone from the range: wait for the next generation

	// Generations.
	sentGeneration  uint64
	ackedGeneration uint64
	retireFrom      uint64 // the capacity for the next RETIRE

	// Lengths.
	sentLen    uint64 // of the last PUBLISH
	sentSealed bool   // SEALED was sent

	// Since when the reader has had chunks to map, or a generation to apply; zero
	// while it has none. See deadline.
	chunksSince, retireSince time.Time
}

// register adds the attachment to its publication. It returns the description
// for the reader and a descriptor of the control page, which the caller must
// close.
func (a *attachment) register(access uint32) (o wire.Object, fd int, err error) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == wire.StateClosed {
		return o, -1, fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	if fd, err = dup(p.page.fd); err != nil {
		return o, -1, err
	}
	o = p.objectLocked(access)
	a.sentGeneration, a.ackedGeneration, a.retireFrom, a.sentLen = o.Generation, o.Generation, p.endLocked(), o.Length
	p.attachments[a] = struct{}{}
	return o, fd, nil
}

// start lets nextFrame send chunks: the reader has OBJECT now.
func (a *attachment) start() {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	a.started = true
	a.ses.wakeSender()
}

// retireLocked has the reader unmap from capacity on, which is the offset of
// chunk i. Requires pub.mu.
func (a *attachment) retireLocked(capacity uint64, i int) {
	invariants.Held(&a.pub.mu)
	a.nextChunk = min(a.nextChunk, i)
	a.retireFrom = min(a.retireFrom, capacity)
	a.stalled = false
}

// outFrame is a frame to be sent.
type outFrame struct {
	kind    wire.Type
	payload []byte
	chunks  []publishedChunk // whose descriptors go with it
	last    bool
}

// sendNext sends the next frame and reports whether there was one.
func (a *attachment) sendNext() (sent bool, err error) {
	f, ok := a.nextFrame()
	if !ok {
		return false, nil
	}
	if len(f.chunks) > 0 {
		return true, a.sendChunks(f)
	}
	if err := a.ses.write(f.kind, 0, f.payload); err != nil {
		return false, err
	}
	if f.last {
		a.detach()
	}
	return true, nil
}

// nextFrame returns the next frame for the reader and records it as sent. Its
// priorities, the first that applies:
//
//  1. DELETED, once the publication is closed and the reader knows whether it was
//     sealed: nothing else matters then;
//  2. RETIRE, if the generation has moved: the owner waits for it, and chunks of
//     the new generation must come after it;
//  3. CHUNKS, while the window has room;
//  4. PUBLISH, if the reader asked for it and the length has moved;
//  5. SEALED, after the chunks;
//  6. DELETED, if the publication has failed and all of the above is sent.
func (a *attachment) nextFrame() (f outFrame, ok bool) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !a.started || a.detached:
		return f, false
	case p.state == wire.StateClosed && p.sealed == a.sentSealed:
		return outFrame{kind: wire.TypeDeleted, payload: wire.Deleted{Object: p.id}.Append(nil), last: true}, true
	case a.sentGeneration != p.generation:
		a.sentGeneration = p.generation
		f = outFrame{kind: wire.TypeRetire, payload: wire.Retire{Object: p.id, Generation: a.sentGeneration, Capacity: a.retireFrom}.Append(nil)}
		a.retireFrom = p.endLocked()
		// The acknowledgement of a RETIRE stands for all frames before it.
		a.unacked, a.chunksSince = nil, time.Time{}
		startClock(&a.retireSince)
		return f, true
	case a.nextChunk < len(p.chunks) && len(a.unacked) < a.windowLocked() && !a.stalled:
		return a.chunksFrameLocked(), true
	case a.wantsPublish && a.sentLen != p.published:
		a.sentLen = p.published
		f := wire.Publish{Object: p.id, Length: p.published, Generation: p.generation, Timeline: p.published}
		return outFrame{kind: wire.TypePublish, payload: f.Append(nil)}, true
	case p.sealed && !a.sentSealed:
		a.sentSealed = true
		f := wire.Sealed{Object: p.id, Length: p.published}
		if p.digest != nil {
			f.HasDigest, f.Digest = true, *p.digest
		}
		return outFrame{kind: wire.TypeSealed, payload: f.Append(nil)}, true
	case p.failed != nil && p.state == wire.StateLive:
		return outFrame{kind: wire.TypeDeleted, payload: wire.Deleted{Object: p.id}.Append(nil), last: true}, true
	}
	return f, false
}

// windowLocked is how many frames of chunks may be unacknowledged: descriptors in
// flight keep memory. A chunk that is not exported yet waits until the reader has
// imported the last frame, because the driver takes longer for an export and an
// import at a time than for one after the other. Requires pub.mu.
func (a *attachment) windowLocked() int {
	invariants.Held(&a.pub.mu)
	if a.pub.srv.fds.has(a.pub.chunks[a.nextChunk].seg) {
		return 2
	}
	return 1
}

// chunksFrameLocked makes a frame of the next chunks and records them as sent.
// Requires pub.mu.
func (a *attachment) chunksFrameLocked() outFrame {
	invariants.Held(&a.pub.mu)
	p := a.pub
	pieces := append([]publishedChunk(nil), p.chunks[a.nextChunk:min(len(p.chunks), a.nextChunk+a.batch)]...)
	a.nextChunk += len(pieces)
	msg := wire.Chunks{Object: p.id, Generation: a.sentGeneration}
	for _, c := range pieces {
		msg.Records = append(msg.Records, c.Chunk)
	}
	a.sentID = max(a.sentID, pieces[len(pieces)-1].ID)
	a.unacked = append(a.unacked, pieces[len(pieces)-1].ID)
	a.retireFrom = max(a.retireFrom, p.endLocked())
	startClock(&a.chunksSince)
	return outFrame{kind: wire.TypeChunks, payload: msg.Append(nil), chunks: pieces}
}

// startClock sets since to now, unless it is set.
func startClock(since *time.Time) {
	if since.IsZero() {
		*since = time.Now()
	}
}

// restartClock sets since to now if there is more to do, else to zero.
func restartClock(since *time.Time, more bool) {
	*since = time.Time{}
	if more {
		startClock(since)
	}
}

// sendChunks sends chunks with their descriptors.
func (a *attachment) sendChunks(f outFrame) error {
	p := a.pub
	// The user is charged before the descriptors are sent: they cannot be taken
	// back.
	if err := a.charge(f.chunks[len(f.chunks)-1]); err != nil {
		_ = a.ses.refuse(0, wire.CodeLimit, err.Error())
		return err
	}
	acquired := make([]*cachedFD, 0, len(f.chunks))
	fds := make([]int, 0, len(f.chunks))
	defer func() {
		for i, d := range acquired {
			p.releaseFD(f.chunks[i], d)
		}
	}()
	for _, c := range f.chunks {
		d, err := p.srv.fds.acquire(c.seg)
		if err != nil {
			return a.undoChunks(f, err)
		}
		acquired, fds = append(acquired, d), append(fds, d.fd)
	}
	if err := a.ses.write(f.kind, 0, f.payload, fds...); err != nil {
		return err
	}
	p.srv.counts.frames.Add(1)
	return nil
}

// charge counts the memory up to the end of the chunk for the reader's user.
func (a *attachment) charge(last publishedChunk) error {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	end := last.Offset + last.Size
	if end <= a.charged || a.detached {
		return nil
	}
	err := a.pub.srv.charge(a.ses.cred.UID, end-a.charged)
	if err == nil {
		a.charged = end
	}
	return err
}

// undoChunks undoes chunksFrameLocked if a chunk could not be exported because
// the range has unmapped it: the publication will notice that and retire it. Any
// other cause is returned.
func (a *attachment) undoChunks(f outFrame, cause error) error {
	if !errors.Is(cause, vmm.ErrClosed) {
		return cause
	}
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	a.nextChunk = min(a.nextChunk, p.indexLocked(f.chunks[0].ID))
	a.unacked = a.unacked[:max(len(a.unacked)-1, 0)]
	if len(a.unacked) == 0 {
		a.chunksSince = time.Time{}
	}
	a.stalled = a.sentGeneration == p.generation && p.state != wire.StateClosed
	return nil
}

// acknowledge records what the reader has mapped and applied, and reports whether
// that is new. Only a new one restarts the reader's time.
func (a *attachment) acknowledge(ack wire.Ack) (news bool, err error) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	// A reader cannot have more than was sent to it.
	if ack.Chunk > a.sentID || ack.Generation > a.sentGeneration {
		return false, &wire.ProtocolError{What: fmt.Sprintf("chunk %d and generation %d are acknowledged, but %d and %d were sent", ack.Chunk, ack.Generation, a.sentID, a.sentGeneration)}
	}
	// The two clocks are apart: chunks that are mapped do not excuse a RETIRE.
	if ack.Generation > a.ackedGeneration {
		a.ackedGeneration, news = ack.Generation, true
		restartClock(&a.retireSince, a.ackedGeneration < a.sentGeneration)
	}
	if ack.Chunk > a.ackedID {
		a.ackedID, news = ack.Chunk, true
	}
	// One acknowledgement may stand for several frames.
	before := len(a.unacked)
	for len(a.unacked) > 0 && a.unacked[0] <= a.ackedID {
		a.unacked = a.unacked[1:]
	}
	if len(a.unacked) < before {
		restartClock(&a.chunksSince, len(a.unacked) > 0)
		news = true
	}
	if news {
		p.signalLocked()
	}
	return news, nil
}

// deadline is when the reader must have acknowledged; zero if it has nothing to
// acknowledge.
func (a *attachment) deadline() time.Time {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	first := a.chunksSince
	if first.IsZero() || !a.retireSince.IsZero() && a.retireSince.Before(first) {
		first = a.retireSince
	}
	if first.IsZero() || a.detached {
		return time.Time{}
	}
	return first.Add(a.pub.srv.opts.AckTimeout)
}

// resync goes back to the chunk that the reader asks for, in smaller frames.
func (a *attachment) resync(q wire.Resync) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	a.batch = int(min(max(q.Batch, 1), wire.MaxFDs))
	if i := p.indexLocked(q.Next); i < a.nextChunk {
		a.nextChunk, a.unacked = i, nil // the clock runs on: a RESYNC wins the reader no time
	}
}

// detach ends the attachment. Twice is fine.
func (a *attachment) detach() {
	p := a.pub
	p.mu.Lock()
	again := a.detached
	a.detached = true
	delete(p.attachments, a)
	charged := a.charged
	a.charged = 0
	p.signalLocked()
	p.mu.Unlock()
	p.wakes.remove(a)
	a.ses.removeAttachment(a)
	if !again {
		p.srv.refund(a.ses.cred.UID, charged)
	}
}
