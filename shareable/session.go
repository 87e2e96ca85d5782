package shareable

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// errTooSlow ends the connection of a reader that does not do in time what it
// has to.
var errTooSlow = errors.New("the peer takes too long")

// session is one connection on the owner's side. One goroutine answers what the
// reader asks; another sends what there is to send. Nothing is queued: what
// comes next is worked out from what the reader has, so that one that stands
// still costs no memory.
type session struct {
	srv  *Server
	conn *wire.Conn
	cred wire.Cred

	wake chan struct{} // there may be something to send
	done chan struct{} // closed when the first of the two goroutines ends
	closing chan struct{} // closed by bye
	stopOnce  sync.Once
	err  error // of the one that ended first

	mu       sync.Mutex // a leaf
	helloDone  bool
	attachments map[uint64]*attachment

	tokens float64 // requests that may still come, as of the time since
	tokensAt  time.Time
}

func newSession(s *Server, c *wire.Conn, cred wire.Cred) *session {
	return &session{
		srv: s, conn: c, cred: cred, wake: make(chan struct{}, 1), done: make(chan struct{}), closing: make(chan struct{}),
		attachments: map[uint64]*attachment{}, tokens: float64(s.opts.Rate), tokensAt: time.Now(),
	}
}

// run serves the connection until it ends.
func (ses *session) run() error {
	defer ses.detachAll()
	if err := ses.conn.SetSendBuffer(sendBuffer); err != nil {
		return err
	}
	ses.conn.OnSkip(func() error { return ses.takeToken(0) })
	err := ses.exchangeHello()
	ses.mu.Lock()
	ses.helloDone = err == nil
	ses.mu.Unlock()
	if err == nil {
		var writer sync.WaitGroup
		writer.Go(func() { ses.stop(ses.writeLoop()) })
		ses.stop(ses.readLoop())
		writer.Wait()
		err = ses.err
	}
	if disconnected(err) {
		return nil
	}
	return err
}

// sendBuffer is half of what the system then lets wait for one reader before the
// last frame, which still goes in: so 64 KiB with it, whatever answers a LIST.
const sendBuffer = 24 << 10

// finish ends both goroutines.
func (ses *session) stop(err error) {
	ses.stopOnce.Do(func() {
		ses.err = err
		close(ses.done)
		_ = ses.conn.Close()
	})
}

// rouse has the session look what there is to send. It takes no lock.
func (ses *session) wakeSender() {
	select {
	case ses.wake <- struct{}{}:
	default:
	}
}

// bye ends the session once the reader was told all that there is to tell it.
// It is called once.
func (ses *session) shutdown() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	close(ses.closing)
	if !ses.helloDone {
		_ = ses.conn.Close()
	}
}

// write sends a frame within the time that a reader has to take it.
func (ses *session) write(t wire.Type, request uint32, payload []byte, fds ...int) error {
	end := time.Now().Add(ses.srv.opts.RequestTimeout)
	if err := ses.conn.SetWriteDeadline(end); err != nil {
		return err
	}
	err := ses.conn.Write(t, request, 0, payload, fds...)
	for tooManyRefs(err) && time.Now().Before(end) {
		select {
		case <-time.After(retryDelay):
		case <-ses.done:
			return err
		}
		err = ses.conn.Write(t, request, 0, payload, fds...)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w to take a frame", errTooSlow)
	}
	return err
}

// greet exchanges who is who.
func (ses *session) exchangeHello() error {
	deadline := time.Now().Add(ses.srv.opts.HandshakeTimeout)
	if err := ses.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	if err := ses.write(wire.TypeHello, 0, ses.srv.hello.Append(nil)); err != nil {
		return err
	}
	f, err := ses.conn.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w to say who it is", errTooSlow)
	}
	if errors.Is(err, wire.ErrVersion) {
		_ = ses.refuse(0, wire.CodeVersion, err.Error())
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Type != wire.TypeHello || len(f.FDs) > 0 {
		return &wire.ProtocolError{What: fmt.Sprintf("the first frame has type %d and %d descriptors", f.Type, len(f.FDs))}
	}
	peer, err := wire.DecodeHello(f.Payload)
	if err != nil {
		return err
	}
	if want := ses.srv.opts.Token; len(want) > 0 {
		var token [tokenSize]byte
		copy(token[:], want)
		if !peer.HasToken || subtle.ConstantTimeCompare(token[:], peer.Token[:]) != 1 {
			_ = ses.refuse(0, wire.CodePermission, "the token")
			return fmt.Errorf("%w: the token", vmm.ErrPermission)
		}
	}
	return nil
}

