package shareable

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// acceptLoop accepts connections until Close.
func (s *Server) acceptLoop() {
	for {
		raw, err := s.socket.AcceptUnix()
		switch {
		case err == nil:
			if ses, err := s.openSession(raw); err == nil {
				go s.runSession(ses) //nolint:errcheck // it is logged
			}
		case s.isStopped():
			s.closeListener()
			return
		case errors.Is(err, os.ErrDeadlineExceeded): // serve.Server.Health has woken it
			_ = s.socket.SetDeadline(time.Time{})
		default: // it passes: one connection failed, or there are no descriptors just now
			s.opts.Logger.Warn("accept", "path", s.path, "error", err)
			s.pause()
		}
		s.setTurned()
		for s.slowCloses.len() >= s.opts.MaxConns && !s.isStopped() {
			s.pause()
			s.setTurned()
		}
	}
}

// setTurned tells serve.Server.Health that the accept loop turns.
func (s *Server) setTurned() {
	select {
	case s.turned <- struct{}{}:
	default:
	}
}

// closeListener turns away the connections that were not accepted, and then closes the
// listener: with them in it, descriptors that lie unread there would be closed too.
func (s *Server) closeListener() {
	if s.socket.KeptElsewhere() { // those that wait are another process's
		return
	}
	waiting, all := s.socket.TakeWaiting()
	for _, c := range waiting {
		_, _ = s.openSession(c)
	}
	if !all {
		s.slowCloses.add(s.socket.Release)
		return
	}
	s.socket.Release()
}

// pause waits a moment, or until Close.
func (s *Server) pause() {
	select {
	case <-s.stop:
	case <-time.After(50 * time.Millisecond):
	}
}

func (s *Server) isStopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// ServeConn serves one connection, of the kind "unixpacket" or half of a socket pair, until it
// ends, then closes it. It returns nil if the peer closed it, else why it ended. The connection may
// be closed later if the peer has sent descriptors whose close takes long.
func (s *Server) ServeConn(c *net.UnixConn) error {
	if c == nil {
		return fmt.Errorf("serve: %w: no connection", vmm.ErrInvalid)
	}
	if s == nil || s.dev == nil {
		return errors.Join(errNoServer, c.Close())
	}
	if !s.opts.hooks.takeFDs {
		if raw, err := c.SyscallConn(); err == nil {
			_ = wire.RefuseFDs(raw)
		}
	}
	ses, err := s.openSession(c)
	if err != nil {
		return err
	}
	return s.runSession(ses)
}

// openSession makes a session of a connection, or refuses and closes it. That is
// cheap: any process may connect, as often as it likes.
func (s *Server) openSession(raw *net.UnixConn) (*session, error) {
	c, err := wire.NewOwnerConn(raw)
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("serve: %w", err)
	}
	ses, err := s.admit(c)
	if err != nil {
		s.counts.refused.Add(1)
		cred, _ := c.Cred() // not of a connection that is closed
		s.sendRefusal(c, err)
		s.closeConn(c, func() {})
		s.opts.Logger.Warn("connection refused", "uid", cred.UID, "pid", cred.PID, "error", err)
		return nil, fmt.Errorf("serve: %w", err)
	}
	s.counts.accepted.Add(1)
	return ses, nil
}

// runSession serves a session until its end.
func (s *Server) runSession(ses *session) error {
	defer s.tasks.Done() // of admit
	err := ses.run()
	var bad *wire.ProtocolError
	switch {
	case errors.As(err, &bad):
		s.counts.violations.Add(1)
	case errors.Is(err, errTooSlow):
		s.counts.timedOut.Add(1)
	}
	if err != nil {
		event := "connection ended"
		if errors.Is(err, errWrongToken) {
			event = "connection refused"
		}
		s.opts.Logger.Warn(event, "uid", ses.cred.UID, "pid", ses.cred.PID, "error", err)
		err = fmt.Errorf("serve: %w", err)
	}
	ses.awaitReturn()
	// The connection counts against the limits until it is closed.
	s.closeConn(ses.conn, func() { s.removeSession(ses) })
	return err
}

// closeConn closes a connection, and then calls closed. If descriptors lie unread in
// it, closing them takes as long as the peer likes, and closeConn does not wait for that.
func (s *Server) closeConn(c *wire.Conn, closed func()) {
	_ = c.Shutdown()
	if !c.Discard() {
		s.slowCloses.add(func() { _ = c.Close(); closed() })
		return
	}
	_ = c.Close()
	closed()
}

// closeQueue calls functions one after the other, on a goroutine that no one waits for:
// each of them closes files of other processes. One goroutine is enough for all, and one
// thread is all that they can block.
type closeQueue struct {
	mu      sync.Mutex
	waiting []func()
	running bool
}

func (q *closeQueue) add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, f)
	if !q.running {
		q.running = true
		go q.run()
	}
}

func (q *closeQueue) run() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		f := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		f()
	}
}

func (q *closeQueue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// admit checks the peer's user and the limits before anything is read, and makes
// a session.
func (s *Server) admit(c *wire.Conn) (*session, error) {
	// The kernel's word on the user comes before the locks and the limits: a
	// stranger learns nothing of how busy the server is.
	cred, err := c.Cred()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(s.opts.UIDs, cred.UID) {
		return nil, fmt.Errorf("%w: user %d", vmm.ErrPermission, cred.UID)
	}
	ses := newSession(s, c, cred)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: server", vmm.ErrClosed)
	}
	// Counting and adding are one step under mu, so that two connections at a
	// time cannot both take the last place.
	same := s.connsByUID[cred.UID]
	if ses.operator = len(s.sessions) >= s.opts.MaxConns || same >= s.opts.MaxConnsPerUID; ses.operator && !s.hasPlaceLocked(cred.UID) {
		return nil, fmt.Errorf("%w: %d connections, %d of user %d", vmm.ErrLimit, len(s.sessions), same, cred.UID)
	}
	s.sessions[ses] = struct{}{}
	s.connsByUID[cred.UID]++
	s.tasks.Add(1)
	return ses, nil
}

// sendRefusal tells the peer why. A new connection has room for that frame.
func (s *Server) sendRefusal(c *wire.Conn, err error) {
	e := wire.Error{Code: codeOf(err), Text: "too many connections"}
	switch {
	case errors.Is(err, vmm.ErrClosed):
		e = wire.Error{Code: wire.CodeClosed, Text: "the server closes"}
	case errors.Is(err, vmm.ErrPermission):
		cred, _ := c.Cred()
		e.Text = fmt.Sprintf("user %d may not connect", cred.UID)
	}
	if c.SetWriteDeadline(time.Now().Add(s.opts.HandshakeTimeout)) == nil {
		_ = c.Write(wire.TypeError, 0, 0, e.Append(nil))
	}
}

// removeSession undoes what admit counts, except for tasks.
func (s *Server) removeSession(ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ses)
	if uid := ses.cred.UID; s.connsByUID[uid] > 1 {
		s.connsByUID[uid]--
	} else {
		delete(s.connsByUID, uid)
	}
}
