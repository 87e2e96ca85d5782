package shareable

import (
	"errors"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// stop ends the session. No Retire waits for its reader any more.
func (ses *session) stop(err error) {
	ses.stopOnce.Do(func() {
		ses.err = err
		close(ses.done)
		ses.sayWhy(err)
		ses.mu.Lock()
		ses.stopped = true
		_ = ses.conn.ShutdownWrite()      // the peer sees the end
		_ = ses.conn.SetDeadline(longAgo) // both goroutines return from the kernel
		ses.mu.Unlock()
		for _, a := range ses.all() {
			if !a.isLent() {
				a.detach()
			}
		}
	})
}

// awaitReturn waits, once both goroutines have ended, until the peer has no memory any more that
// it was lent: whatever ended the connection here, it may map what lies in its socket still. What
// shows that it has none is the end of its socket, which is that of its View or of its process.
func (ses *session) awaitReturn() {
	gone := make(chan struct{})
	if ses.lends() {
		_ = ses.conn.SetReadDeadline(time.Time{})
		go func() {
			defer close(gone)
			ses.conn.AwaitEnd()
		}()
	} else {
		close(gone)
	}
wait:
	for ses.lends() {
		select {
		case <-ses.wake: // an object may have ended
		case <-ses.closing:
			break wait
		case <-gone:
			break wait
		}
	}
	_ = ses.conn.SetReadDeadline(longAgo)
	<-gone
	for _, a := range ses.all() {
		a.detach()
	}
}

// lends reports whether the peer has memory that it was lent.
func (ses *session) lends() bool { return slices.ContainsFunc(ses.all(), (*attachment).isLent) }

// longAgo is a deadline that ends what waits.
var longAgo = time.Unix(1, 0)

// sayWhy tells the peer why the session ends, if that is for what it has done. It may not read, or
// be stopped.
func (ses *session) sayWhy(err error) {
	var bad *wire.ProtocolError
	var code uint32
	switch {
	case errors.Is(err, errTooSlow):
		code = wire.CodeTooSlow
	case errors.As(err, &bad):
		code = wire.CodeProtocol
	default:
		return
	}
	_ = ses.conn.SetWriteDeadline(time.Now().Add(closeGrace))
	_ = ses.conn.Write(wire.TypeError, 0, 0, wire.Error{Code: code, Text: err.Error()}.Append(nil))
}

// shutdown ends the session once every frame for the reader is sent. It is called
// once.
func (ses *session) shutdown() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	close(ses.closing)
	// A write that waits for a reader that does not read ends soon.
	_ = ses.conn.SetWriteDeadline(time.Now().Add(closeGrace))
	if !ses.helloDone { // no writer runs that would end it
		_ = ses.conn.Shutdown()
	}
}

// closeGrace is how long a closing server waits for a reader to take a frame: one that
// reads has room for it.
const closeGrace = 50 * time.Millisecond