// refuse answers a request with an error. The connection goes on if the reader
// takes that and the caller lets it.
func (ses *session) refuse(request uint32, code uint32, text string) error {
	return ses.write(wire.TypeError, request, wire.Error{Code: code, Text: text}.Append(nil))
}

// answerAll answers requests until the connection ends.
func (ses *session) readLoop() error {
	for {
		var deadline time.Time // none, while it has something: then it owes acknowledgements
		if !ses.hasAttachments() {
			deadline = time.Now().Add(ses.srv.opts.RequestTimeout)
		}
		if err := ses.conn.SetReadDeadline(deadline); err != nil {
			return err
		}
		f, err := ses.conn.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w to ask for something", errTooSlow)
		}
		if err == nil {
			err = ses.handle(f)
			_ = f.Close()
		}
		if err != nil {
			return err
		}
	}
}

func (ses *session) hasAttachments() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return len(ses.attachments) > 0
}

// afford ends the connection when more requests come than may.
func (ses *session) takeToken(request uint32) error {
	now := time.Now()
	rate := float64(ses.srv.opts.Rate)
	ses.tokens = min(ses.tokens+now.Sub(ses.tokensAt).Seconds()*rate, rate)
	ses.tokensAt = now
	if ses.tokens--; ses.tokens >= 0 {
		return nil
	}
	_ = ses.refuse(request, wire.CodeLimit, "too many requests")
	return fmt.Errorf("%w: more than %d requests a second", vmm.ErrLimit, ses.srv.opts.Rate)
}

// answer does what one frame asks. An error ends the connection.
func (ses *session) handle(f wire.Frame) error {
	if len(f.FDs) > 0 {
		return &wire.ProtocolError{What: fmt.Sprintf("%d descriptors on a request", len(f.FDs))}
	}
	if f.Type == wire.TypeAck {
		if news, err := ses.acknowledge(f); news || err != nil { // news is owed, and so not counted
			return err
		}
	}
	if err := ses.takeToken(f.Request); err != nil {
		return err
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
	case wire.TypeRelease, wire.TypeCreate, wire.TypeSeal, wire.TypeDelete, wire.TypeWait:
		return ses.refuse(f.Request, wire.CodeNotSupported, "this server keeps no store")
	}
	if f.Flags&wire.FlagOptional != 0 {
		return nil
	}
	return &wire.ProtocolError{What: fmt.Sprintf("a frame of type %d", f.Type)}
}

// list answers with as many objects as one frame takes.
func (ses *session) list(f wire.Frame) error {
	q, err := wire.DecodeList(f.Payload)
	if err != nil {
		return err
	}
	const room = 16 << 10 // far from what a reader with a small buffer takes
	var answer wire.Listed
	size := 0
	for _, p := range ses.srv.publications() {
		if p.id <= q.After {
			continue
		}
		if size += 32 + len(p.name); size > room {
			answer.More = true
			break
		}
		p.mu.Lock()
		answer.Entries = append(answer.Entries, wire.Entry{ID: p.id, State: p.state, Length: p.done, Name: p.name})
		p.mu.Unlock()
	}
	return ses.write(wire.TypeListed, f.Request, answer.Append(nil))
}

func (ses *session) stat(f wire.Frame) error {
	q, err := wire.DecodeStat(f.Payload)
	if err != nil {
		return err
	}
	p := ses.srv.find(q.Name)
	if p == nil {
		return ses.refuse(f.Request, wire.CodeNotFound, "no object of that name")
	}
	p.mu.Lock()
	o := p.objectLocked(wire.AccessRead)
	p.mu.Unlock()
	return ses.write(wire.TypeObject, f.Request, o.Append(nil))
}

