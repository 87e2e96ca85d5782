package shareable

import (
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// attachment is what one reader has of one publication. Its fields are guarded
// by the publication's mu.
type attachment struct {
	pub   *Publication
	ses   *session
	wantsPublish bool // PUBLISH frames

	started   bool     // the reader knows what the object is
	nextChunk    int      // of the publication's chunks, the first that is to be sent
	sentID    uint64   // the highest id that was sent
	ackedID   uint64   // the highest that is mapped
	unacked  []uint64 // the last ids of frames that are not acknowledged
	batch   int      // chunks in one frame
	charged uint64   // bytes of memory sent, counted for the user

	sentGeneration     uint64 // generation
	ackedGeneration  uint64 // generation, as the reader says
	retireFrom uint64 // from which on the reader is to unmap

	stalled bool   // until the next generation: a chunk to be sent is gone
	sentLen  uint64 // published to it
	sentSealed  bool   // told
	detached    bool

	// Since when it owes what it does: to map chunks, to apply a generation.
	// Zero: it does not.
	chunksSince, retireSince time.Time
}

// begin joins the publication and gives what the reader has to know first, with
// a descriptor of the page that the caller has to close.
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

// open lets the chunks follow.
func (a *attachment) start() {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	a.started = true
	a.ses.wakeSender()
}

// retire has the reader unmap from capacity on, where the i-th chunk is. It
// needs p.mu.
func (a *attachment) retireLocked(capacity uint64, i int) {
	a.nextChunk = min(a.nextChunk, i)
	a.retireFrom = min(a.retireFrom, capacity)
	a.stalled = false
}

// frame is what is to be sent next.
type outFrame struct {
	kind    wire.Type
	payload []byte
	chunks  []publishedChunk // whose descriptors go with it
	last    bool
}

// sendNext sends one frame, if there is one to send.
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

// derive works out what the reader has to be told next, and takes it as told.
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
		a.unacked, a.chunksSince = nil, time.Time{}
		startClock(&a.retireSince)
		return f, true
	case a.nextChunk < len(p.chunks) && len(a.unacked) < a.windowLocked() && !a.stalled:
		return a.chunksFrameLocked(), true
	case a.wantsPublish && a.sentLen != p.done:
		a.sentLen = p.done
		f := wire.Publish{Object: p.id, Length: p.done, Generation: p.generation, Timeline: p.done}
		return outFrame{kind: wire.TypePublish, payload: f.Append(nil)}, true
	case p.sealed && !a.sentSealed:
		a.sentSealed = true
		f := wire.Sealed{Object: p.id, Length: p.done}
		if p.digest != nil {
			f.HasDigest, f.Digest = true, *p.digest
		}
		return outFrame{kind: wire.TypeSealed, payload: f.Append(nil)}, true
	case p.failed != nil && p.state == wire.StateLive:
		return outFrame{kind: wire.TypeDeleted, payload: wire.Deleted{Object: p.id}.Append(nil), last: true}, true
	}
	return f, false
}

// window is how many frames of chunks a reader may have that it has not
// acknowledged: their descriptors are in flight, and keep memory. What has to be
// exported first waits for the reader to have imported the last: the driver takes
// longer for both at a time than for one after the other. It needs p.mu.
func (a *attachment) windowLocked() int {
	if a.pub.srv.fds.has(a.pub.chunks[a.nextChunk].seg) {
		return 2
	}
	return 1
}

// deriveChunks takes the next chunks as sent. It needs p.mu.
func (a *attachment) chunksFrameLocked() outFrame {
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

// startClock starts the time in which the reader has to do something, unless it runs.
func startClock(since *time.Time) {
	if since.IsZero() {
		*since = time.Now()
	}
}

// restartClock starts it once more if there is more to do.
func restartClock(since *time.Time, more bool) {
	*since = time.Time{}
	if more {
		startClock(since)
	}
}

// sendChunks sends chunks with their descriptors.
func (a *attachment) sendChunks(f outFrame) error {
	p := a.pub
	if err := a.charge(f.chunks[len(f.chunks)-1]); err != nil {
		_ = a.ses.refuse(0, wire.CodeLimit, err.Error())
		return err
	}
	held := make([]*cachedFD, 0, len(f.chunks))
	fds := make([]int, 0, len(f.chunks))
	defer func() {
		for i, d := range held {
			p.releaseFD(f.chunks[i], d)
		}
	}()
	for _, c := range f.chunks {
		d, err := p.srv.fds.acquire(c.seg)
		if err != nil {
			return a.undoChunks(f, err)
		}
		held, fds = append(held, d), append(fds, d.fd)
	}
	if err := a.ses.write(f.kind, 0, f.payload, fds...); err != nil {
		return err
	}
	p.srv.counts.frames.Add(1)
	return nil
}

// charge counts the memory up to the end of the last chunk sent for the user.
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

// unsent takes back what derive took as sent, if the reason is a chunk that the
// range has given up; the publication will see that and retire it. Any other
// reason is an error.
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

// acknowledge takes note of what the reader has, and says whether that is news:
// its time goes on for one that says the same again and again. One that has more
// than it was sent is no reader of this protocol.
func (a *attachment) acknowledge(ack wire.Ack) (news bool, err error) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	if ack.Chunk > a.sentID || ack.Generation > a.sentGeneration {
		return false, &wire.ProtocolError{What: fmt.Sprintf("chunk %d and generation %d are acknowledged, but %d and %d were sent", ack.Chunk, ack.Generation, a.sentID, a.sentGeneration)}
	}
	if ack.Generation > a.ackedGeneration {
		a.ackedGeneration, news = ack.Generation, true
		restartClock(&a.retireSince, a.ackedGeneration < a.sentGeneration)
	}
	if ack.Chunk > a.ackedID {
		a.ackedID, news = ack.Chunk, true
	}
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

// due is when the reader has had time enough; zero if it owes nothing.
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

// resync sends again what the reader says it lacks.
func (a *attachment) resync(q wire.Resync) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	a.batch = int(min(max(q.Batch, 1), wire.MaxFDs))
	if i := p.indexLocked(q.Next); i < a.nextChunk {
		a.nextChunk, a.unacked = i, nil // the clock goes on: asking again takes no time off
	}
}

// leave ends the attachment. Twice is fine.
func (a *attachment) detach() {
	p := a.pub
	p.mu.Lock()
	gone := a.detached
	a.detached = true
	delete(p.attachments, a)
	charged := a.charged
	a.charged = 0
	p.signalLocked()
	p.mu.Unlock()
	a.ses.removeAttachment(a)
	if !gone {
		p.srv.refund(a.ses.cred.UID, charged)
	}
}
