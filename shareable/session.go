package shareable

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// errTooSlow ends the connection of a reader that exceeds a time limit.
var errTooSlow = errors.New("the peer takes too long")

// session is one connection on the owner's side, with two goroutines. readLoop handles
// the reader's requests and replies to them; writeLoop sends what no request asked for.
// No such frame is queued: writeLoop derives the next one from the state of each
// attachment, so a reader that stops reading costs no memory.
type session struct {
	// Immutable.
	srv     *Server
	conn    *wire.Conn
	cred    wire.Cred
	wake    chan struct{} // wakes writeLoop: there may be a frame to send
	done    chan struct{} // closed by stop
	closing chan struct{} // closed by shutdown

	operator bool // it has a reserved place; set by admit

	// Set once, by stop.
	stopOnce sync.Once
	err      error

	// Of readLoop: a token bucket that limits requests.
	requestsLeft float64 // requests that may come at once, as of requestsAt
	requestsAt   time.Time
	waker        *wakeSender // which wakes the reader; nil before the first ATTACH

	unreadFrames atomic.Int64 // frames of chunks sent since the kernel held nothing for the reader

	// sending is held while an attachment's frame is chosen and sent. DETACH takes it,
	// so that no such frame follows its reply. It is before object.mu.
	sending sync.Mutex

	// Guarded by mu.
	mu          sync.Mutex // no other lock is taken while it is held
	helloDone   bool
	stopped     bool                   // nothing is attached any more
	attachments map[uint64]*attachment // by the object's id
}

func newSession(s *Server, c *wire.Conn, cred wire.Cred) *session {
	return &session{
		srv: s, conn: c, cred: cred, wake: make(chan struct{}, 1), done: make(chan struct{}), closing: make(chan struct{}),
		attachments: map[uint64]*attachment{}, requestsLeft: float64(s.opts.Rate), requestsAt: time.Now(),
	}
}

// run serves the connection until it ends.
func (ses *session) run() error {
	defer func() { ses.waker.close() }()
	// The small buffer is set before anything is sent: it bounds what a reader
	// that stops reading costs the kernel.
	if err := ses.conn.SetSendBuffer(sendBuffer); err != nil {
		return err
	}
	ses.conn.OnUnknown(func() error { return ses.countRequest(0) })
	err := ses.exchangeHello()
	ses.mu.Lock()
	ses.helloDone = err == nil
	ses.mu.Unlock()
	if err == nil {
		err = ses.serve()
	}
	if disconnected(err) {
		return nil
	}
	return err
}

// serve serves the connection after HELLO until it ends. The first of the two loops that ends stops
// the other, and its error counts.
func (ses *session) serve() error {
	var writer sync.WaitGroup
	writer.Go(func() { ses.stop(ses.writeLoop()) })
	ses.stop(ses.readLoop())
	writer.Wait()
	if h := ses.srv.opts.hooks.handler; h != nil {
		h.End(storeConn{ses})
	}
	return ses.err
}

// sendBuffer is the size of the send buffer that is asked for. The kernel doubles
// it, and refuses a packet that is not 32 bytes smaller than that, so this is the
// least that every frame fits into. It takes one more frame once the buffer is not
// full: at most 128 KiB wait for one reader, whatever it requests.
const sendBuffer = wire.MaxFrame/2 + 16

// wakeWriter has writeLoop look for frames to send. It takes no lock.
func (ses *session) wakeWriter() {
	select {
	case ses.wake <- struct{}{}:
	default:
	}
}

// write sends a frame within Options.RequestTimeout, and within AckTimeout, because a
// Retire waits for what is sent before its frame.
func (ses *session) write(t wire.Type, request uint32, payload []byte, fds ...int) error {
	end := time.Now().Add(min(ses.srv.opts.RequestTimeout, ses.srv.opts.AckTimeout))
	if err := ses.conn.SetWriteDeadline(end); err != nil {
		return err
	}
	select {
	case <-ses.closing: // after the deadline was set, which may have been after shutdown's
		if err := ses.conn.SetWriteDeadline(time.Now().Add(closeGrace)); err != nil {
			return err
		}
	default:
	}
	err := ses.conn.Write(t, request, 0, payload, fds...)
	// The limit on descriptors in flight is shared by all sockets of the user, so
	// waiting helps. Nothing says when.
	for tooManyRefs(err) && time.Now().Before(end) {
		select {
		case <-time.After(retryDelay):
		case <-ses.done:
			return err
		}
		err = ses.conn.Write(t, request, 0, payload, fds...)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w to receive a frame", errTooSlow)
	}
	return err
}

