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
	wants bool // PUBLISH frames

	ready   bool     // the reader knows what the object is
	next    int      // of the publication's chunks, the first that is to be sent
	sent    uint64   // the highest id that was sent
	acked   uint64   // the highest that is mapped
	flight  []uint64 // the last ids of frames that are not acknowledged
	batch   int      // chunks in one frame
	charged uint64   // bytes of memory sent, counted for the user

	told     uint64 // generation
	applied  uint64 // generation, as the reader says
	capacity uint64 // from which on the reader is to unmap

	stalled bool   // until the next generation: a chunk to be sent is gone
	length  uint64 // published to it
	sealed  bool   // told
	gone    bool

	// Since when it owes what it does: to map chunks, to apply a generation.
	// Zero: it does not.
	owes, behind time.Time
}

// begin joins the publication and gives what the reader has to know first, with
// a descriptor of the page that the caller has to close.
func (a *attachment) begin(access uint32) (o wire.Object, fd int, err error) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == wire.StateClosed {
		return o, -1, fmt.Errorf("%w: publication", vmm.ErrClosed)
	}
	if fd, err = dup(p.page.fd); err != nil {
		return o, -1, err
	}
	o = p.describe(access)
	a.told, a.applied, a.capacity, a.length = o.Generation, o.Generation, p.end(), o.Length
	p.attached[a] = struct{}{}
	return o, fd, nil
}

// open lets the chunks follow.
func (a *attachment) open() {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	a.ready = true
	a.ses.rouse()
}

// retire has the reader unmap from capacity on, where the i-th chunk is. It
// needs p.mu.
func (a *attachment) retire(capacity uint64, i int) {
	a.next = min(a.next, i)
	a.capacity = min(a.capacity, capacity)
	a.stalled = false
}

// frame is what is to be sent next.
type frame struct {
	kind    wire.Type
	payload []byte
	pieces  []piece // whose descriptors go with it
	last    bool
}

// sendNext sends one frame, if there is one to send.
func (a *attachment) sendNext() (sent bool, err error) {
	f, ok := a.derive()
	if !ok {
		return false, nil
	}
	if len(f.pieces) > 0 {
		return true, a.sendChunks(f)
	}
	if err := a.ses.write(f.kind, 0, f.payload); err != nil {
		return false, err
	}
	if f.last {
		a.leave()
	}
	return true, nil
}

// derive works out what the reader has to be told next, and takes it as told.
func (a *attachment) derive() (f frame, ok bool) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !a.ready || a.gone:
		return f, false
	case p.state == wire.StateClosed && p.sealed == a.sealed:
		return frame{kind: wire.TypeDeleted, payload: wire.Deleted{Object: p.id}.Append(nil), last: true}, true
	case a.told != p.generation:
		a.told = p.generation
		f = frame{kind: wire.TypeRetire, payload: wire.Retire{Object: p.id, Generation: a.told, Capacity: a.capacity}.Append(nil)}
		a.capacity = p.end()
		a.flight, a.owes = nil, time.Time{}
		startClock(&a.behind)
		return f, true
	case a.next < len(p.chunks) && len(a.flight) < a.window() && !a.stalled:
		return a.deriveChunks(), true
	case a.wants && a.length != p.done:
		a.length = p.done
		f := wire.Publish{Object: p.id, Length: p.done, Generation: p.generation, Timeline: p.done}
		return frame{kind: wire.TypePublish, payload: f.Append(nil)}, true
	case p.sealed && !a.sealed:
		a.sealed = true
		f := wire.Sealed{Object: p.id, Length: p.done}
		if p.digest != nil {
			f.HasDigest, f.Digest = true, *p.digest
		}
		return frame{kind: wire.TypeSealed, payload: f.Append(nil)}, true
	case p.failed != nil && p.state == wire.StateLive:
		return frame{kind: wire.TypeDeleted, payload: wire.Deleted{Object: p.id}.Append(nil), last: true}, true
	}
	return f, false
}

// window is how many frames of chunks a reader may have that it has not
// acknowledged: their descriptors are in flight, and keep memory. What has to be
// exported first waits for the reader to have imported the last: the driver takes
// longer for both at a time than for one after the other. It needs p.mu.
func (a *attachment) window() int {
	if a.pub.srv.fds.has(a.pub.chunks[a.next].seg) {
		return 2
	}
	return 1
}

