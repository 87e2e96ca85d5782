package shareable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable/internal/socket"
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
	socket *socket.Listener // nil: every connection comes by ServeConn
	stop   chan struct{}    // closed by Close
	turned chan struct{}    // of capacity 1: the accept loop has turned
	looks  atomic.Uint64    // at what readers have not done: the clock of AckTimeout

	// Safe for concurrent use.
	tasks      sync.WaitGroup
	slowCloses closeQueue // connections in which descriptors lie unread
	counts     struct{ accepted, refused, timedOut, violations, frames, resyncs atomic.Uint64 }

	// Guarded by mu.
	mu         sync.Mutex // after object.mu
	closed     bool
	nextID     uint64
	names      map[string]*object
	objects    []*object // by id
	sessions   map[*session]struct{}
	connsByUID map[uint32]int    // sessions of a user
	bytesByUID map[uint32]uint64 // bytes of published memory sent to the readers of a user
	takenByUID map[uint32]uint64 // bytes of taken that count for a user
	taken      map[vmm.Segment]*takenMemory
}

// NewServer makes a server without a socket of its own, for connections that are passed to
// ServeConn. It publishes memory of the device's driver. The caller must Close the Server before
// the device.
func NewServer(dev *vmm.Device, o Options) (*Server, error) {
	s, err := newServer(dev, o)
	if err != nil {
		return nil, fmt.Errorf("make server: %w", err)
	}
	s.tasks.Go(s.heartbeatLoop)
	s.tasks.Go(s.countLooks)
	return s, nil
}

func newServer(dev *vmm.Device, o Options) (*Server, error) {
	o, err := o.resolve()
	if err != nil {
		return nil, err
	}
	s := &Server{
		dev: dev, opts: o, fds: newFDCache(o.KeepFDs), stop: make(chan struct{}), turned: make(chan struct{}, 1),
		names: map[string]*object{}, sessions: map[*session]struct{}{}, connsByUID: map[uint32]int{},
		bytesByUID: map[uint32]uint64{}, takenByUID: map[uint32]uint64{}, taken: map[vmm.Segment]*takenMemory{},
	}
	if s.hello, err = localHello(dev); err != nil {
		return nil, err
	}
	_, err = rand.Read(s.hello.Instance[:])
	return s, err
}

// Listen makes a server with a socket at path, which is
//   - a file, if path has a slash. Its directory must exist, belong to this user or to root, not be
//     a link, and not be writable for others unless it is sticky; else Listen returns
//     vmm.ErrPermission.
//   - a file in the user's own directory ($XDG_RUNTIME_DIR/cuvmm, else cuvmm-<uid> among the
//     temporary files), if path is a name without a slash. "" is the name "default".
//   - an abstract name, if path begins with @. Only the check of the user protects it. Close frees it
//     once programs that were being started run.
//
// Listen returns vmm.ErrBusy while another server has the path, and vmm.ErrInvalid if something
// there is not a socket. The caller must Close the Server.
func Listen(dev *vmm.Device, path string, o Options) (*Server, error) {
	s, err := NewServer(dev, o)
	if err != nil {
		return nil, err
	}
	if err := s.listenAt(path); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// listenAt makes the socket of a server that has none, before anything else uses the server.
func (s *Server) listenAt(path string) error {
	path, err := socket.Path(path)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	l, err := socket.Listen(path, socket.Options{TakeFDs: s.opts.hooks.takeFDs})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.path, s.socket = path, l
	s.tasks.Go(s.acceptLoop)
	return nil
}

// Path is the path of the server's socket; empty without one.
func (s *Server) Path() string { return nonnil.Of(s).path }

// String is the server's path, for people.
func (s *Server) String() string { return "server at " + s.Path() }

// Instance is a random number that the server chooses at each start.
func (s *Server) Instance() [16]byte { return nonnil.Of(s).hello.Instance }

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
				if p.page != nil {
					p.page.heartbeat.Store(uint64(now.UnixNano()))
				}
			}
			s.mu.Unlock()
		}
	}
}

// ackLooks is how often a server looks in AckTimeout at what a reader has not done. It counts looks, and no
// time: those that fall into a pause of its process are lost.
const ackLooks = 8

func (s *Server) lookPause() time.Duration { return max(s.opts.AckTimeout/ackLooks, 1) }

// countLooks counts looks until the server closes.
func (s *Server) countLooks() {
	t := time.NewTicker(s.lookPause())
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			s.looks.Add(1)
		}
	}
}

// nameOf is the name under which LIST returns an object.
func (s *Server) nameOf(o *object) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.name
}

// listed returns up to most objects with ids above after, by id.
func (s *Server) listed(after uint64, most int) []*object {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := slices.BinarySearchFunc(s.objects, after, (*object).byID)
	if found {
		i++
	}
	return slices.Clone(s.objects[i:min(len(s.objects), i+most)])
}

// addLocked lists an object. Requires mu.
func (s *Server) addLocked(o *object) {
	invariants.Held(&s.mu)
	i, _ := slices.BinarySearchFunc(s.objects, o.id, (*object).byID)
	s.objects = slices.Insert(s.objects, i, o)
}

// remove undoes addLocked.
func (s *Server) remove(o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[o.name] == o {
		delete(s.names, o.name)
	}
	if i, ok := slices.BinarySearchFunc(s.objects, o.id, (*object).byID); ok {
		s.objects = slices.Delete(s.objects, i, i+1)
	}
}

// Close closes every publication and ends the connections of the readers, which keep what they have
// mapped. It waits for work that PublishAfter waits for, but for no reader: a goroutine that
// outlives Close closes connections whose close takes long. Twice is fine, and so is a nil Server.
func (s *Server) Close() error {
	if s == nil || s.dev == nil {
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
	close(s.stop)
	var err error
	if s.socket != nil {
		err = s.socket.Close()
	}
	for _, o := range s.listed(0, math.MaxInt) {
		err = errors.Join(err, o.close())
	}
	s.mu.Lock()
	for ses := range s.sessions {
		ses.shutdown()
	}
	s.mu.Unlock()
	s.tasks.Wait()
	return err
}