// errWrongToken ends a session that exchangeHello refuses.
var errWrongToken = fmt.Errorf("%w: the token is missing or wrong", vmm.ErrPermission)

// exchangeHello sends HELLO, reads the reader's, and checks its token.
func (ses *session) exchangeHello() error {
	deadline := time.Now().Add(ses.srv.opts.HandshakeTimeout)
	if err := ses.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	// Both sides send before they read, so that neither waits for the other.
	if err := ses.write(wire.TypeHello, 0, ses.srv.hello.Append(nil)); err != nil {
		return err
	}
	f, err := ses.conn.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w to send HELLO", errTooSlow)
	}
	if errors.Is(err, wire.ErrVersion) {
		_ = ses.refuse(0, wire.CodeVersion, err.Error())
	}
	if err != nil {
		return err
	}
	if f.Type != wire.TypeHello {
		return &wire.ProtocolError{What: fmt.Sprintf("the first frame has type %d", f.Type)}
	}
	peer, err := wire.DecodeHello(f.Payload)
	if err != nil {
		return err
	}
	// The comparison takes the same time for every token.
	if len(ses.srv.opts.Token) > 0 {
		var want wire.Hello
		want.SetToken(ses.srv.opts.Token)
		if peer.TokenLen != want.TokenLen || subtle.ConstantTimeCompare(want.Token[:], peer.Token[:]) != 1 {
			ses.srv.counts.refused.Add(1)
			_ = ses.refuse(0, wire.CodePermission, "the token is missing or wrong")
			return errWrongToken
		}
	}
	return nil
}

// refuse sends ERROR as the reply to a request. It returns an error only if that
// cannot be sent.
func (ses *session) refuse(request uint32, code uint32, text string) error {
	return ses.write(wire.TypeError, request, wire.Error{Code: code, Text: text}.Append(nil))
}

// readLoop handles requests until the connection ends.
func (ses *session) readLoop() error {
	for {
		// A reader that is attached may be silent: writeLoop watches its
		// acknowledgements. One that is not must ask for something in time.
		ses.mu.Lock()
		err := ses.setReadDeadlineLocked()
		ses.mu.Unlock()
		if err != nil {
			return err
		}
		f, err := ses.conn.Read()
		select {
		case <-ses.done: // what came before the end is not handled after it
			return nil
		default:
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if ses.isBusy() {
				continue
			}
			err = fmt.Errorf("%w to send a request", errTooSlow)
		}
		if err != nil {
			return err
		}
		if err := ses.handle(f); err != nil {
			return err
		}
	}
}

// countRequest counts a request against Options.Rate. An error ends the connection.
func (ses *session) countRequest(request uint32) error {
	now := time.Now()
	rate := float64(ses.srv.opts.Rate)
	ses.requestsLeft = min(ses.requestsLeft+now.Sub(ses.requestsAt).Seconds()*rate, rate)
	ses.requestsAt = now
	if ses.requestsLeft--; ses.requestsLeft >= 0 {
		return nil
	}
	_ = ses.refuse(request, wire.CodeLimit, "too many requests")
	return fmt.Errorf("%w: more than %d requests a second", vmm.ErrLimit, ses.srv.opts.Rate)
}

// handle handles one frame from the reader. An error ends the connection.
func (ses *session) handle(f wire.Frame) error {
	// An ACK that acknowledges something new is not counted as a request: the
	// reader has to send it. One that repeats itself is.
	if f.Type == wire.TypeAck {
		if changed, err := ses.acknowledge(f); changed || err != nil {
			return err
		}
	}
	if err := ses.countRequest(f.Request); err != nil {
		return err
	}
	if ses.operator && !forOperators(f.Type) {
		return ses.refuse(f.Request, wire.CodeLimit, "too many connections: this one may only look, and delete")
	}
	switch f.Type {
	case wire.TypeList:
		return ses.list(f)
	case wire.TypeStat:
		return ses.stat(f)
	case wire.TypeAttach:
		return ses.attach(f)
	case wire.TypeResync:
		return ses.resync(f)
	case wire.TypeDetach:
		return ses.detach(f)
	case wire.TypeAck:
		return nil
	}
	h := ses.srv.opts.hooks.handler
	switch {
	case f.Type.OfStore() && h != nil:
		return h.Request(storeConn{ses}, f)
	case f.Type.OfStore():
		return ses.refuse(f.Request, wire.CodeNotSupported, "this server keeps no store")
	case f.Flags&wire.FlagOptional != 0:
		return nil
	}
	return &wire.ProtocolError{What: fmt.Sprintf("a frame of type %d", f.Type)}
}

