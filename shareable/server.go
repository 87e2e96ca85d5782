package shareable

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Server publishes ranges to other processes. Safe for concurrent use. The
// caller must Close it.
type Server struct {
	// Immutable.
	dev    *vmm.Device
	opts   Options
	hello  wire.Hello
	fds    *fdCache
	path   string
	socket *socket       // nil: every connection comes by ServeConn
	stop   chan struct{} // closed by Close

	// Safe for concurrent use.
	tasks  sync.WaitGroup
	counts struct{ accepted, refused, timedOut, violations, frames, resyncs atomic.Uint64 }

	// Guarded by mu.
	mu         sync.Mutex // after Publication.mu
	closed     bool
	nextID     uint64
	names      map[string]*Publication
	sessions   map[*session]struct{}
	bytesByUID map[uint32]uint64 // bytes of memory sent to the readers of a user
}

// Stats counts what a Server has done since it was made.
type Stats struct {
	Conns, Published, KeptFDs int    // as of now
	Accepted, Refused         uint64 // connections; refused because of their user, or of a limit
	Violations, TimedOut      uint64 // connections that broke the protocol, or took longer than a time limit
	Frames, Resyncs           uint64 // frames of chunks sent, and requests to send some again
}

// NewServer makes a server without a socket of its own, for connections that are
// passed to ServeConn. It publishes memory of the device's driver. The caller
// must Close it, before the device.
func NewServer(dev *vmm.Device, o Options) (*Server, error) {
	s, err := newServer(dev, o)
	if err != nil {
		return nil, fmt.Errorf("make server: %w", err)
	}
	s.tasks.Go(s.heartbeatLoop)
	return s, nil
}

func newServer(dev *vmm.Device, o Options) (*Server, error) {
	o, err := o.resolve()
	if err != nil {
		return nil, err
	}
	s := &Server{
		dev: dev, opts: o, fds: newFDCache(o.KeepFDs), stop: make(chan struct{}),
		names: map[string]*Publication{}, sessions: map[*session]struct{}{}, bytesByUID: map[uint32]uint64{},
	}
	if s.hello, err = localHello(dev); err != nil {
		return nil, err
	}
	_, err = rand.Read(s.hello.Instance[:])
	return s, err
}

// Listen makes a server with a socket at path. A path with a slash is a file,
// whose directory must not be a link. A name without a slash is a file in the
// user's own directory ($XDG_RUNTIME_DIR/cuvmm, else cuvmm-<uid> among the
// temporary files), and "" is the name "default". A name that begins with @ is
// an abstract one, which only the check of the user protects. While another
// server has the path, Listen returns vmm.ErrBusy. The caller must Close it.
func Listen(dev *vmm.Device, path string, o Options) (*Server, error) {
	path, err := socketPath(path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	s, err := NewServer(dev, o)
	if err != nil {
		return nil, err
	}
	l, err := listen(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), s.Close())
	}
	s.path, s.socket = path, l
	s.tasks.Go(s.acceptLoop)
	return s, nil
}

// Path is the path of the server's socket; empty without one.
func (s *Server) Path() string {
	if s == nil {
		return ""
	}
	return s.path
}

// Instance is a random number of this server: another one after each start.
func (s *Server) Instance() [16]byte {
	if s == nil {
		return [16]byte{}
	}
	return s.hello.Instance
}

var errNoServer = fmt.Errorf("%w: no server", vmm.ErrInvalid)

// heartbeatLoop updates the heartbeat of every control page, so that a reader can
// tell a stopped owner from an idle one.
func (s *Server) heartbeatLoop() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case now := <-t.C:
			s.mu.Lock()
			for _, p := range s.names {
				p.page.heartbeat.Store(uint64(now.UnixNano()))
			}
			s.mu.Unlock()
		}
	}
}