// deriveChunks takes the next chunks as sent. It needs p.mu.
func (a *attachment) deriveChunks() frame {
	p := a.pub
	pieces := append([]piece(nil), p.chunks[a.next:min(len(p.chunks), a.next+a.batch)]...)
	a.next += len(pieces)
	msg := wire.Chunks{Object: p.id, Generation: a.told}
	for _, c := range pieces {
		msg.Records = append(msg.Records, c.Chunk)
	}
	a.sent = max(a.sent, pieces[len(pieces)-1].ID)
	a.flight = append(a.flight, pieces[len(pieces)-1].ID)
	a.capacity = max(a.capacity, p.end())
	startClock(&a.owes)
	return frame{kind: wire.TypeChunks, payload: msg.Append(nil), pieces: pieces}
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
func (a *attachment) sendChunks(f frame) error {
	p := a.pub
	if err := a.charge(f.pieces[len(f.pieces)-1]); err != nil {
		_ = a.ses.refuse(0, wire.CodeLimit, err.Error())
		return err
	}
	held := make([]*descriptor, 0, len(f.pieces))
	fds := make([]int, 0, len(f.pieces))
	defer func() {
		for i, d := range held {
			p.give(f.pieces[i], d)
		}
	}()
	for _, c := range f.pieces {
		d, err := p.srv.fds.take(c.seg)
		if err != nil {
			return a.unsent(f, err)
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
func (a *attachment) charge(last piece) error {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	end := last.Offset + last.Size
	if end <= a.charged || a.gone {
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
func (a *attachment) unsent(f frame, cause error) error {
	if !errors.Is(cause, vmm.ErrClosed) {
		return cause
	}
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	a.next = min(a.next, p.index(f.pieces[0].ID))
	a.flight = a.flight[:max(len(a.flight)-1, 0)]
	if len(a.flight) == 0 {
		a.owes = time.Time{}
	}
	a.stalled = a.told == p.generation && p.state != wire.StateClosed
	return nil
}

// acknowledge takes note of what the reader has, and says whether that is news:
// its time goes on for one that says the same again and again. One that has more
// than it was sent is no reader of this protocol.
func (a *attachment) acknowledge(ack wire.Ack) (news bool, err error) {
	p := a.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	if ack.Chunk > a.sent || ack.Generation > a.told {
		return false, &wire.ProtocolError{What: fmt.Sprintf("chunk %d and generation %d are acknowledged, but %d and %d were sent", ack.Chunk, ack.Generation, a.sent, a.told)}
	}
	if ack.Generation > a.applied {
		a.applied, news = ack.Generation, true
		restartClock(&a.behind, a.applied < a.told)
	}
	if ack.Chunk > a.acked {
		a.acked, news = ack.Chunk, true
	}
	before := len(a.flight)
	for len(a.flight) > 0 && a.flight[0] <= a.acked {
		a.flight = a.flight[1:]
	}
	if len(a.flight) < before {
		restartClock(&a.owes, len(a.flight) > 0)
		news = true
	}
	if news {
		p.signal()
	}
	return news, nil
}

// due is when the reader has had time enough; zero if it owes nothing.
func (a *attachment) due() time.Time {
	a.pub.mu.Lock()
	defer a.pub.mu.Unlock()
	first := a.owes
	if first.IsZero() || !a.behind.IsZero() && a.behind.Before(first) {
		first = a.behind
	}
	if first.IsZero() || a.gone {
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
	if i := p.index(q.Next); i < a.next {
		a.next, a.flight = i, nil // the clock goes on: asking again takes no time off
	}
}

// leave ends the attachment. Twice is fine.
func (a *attachment) leave() {
	p := a.pub
	p.mu.Lock()
	gone := a.gone
	a.gone = true
	delete(p.attached, a)
	charged := a.charged
	a.charged = 0
	p.signal()
	p.mu.Unlock()
	a.ses.forget(a)
	if !gone {
		p.srv.discharge(a.ses.cred.UID, charged)
	}
}