// list sends the objects after an id, as many as one frame takes.
func (ses *session) list(f wire.Frame) error {
	q, err := wire.DecodeList(f.Payload)
	if err != nil {
		return err
	}
	const maxBytes = 16 << 10 // a reader with a small buffer takes that, too
	var reply wire.Listed
	size := 0
	for _, o := range ses.srv.listed(q.After, maxBytes/32) {
		name := ses.srv.nameOf(o)
		if size += 32 + len(name); size > maxBytes {
			reply.More = true
			break
		}
		o.mu.Lock()
		reply.Entries = append(reply.Entries, wire.Entry{ID: o.id, State: o.state, Length: o.lenLocked(), Name: name})
		o.mu.Unlock()
	}
	return ses.write(wire.TypeListed, f.Request, reply.Append(nil))
}

func (ses *session) stat(f wire.Frame) error {
	q, err := wire.DecodeStat(f.Payload)
	if err != nil {
		return err
	}
	o := ses.srv.findObject(q.Name)
	if o == nil {
		return ses.refuse(f.Request, wire.CodeNotFound, ErrNotFound.Error())
	}
	o.mu.Lock()
	desc := o.describeLocked(q.Name, wire.AccessRead)
	o.mu.Unlock()
	return ses.write(wire.TypeObject, f.Request, desc.Append(nil))
}

func (ses *session) attach(f wire.Frame) error {
	q, err := wire.DecodeAttach(f.Payload)
	if err != nil {
		return err
	}
	o := ses.srv.findObject(q.Name)
	switch {
	case o == nil:
		return ses.refuse(f.Request, wire.CodeNotFound, ErrNotFound.Error())
	case q.Access == wire.AccessReadWrite && !o.write:
		return ses.refuse(f.Request, wire.CodePermission, "the object is published for reading only")
	}
	return ses.startAttachment(o, f.Request, q)
}

// startAttachment attaches the reader to a publication: it sends OBJECT, after
// which writeLoop sends the chunks. With OBJECT go the control page and the wake
// socket, unless it is no reply: what Send sends is final.
func (ses *session) startAttachment(o *object, request uint32, q wire.Attach) error {
	a := &attachment{obj: o, ses: ses, wantsPublish: q.Flags&wire.AttachPublish != 0, batch: wire.MaxFDs}
	// The place in the map is taken first: a second ATTACH of the object, or the
	// end of the session, then finds the attachment.
	ses.mu.Lock()
	stopped, taken := ses.stopped, ses.attachments[o.id] != nil
	if !stopped && !taken {
		ses.attachments[o.id] = a
	}
	ses.mu.Unlock()
	switch {
	case stopped:
		return io.EOF
	case taken:
		return ses.refuse(request, wire.CodeBusy, "this connection has the object already")
	}
	// The reader is woken by every change that OBJECT does not show.
	bare := o.stored != nil && q.Flags&wire.AttachBare != 0 && o.isSealed()
	wake, err := ses.openWaker(request != 0 && !bare)
	if err == nil && wake != nil && !bare {
		o.wakes.add(a, wake)
	}
	var desc wire.Object
	fd := -1
	if err == nil {
		desc, fd, err = a.register(q, bare)
	}
	if err != nil {
		o.wakes.remove(a)
		ses.removeAttachment(a)
		return ses.refuse(request, codeOf(err), err.Error())
	}
	var fds []int
	if wake != nil && !bare { // the session may have it from another object
		fds = []int{fd, wake.reader}
	}
	if h := ses.srv.opts.hooks.handler; h != nil && o.stored != nil {
		h.Readers(o.stored)
	}
	// Chunks must not come before OBJECT, so start follows the write.
	err = ses.write(wire.TypeObject, request, desc.Append(nil), fds...)
	if fd >= 0 {
		_ = closeFD(fd)
	}
	if err != nil {
		return err
	}
	a.start()
	defer ses.wakeWriter()
	// What a sealed object of a store has is at hand. Sent here it need not wait for another
	// thread, and the reader for nothing but its own driver.
	for sent := o.stored != nil && o.isSealed(); sent && err == nil; {
		sent, err = a.sendNext()
	}
	return err
}