// describe is the object as it is now. It needs p.mu.
func (p *Publication) objectLocked(access uint32) wire.Object {
	l, begun := p.opts.Layout, p.done
	if p.state != wire.StateClosed { // then the page is gone
		begun = max(begun, p.page.queued.Load())
	}
	o := wire.Object{
		ID: p.id, Max: p.r.Max(), Generation: p.generation, Length: p.done, Queued: begun,
		Capacity: p.endLocked(), State: p.state, Access: access, Instance: p.srv.hello.Instance, Name: p.name, Meta: p.opts.Meta,
		Elem: wire.Elem{Kind: uint32(l.Kind), Bits: uint32(l.Bits), Size: l.Size, Hash: l.Hash}, Pitch: l.Pitch,
	}
	for _, n := range l.Shape {
		o.Shape = append(o.Shape, uint64(n))
	}
	return o
}

func (ses *session) attach(f wire.Frame) error {
	q, err := wire.DecodeAttach(f.Payload)
	if err != nil {
		return err
	}
	p := ses.srv.find(q.Name)
	switch {
	case p == nil:
		return ses.refuse(f.Request, wire.CodeNotFound, "no object of that name")
	case q.Access == wire.AccessReadWrite && !p.opts.Write:
		return ses.refuse(f.Request, wire.CodePermission, "the object is for reading")
	}
	return ses.startAttachment(p, f.Request, q.Access, q.Flags&wire.AttachPublish != 0)
}

// push gives the reader an object: first what it is, then, from the other
// goroutine, its chunks.
func (ses *session) startAttachment(p *Publication, request, access uint32, wants bool) error {
	a := &attachment{pub: p, ses: ses, wantsPublish: wants, batch: wire.MaxFDs}
	ses.mu.Lock()
	taken := ses.attachments[p.id] != nil
	if !taken {
		ses.attachments[p.id] = a
	}
	ses.mu.Unlock()
	if taken {
		return ses.refuse(request, wire.CodeBusy, "this connection has the object already")
	}
	o, fd, err := a.register(access)
	if err != nil {
		ses.removeAttachment(a)
		return ses.refuse(request, codeOf(err), err.Error())
	}
	err = ses.write(wire.TypeObject, request, o.Append(nil), fd)
	_ = closeFD(fd)
	if err != nil {
		return err
	}
	a.start()
	return nil
}

// codeOf is what an error of ours is on the wire.
func codeOf(err error) uint32 {
	switch {
	case errors.Is(err, vmm.ErrLimit), errors.Is(err, vmm.ErrOutOfMemory):
		return wire.CodeLimit
	case errors.Is(err, vmm.ErrClosed):
		return wire.CodeNotFound
	case errors.Is(err, vmm.ErrPermission):
		return wire.CodePermission
	}
	return wire.CodeInternal
}

func (ses *session) find(object uint64) *attachment {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.attachments[object]
}

// forget takes an attachment off the list.
func (ses *session) removeAttachment(a *attachment) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	delete(ses.attachments, a.pub.id)
	if len(ses.attachments) == 0 { // it owes nothing any more, and so has to ask for something
		_ = ses.conn.SetReadDeadline(time.Now().Add(ses.srv.opts.RequestTimeout))
	}
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
	ses.wakeSender()
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
	return ses.write(wire.TypeDone, f.Request, nil)
}

// acknowledge takes note of what a reader has mapped, and says whether that is
// news. One that comes for an object that has just been taken back is no mistake.
func (ses *session) acknowledge(f wire.Frame) (news bool, err error) {
	ack, err := wire.DecodeAck(f.Payload)
	if err != nil {
		return false, err
	}
	a := ses.find(ack.Object)
	if a == nil {
		return false, nil
	}
	if news, err = a.acknowledge(ack); news {
		ses.wakeSender()
	}
	return news, err
}

func (ses *session) detachAll() {
	for _, a := range ses.all() {
		a.detach()
	}
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

// sendAll sends what there is to send until the connection ends.
func (ses *session) writeLoop() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		var due time.Time
		sent := false
		for _, a := range ses.all() {
			more, err := a.sendNext()
			if err != nil {
				return err
			}
			sent = sent || more
			if d := a.deadline(); !d.IsZero() && (due.IsZero() || d.Before(due)) {
				due = d
			}
		}
		wait := time.Hour
		if !due.IsZero() {
			if wait = time.Until(due); wait <= 0 {
				return fmt.Errorf("%w to map or unmap what it was told of", errTooSlow)
			}
		}
		if sent {
			continue
		}
		select {
		case <-ses.closing:
			_ = ses.write(wire.TypeClosing, 0, wire.Closing{Reason: "the server closes"}.Append(nil))
			return io.EOF
		default:
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
