package shareable

import (
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// reservedConns are the connections beyond all limits that root and the user of a store may have,
// to see what is wrong and to delete objects. They make nothing.
const reservedConns = 8

// hasPlaceLocked reports whether a user has one of the reserved connections left. Requires mu.
func (s *Server) hasPlaceLocked(user uint32) bool {
	invariants.Held(&s.mu)
	if s.opts.hooks.handler == nil || user != 0 && !wire.IsOwn(user) {
		return false
	}
	n := 0
	for ses := range s.sessions {
		if ses.operator {
			n++
		}
	}
	return n < reservedConns
}

// forOperators reports whether a connection with a reserved place may send a frame.
func forOperators(t wire.Type) bool {
	switch t {
	case wire.TypeList, wire.TypeStat, wire.TypeQuery, wire.TypeCount, wire.TypeReport, wire.TypeDelete, wire.TypeRevoke, wire.TypeTerms, wire.TypeResume:
		return true
	}
	return false
}

// setReadDeadlineLocked limits the time to the next request, if nothing is attached. It
// needs ses.mu: both goroutines set it, and the last one must be right.
func (ses *session) setReadDeadlineLocked() error {
	var deadline time.Time
	// A store's clients may hold leases, and need not ask for anything then; the others have
	// longer.
	switch {
	case ses.stopped:
		return nil // it is the end of a Read
	case len(ses.attachments) > 0:
	case ses.srv.opts.hooks.handler == nil || ses.operator:
		deadline = time.Now().Add(ses.srv.opts.RequestTimeout)
	default:
		deadline = time.Now().Add(idleTimes * ses.srv.opts.RequestTimeout)
	}
	return ses.conn.SetReadDeadline(deadline)
}

// idleTimes is how many times RequestTimeout a store's client may be idle: two minutes by default.
const idleTimes = 12

// isBusy reports whether the connection of a store has something that lasts beyond a request.
func (ses *session) isBusy() bool {
	ses.mu.Lock()
	attached := len(ses.attachments) > 0
	ses.mu.Unlock()
	h := ses.srv.opts.hooks.handler
	return attached || h != nil && !ses.operator && !h.Idle(storeConn{ses})
}