// acceptLoop accepts connections until the socket is closed.
func (s *Server) acceptLoop() {
	for {
		c, err := s.socket.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Any other error passes: one connection failed, or there are no
			// descriptors just now.
			s.opts.Logger.Warn("accept", "path", s.path, "error", err)
			select {
			case <-s.stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		s.tasks.Go(func() { _ = s.serve(c) })
	}
}

// ServeConn serves one connection, of the kind "unixpacket" or half of a socket
// pair, until it ends, and closes it. It returns nil if the peer closed it, else
// why it ended.
func (s *Server) ServeConn(c *net.UnixConn) error {
	if c == nil {
		return fmt.Errorf("serve: %w: no connection", vmm.ErrInvalid)
	}
	if s == nil {
		return errors.Join(errNoServer, c.Close())
	}
	return s.serve(c)
}

func (s *Server) serve(raw *net.UnixConn) error {
	c, err := wire.NewConn(raw)
	if err != nil {
		_ = raw.Close()
		return fmt.Errorf("serve: %w", err)
	}
	defer c.Close() //nolint:errcheck // nothing depends on it
	defer c.Release()
	// The user is checked first: a peer that may not connect costs no session.
	ses, err := s.admit(c)
	if err != nil {
		s.counts.refused.Add(1)
		s.sendRefusal(c, err)
		s.opts.Logger.Warn("connection refused", "error", err)
		return fmt.Errorf("serve: %w", err)
	}
	s.counts.accepted.Add(1)
	err = ses.run()
	// The session no longer counts against the limits before its end is logged.
	s.removeSession(ses)
	if err != nil {
		var bad *wire.ProtocolError
		switch {
		case errors.As(err, &bad):
			s.counts.violations.Add(1)
		case errors.Is(err, errTooSlow):
			s.counts.timedOut.Add(1)
		}
		s.opts.Logger.Warn("connection ended", "uid", ses.cred.UID, "pid", ses.cred.PID, "error", err)
		return fmt.Errorf("serve: %w", err)
	}
	return nil
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
	same := 0
	for other := range s.sessions {
		if other.cred.UID == cred.UID {
			same++
		}
	}
	if len(s.sessions) >= s.opts.MaxConns || same >= s.opts.MaxConnsPerUID {
		return nil, fmt.Errorf("%w: %d connections, %d of user %d", vmm.ErrLimit, len(s.sessions), same, cred.UID)
	}
	s.sessions[ses] = struct{}{}
	return ses, nil
}

// sendRefusal tells the peer why. A new connection has room for that frame.
func (s *Server) sendRefusal(c *wire.Conn, err error) {
	e := wire.Error{Code: codeOf(err), Text: "too many connections"}
	switch {
	case errors.Is(err, vmm.ErrClosed):
		e = wire.Error{Code: wire.CodeClosed, Text: "the server closes"}
	case errors.Is(err, vmm.ErrPermission):
		e.Text = "this user may not connect"
	}
	if c.SetWriteDeadline(time.Now().Add(s.opts.HandshakeTimeout)) == nil {
		_ = c.Write(wire.TypeError, 0, 0, e.Append(nil))
	}
}

func (s *Server) removeSession(ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ses)
}

// charge counts n more bytes that were sent to readers of a user.
func (s *Server) charge(uid uint32, n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used := s.bytesByUID[uid]; n > s.opts.MaxBytesPerUID-used {
		return fmt.Errorf("%w: user %d has %d bytes of at most %d", vmm.ErrLimit, uid, used, s.opts.MaxBytesPerUID)
	}
	s.bytesByUID[uid] += n
	return nil
}

func (s *Server) refund(uid uint32, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytesByUID[uid] -= n; s.bytesByUID[uid] == 0 {
		delete(s.bytesByUID, uid)
	}
}

// find is the publication of that name; nil if there is none.
func (s *Server) find(name string) *Publication {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

// publications are all publications, by id.
func (s *Server) publications() []*Publication {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Publication, 0, len(s.names))
	for _, p := range s.names {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Publication) int { return cmp.Compare(a.id, b.id) })
	return all
}

// Stats returns the counters as of now.
func (s *Server) Stats() Stats {
	if s == nil {
		return Stats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Conns: len(s.sessions), Published: len(s.names), KeptFDs: s.fds.len(),
		Accepted: s.counts.accepted.Load(), Refused: s.counts.refused.Load(),
		Violations: s.counts.violations.Load(), TimedOut: s.counts.timedOut.Load(),
		Frames: s.counts.frames.Load(), Resyncs: s.counts.resyncs.Load(),
	}
}

// Close closes every publication and ends the connections of the readers, which
// keep what they have mapped. It waits for work that PublishAfter waits for.
// Twice is fine, and so is a nil Server.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		s.tasks.Wait()
		return nil
	}
	// No new connection comes from here on. The publications go before the
	// sessions, so that the readers still get DELETED.
	var err error
	if s.socket != nil {
		err = s.socket.Close()
	}
	for _, p := range s.publications() {
		err = errors.Join(err, p.Close())
	}
	s.mu.Lock()
	for ses := range s.sessions {
		ses.shutdown()
	}
	s.mu.Unlock()
	close(s.stop)
	s.tasks.Wait()
	return err
}
