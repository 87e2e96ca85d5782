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
	dev    *vmm.Device
	opts   Options
	hello  wire.Hello
	fds    *fdCache
	path   string
	socket *socket // nil: connections come by ServeConn alone

	stop  chan struct{} // closed by Close
	tasks sync.WaitGroup

	mu       sync.Mutex // after Publication.mu
	closed   bool
	nextID   uint64
	names    map[string]*Publication
	sessions map[*session]struct{}
	bytesByUID    map[uint32]uint64 // of memory that readers of a user were given

	counts struct{ accepted, refused, timedOut, violations, frames, resyncs atomic.Uint64 }
}

// Stats counts what a Server has done since it began.
type Stats struct {
	Conns, Published, KeptFDs int    // now
	Accepted, Refused         uint64 // connections; refused for who they come from, or for a limit
	Violations, TimedOut      uint64 // connections ended for what a peer sent, and for what it did not send in time
	Frames, Resyncs           uint64 // frames of chunks sent, and times that readers asked for them again
}

// NewServer makes a server without a socket of its own, for connections that are
// handed to ServeConn. It publishes memory of the device's driver. The caller
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

// Listen makes a server with a socket at path: a file in a directory that is no
// link, a name without a slash for one in the user's own directory
// ($XDG_RUNTIME_DIR/cuvmm, else cuvmm-<uid> where temporary files are), "" for
// "default" there, or an abstract name that begins with @, which only the check
// of the user guards. A path that a living server has is ErrBusy. The caller must
// Close it.
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

// Path is where the server listens; empty without a socket.
func (s *Server) Path() string {
	if s == nil {
		return ""
	}
	return s.path
}

// Instance tells this server from all others, and from itself before a restart.
func (s *Server) Instance() [16]byte {
	if s == nil {
		return [16]byte{}
	}
	return s.hello.Instance
}

var errNoServer = fmt.Errorf("%w: no server", vmm.ErrInvalid)

// beat moves the heartbeat of every page on, so that a reader can tell an owner
// that stands still from one that has nothing to say.
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

// accept takes connections until the socket is closed. What goes wrong with one
// of them, or for want of descriptors, ends nothing.
func (s *Server) acceptLoop() {
	for {
		c, err := s.socket.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
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

// ServeConn serves one connection, a unixpacket one or half of a socket pair,
// until it ends, and closes it. The error says why, nil for a peer that left.
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
	ses, err := s.admit(c)
	if err != nil {
		s.counts.refused.Add(1)
		s.sendRefusal(c, err)
		s.opts.Logger.Warn("connection refused", "error", err)
		return fmt.Errorf("serve: %w", err)
	}
	s.counts.accepted.Add(1)
	err = ses.run()
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

// admit looks at who connects before anything is read.
func (s *Server) admit(c *wire.Conn) (*session, error) {
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

// turnAway says why. A fresh connection takes that at once.
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

// charge counts n more bytes that a user has handles of.
func (s *Server) charge(uid uint32, n uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used := s.bytesByUID[uid]; n > s.opts.MaxBytesPerUID-used {
		return fmt.Errorf("%w: user %d has handles of %d bytes, and may have %d", vmm.ErrLimit, uid, used, s.opts.MaxBytesPerUID)
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

// find is what is published under a name.
func (s *Server) find(name string) *Publication {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

// list is what is published, by id.
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

// Stats is what the server has done so far.
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

// Close takes back all that is published, tells the readers and ends their
// connections. What they have mapped stays theirs. It waits for publications
// whose Queued work still runs. Twice is fine, and so is a nil Server.
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
