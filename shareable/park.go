package shareable

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/vmm"
)

// parking stops all connections of a server between two frames, so that another process
// can go on with them. What peers send meanwhile waits in the kernel.
type parking struct {
	decided chan struct{} // closed when moved is set
	moved   bool          // another process has the connections
	all     chan struct{} // closed when all have stopped

	running int // those that have not stopped; guarded by Server.mu
}

// errParked ends the loops of a session that is to be parked.
var errParked = errors.New("parked")

// errMoved is the end of a session that another process goes on with.
var errMoved = errors.New("another process goes on with the connection")

// park stops accepting, and all sessions but one. It returns when they have stopped. If
// they take longer than timeout, it resumes them and returns vmm.ErrBusy.
func (s *Server) park(timeout time.Duration, but *session) error {
	p := &parking{decided: make(chan struct{}), all: make(chan struct{}), running: 1} // this call
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return fmt.Errorf("%w: server", vmm.ErrClosed)
	case s.parking != nil:
		s.mu.Unlock()
		return fmt.Errorf("%w: another process takes over already", vmm.ErrBusy)
	}
	s.parking = p
	if s.socket != nil {
		p.running++ // the acceptLoop
		_ = s.socket.SetDeadline(time.Unix(1, 0))
	}
	for ses := range s.sessions {
		if ses != but && ses.park(p) {
			p.running++
		}
	}
	s.mu.Unlock()
	s.hasStopped(p)
	end := time.After(timeout)
	select {
	case <-p.all:
		return nil
	case <-end:
	case <-time.After(min(parkTime, timeout/2)):
		s.cutOff(p)
		select {
		case <-p.all:
			return nil
		case <-end:
		}
	}
	s.decide(false)
	return fmt.Errorf("%w: connections have not stopped within %v", vmm.ErrBusy, timeout)
}

// parkTime is how long connections have to stop: as long as others stand still for one whose client does not
// read, or has not sent its HELLO.
const parkTime = 250 * time.Millisecond

// cutOff disconnects the clients whose connections have not stopped.
func (s *Server) cutOff(p *parking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ses := range s.sessions {
		ses.mu.Lock()
		late := ses.parking == p && !ses.parked
		ses.mu.Unlock()
		if late {
			go ses.stop(fmt.Errorf("%w: another process takes over", errTooSlow))
		}
	}
}

// decide ends park: the sessions end without closing anything for their peers, or they go
// on.
func (s *Server) decide(moved bool) {
	s.mu.Lock()
	p := s.parking
	s.parking = nil
	s.moved = s.moved || moved
	if !moved && s.socket != nil && !s.closed { // Close sets it for good, after closed
		_ = s.socket.SetDeadline(time.Time{})
	}
	s.mu.Unlock()
	p.moved = moved
	close(p.decided)
}

// isParking returns the parking that runs; nil without one.
func (s *Server) isParking() *parking {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parking
}

// hasStopped counts one of those that are to stop.
func (s *Server) hasStopped(p *parking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.running--; p.running == 0 {
		close(p.all)
	}
}

// park has both loops return errParked. It returns false for a session that has ended. One
// that still waits for HELLO gets that first, within Options.HandshakeTimeout: another
// process could not go on with half a handshake.
func (ses *session) park(p *parking) bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.over {
		return false
	}
	ses.parking = p
	if ses.helloDone {
		_ = ses.setReadDeadlineLocked()
	}
	ses.wakeWriter()
	return true
}

// isParking returns the parking that the session is to wait for; nil without one.
func (ses *session) isParking() *parking {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.parking
}

// waitParked waits until it is decided whether another process goes on with the session.
func (ses *session) waitParked(p *parking) (moved bool) {
	ses.setParked(true)
	ses.srv.hasStopped(p)
	<-p.decided
	ses.setParked(false)
	for _, a := range ses.all() { // while it stood still the reader could do nothing
		a.restartClocks()
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.parking == p { // else it is to stop again
		ses.parking = nil
	}
	_ = ses.setReadDeadlineLocked()
	return p.moved
}

func (ses *session) setParked(yes bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.parked = yes
}

// finish records that the session has ended.
func (ses *session) finish() {
	ses.mu.Lock()
	p := ses.parking
	ses.over, ses.parking = true, nil
	ses.mu.Unlock()
	if p != nil {
		ses.srv.hasStopped(p)
	}
}

// serve runs both loops until the connection ends or is parked.
func (ses *session) serve() {
	loop := func(f func() error) {
		if err := f(); !errors.Is(err, errParked) {
			ses.stop(err)
		}
	}
	var writer sync.WaitGroup
	writer.Go(func() { loop(ses.writeLoop) })
	loop(ses.readLoop)
	writer.Wait()
}

// isStopped reports whether the session has ended.
func (ses *session) isStopped() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.stopped
}

// Park stops all connections but one, between two frames. Readers of objects that have gone
// are told here: the other process does not know those.
func (s storeServer) Park(timeout time.Duration, but serve.Conn) error {
	c, ok := but.(storeConn)
	if !ok {
		return fmt.Errorf("%w: no connection", vmm.ErrInvalid)
	}
	if err := s.park(timeout, c.session); err != nil {
		return err
	}
	s.mu.Lock()
	sessions := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, ses := range sessions {
		for _, a := range ses.all() {
			for more := ses != c.session && a.obj.hasEnded(); more; {
				more, _ = a.sendNext() // after an error the connection has ended, or does at the next frame
			}
		}
	}
	return nil
}

// Decide ends Park: with moved, another process has everything, and nothing here is shut
// down; else the connections go on.
func (s storeServer) Decide(moved bool) { s.decide(moved) }

// Abandon has Close shut nothing down.
func (s storeServer) Abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = true
	// No goroutine serves the sessions, so none closes them.
	for ses := range s.sessions {
		for _, a := range ses.all() {
			a.obj.wakes.remove(a)
		}
		_ = ses.conn.Close()
		ses.waker.close()
		s.removeSessionLocked(ses)
		s.tasks.Done()
	}
}

// Resumed is what TakeOver makes of the state of another server.
type Resumed struct {
	Server  *Server
	Seam    serve.Server
	Objects []serve.Object // in the order in which Handover got them
	Conns   []serve.Conn   // in the order in which Handover returned them
	Start   func()         // has the server serve
}

// Abandon closes all of it, before Start. For the clients nothing is shut down.
func (r Resumed) Abandon() error {
	r.Seam.Abandon()
	var err error
	for _, o := range r.Objects { // Close of the server does not know those without a name
		err = errors.Join(err, o.Close())
	}
	return errors.Join(err, r.Server.Close())
}