// openWaker returns what wakes the reader, if it needs that. The first time it makes it.
func (ses *session) openWaker(needed bool) (*wakeSender, error) {
	if !needed || ses.waker != nil {
		return ses.waker, nil
	}
	w, err := newWakeSender()
	if err != nil {
		return nil, err
	}
	ses.waker = w
	return w, nil
}

func (ses *session) find(object uint64) *attachment {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.attachments[object]
}

// removeAttachment removes an attachment from the map.
func (ses *session) removeAttachment(a *attachment) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	delete(ses.attachments, a.obj.id)
	_ = ses.setReadDeadlineLocked() // an error is the end of the connection, which readLoop sees
}

func (ses *session) resync(f wire.Frame) error {
	q, err := wire.DecodeResync(f.Payload)
	if err != nil {
		return err
	}
	a := ses.find(q.Object)
	if a == nil {
		return ses.refuse(f.Request, wire.CodeNotFound, "not attached")
	}
	ses.srv.counts.resyncs.Add(1)
	a.resync(q)
	ses.wakeWriter()
	return nil
}

func (ses *session) detach(f wire.Frame) error {
	q, err := wire.DecodeDetach(f.Payload)
	if err != nil {
		return err
	}
	a := ses.find(q.Object)
	if a == nil {
		return ses.refuse(f.Request, wire.CodeNotFound, "not attached")
	}
	a.detach()
	ses.sending.Lock() // a frame of the object that is under way comes first
	defer ses.sending.Unlock()
	return ses.write(wire.TypeDone, f.Request, nil)
}

// acknowledge handles an ACK and reports whether it acknowledges something new. An
// ACK for an object that has just been closed is no error.
func (ses *session) acknowledge(f wire.Frame) (changed bool, err error) {
	ack, err := wire.DecodeAck(f.Payload)
	if err != nil {
		return false, err
	}
	a := ses.find(ack.Object)
	if a == nil {
		return false, nil
	}
	if changed, err = a.acknowledge(ack); changed {
		ses.wakeWriter()
	}
	return changed, err
}

func (ses *session) all() []*attachment {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	list := make([]*attachment, 0, len(ses.attachments))
	for _, a := range ses.attachments {
		list = append(list, a)
	}
	return list
}

// maxUnread is how many frames of chunks may lie unread in a connection, for all its
// attachments: descriptors in flight keep memory and count against limits of the user's.
const maxUnread = 2

// mayHaveUnread reports whether maxUnread frames of chunks may lie unread. An
// acknowledgement is no evidence: a reader knows the ids without reading.
func (ses *session) mayHaveUnread() bool {
	if n, err := ses.conn.Queued(); err == nil && n == 0 {
		ses.unreadFrames.Store(0)
	}
	return ses.unreadFrames.Load() >= maxUnread
}

// writeLoop sends frames that no request asked for, until the connection ends. Each round it sends
// at most one frame for each attachment, so that a large object does not delay the others. CLOSING
// comes last, when no attachment has a frame to send.
func (ses *session) writeLoop() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		// This is asked before frames are looked for: those of before the close are sent.
		closing := false
		select {
		case <-ses.closing:
			closing = true
		default:
		}
		sent := false
		wait := time.Hour
		for _, a := range ses.all() {
			more, err := a.sendNext()
			if err != nil {
				return err
			}
			sent = sent || more
			// The deadline is checked in each round: a reader that takes frames but
			// acknowledges none is too slow as well.
			at, err := a.due()
			if err != nil {
				return err
			}
			if !at.IsZero() {
				wait = min(wait, max(time.Until(at), 0))
			}
		}
		if sent {
			continue
		}
		if closing {
			_ = ses.write(wire.TypeClosing, 0, wire.Closing{Reason: "the server closes"}.Append(nil))
			return io.EOF
		}
		timer.Reset(wait)
		select {
		case <-ses.wake:
		case <-ses.closing:
		case <-timer.C:
		case <-ses.done:
			return nil
		}
	}
}
