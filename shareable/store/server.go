package store

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/lending"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Server keeps objects and their memory. Its memory is that of one device, or of the host
// beside it; it maps none of it and makes no context. Safe for concurrent use. The caller
// must Close it, before the device.
type Server struct {
	// Immutable.
	dev      *vmm.Device
	opts     Options
	gran     uint64
	conns    *shareable.Server
	objects  serve.Server
	recorder *recorder        // nil: no process keeps what there is
	budgets  *lending.Service // nil: there is none
	member   *budget.Member   // of the budget of dev; nil: it has none
	counted  door.Counted     // see countLocked
	before   uint64           // how many servers there were
	began    time.Time
	stop     chan struct{}   // closed by Close
	life     context.Context // ends then, too
	endLife  context.CancelFunc
	unhook   func() // ends calls of give

	counts counts // safe for concurrent use

	// Guarded by mu, which is held for no call of the driver and for no write to a client.
	mu        sync.Mutex
	closed    bool
	byID      map[uint64]*entry
	byName    map[string]*entry
	order     []*entry // by id
	clients   map[serve.Conn]*clientState
	waits     map[string][]wait // for an object to be there, and most of them to be sealed, by name
	ledger    *ledger.Ledger
	held      []heldChunk
	heldBytes uint64    // of held
	soon      int       // of held, and those that askHeld asks about: how many are to be free soon
	freed     bool      // there was such a one since awaitSoon was called
	inherited uint64    // of all entries
	closing   uint64    // bytes that closeChunk closes
	unused    list.List // of *entry: sealed objects without readers, the last used at the back
	watchers  map[serve.Conn]*watcher
	evicted   []*entry // to be closed without the lock
	forced    int      // forced deletes that run
	looks     uint64   // at signs of life: the clock of leases
	refusals  refusals
	tokens    map[string]int      // connections of clients that have said who they are, by clientToken
	evictFrom time.Time           // nothing is evicted before: readers of a server before this one may come back
	awaited   map[string]*awaited // clients of a server before this one that are to come back, by clientToken
}

// clientState is what a connection has.
type clientState struct {
	token  string              // clientToken of who it is; empty: it has not said so
	began  uint64              // when its process has, if it has a token: see processes.StartOf
	leases map[uint64]*entry   // by the object's id
	waits  int                 // requests that wait
	names  map[string]struct{} // of objects that some of them wait for
	queues map[uint64]*entry   // objects whose lease others wait for, by id
}

// wait is a request whose reply comes later.
type wait struct {
	c        serve.Conn
	request  uint32
	name     string
	unsealed bool // of WAIT: the object need not be sealed
}

// NewServer makes a server without a socket, for connections that are passed to ServeConn
// and for Connect. It returns vmm.ErrInvalid without a device, or for options that
// cannot be. The caller must Close it, before the device.
func NewServer(dev *vmm.Device, o Options) (*Server, error) {
	s, err := newServer(dev, o)
	if err == nil {
		if err = s.serveBudgets(nil); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make store: %w", err)
	}
	go s.watchLeases()
	return s, nil
}

func newServer(dev *vmm.Device, o Options) (*Server, error) {
	o, err := o.resolve()
	if err != nil {
		return nil, err
	}
	s, err := bareServer(dev, o)
	if err != nil {
		return nil, err
	}
	if s.conns, s.objects, err = sharing.NewStore(dev, o.server(), handler{s}); err != nil {
		return nil, err
	}
	s.connected()
	return s, nil
}

// serveBudgets serves the budgets of the options, with what a server before has had kept of members.
func (s *Server) serveBudgets(records map[string][]byte) (err error) {
	if len(s.opts.Budgets) == 0 {
		return nil
	}
	late := s.opts.hooks.deadline
	o := lending.Options{Logger: s.opts.Logger, Records: records, Step: s.step, Deadline: late, Soft: late / 3, JoinTime: late}
	if s.recorder != nil {
		o.Keep = s.recorder.keepMember
	}
	for _, b := range s.opts.Budgets {
		if b.Device == nil {
			return fmt.Errorf("%w: a budget without a device", vmm.ErrInvalid)
		}
		o.Budgets = append(o.Budgets, lending.Of(b.Device, b.Bytes, b.Free))
	}
	if s.budgets, err = lending.New(o); err != nil {
		return err
	}
	return s.join()
}

// newLedger counts for the users of the options, which are resolved. Of what costs one user nothing
// each has an equal part. Half of the descriptors that the process may have are left to
// connections.
func newLedger(o Options, fileLimit int) *ledger.Ledger {
	users := max(len(o.UIDs), 1)
	parts := func(all uint64) ledger.Limit { return ledger.Limit{All: all, User: max(all/uint64(users), 1)} }
	return ledger.New(users, map[ledger.Kind]ledger.Limit{
		ledger.Bytes:       {All: o.MaxBytes, User: min(o.MaxBytes, o.MaxBytesPerUID)},
		ledger.Objects:     parts(uint64(o.MaxObjects)),
		ledger.Descriptors: parts(uint64(fileLimit / 2)),
		ledger.Records:     parts(o.MaxRecordBytes),
	})
}

// bareServer makes a server without connections. The options are resolved.
func bareServer(dev *vmm.Device, o Options) (*Server, error) {
	if dev == nil {
		return nil, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	}
	s := &Server{
		dev: dev, opts: o, began: time.Now(), stop: make(chan struct{}), refusals: refusals{},
		byID: map[uint64]*entry{}, byName: map[string]*entry{}, clients: map[serve.Conn]*clientState{},
		waits: map[string][]wait{}, watchers: map[serve.Conn]*watcher{}, tokens: map[string]int{}, awaited: map[string]*awaited{},
	}
	var err error
	if s.gran, err = granularity(dev); err != nil {
		return nil, err
	}
	s.life, s.endLife = context.WithCancel(context.Background())
	s.counted = inside.VMM.Counted(dev)
	return s, nil
}

// connected is called once a server has connections, which can only be closed by Close.
func (s *Server) connected() {
	s.ledger = newLedger(s.opts, s.objects.FileLimit())
	s.unhook = s.dev.OnPressure(s.give)
}

// Listen makes a server with a socket at path, as shareable.Listen does; "" is the name
// "store".
func Listen(dev *vmm.Device, path string, o Options) (*Server, error) {
	s, err := NewServer(dev, o)
	if err != nil {
		return nil, err
	}
	if err := s.objects.Listen(cmp.Or(path, defaultName)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

var errNoServer = fmt.Errorf("%w: no store", vmm.ErrInvalid)

// ServeConn serves one connection until it ends, as shareable.Server.ServeConn does.
func (s *Server) ServeConn(c *net.UnixConn) error {
	if s == nil || s.dev == nil {
		if c == nil {
			return errNoServer
		}
		return errors.Join(errNoServer, c.Close())
	}
	return s.conns.ServeConn(c)
}

// Path is the path of the socket; empty without one.
func (s *Server) Path() string { return nonnil.Of(s).conns.Path() }

// Instance is a random number of this server: another one after each start, unless it continues
// with what another had.
func (s *Server) Instance() [16]byte { return nonnil.Of(s).conns.Instance() }

// Close ends all connections and gives the memory up. Clients keep what they have mapped.
// Twice is fine, and so is a nil Server.
func (s *Server) Close() error {
	if s == nil || s.dev == nil {
		return nil
	}
	s.recorder.stop()
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.stop)
		s.endLife() // so that no request waits for other members
	}
	// Connections end first: that ends the leases, and objects without names go with them.
	err := s.conns.Close()
	if first {
		s.unhook()
		err = errors.Join(err, membership.End(s.member)) // no member hears any more that it may have what was the store's
	}
	s.budgets.Close()
	s.mu.Lock()
	left := slices.Clone(s.order)
	s.mu.Unlock()
	for _, e := range left {
		s.drop(e)
	}
	s.counted.Set(0) // clients that have some of it are all that is left
	return err
}

// handler is a Server as its connections see it.
type handler struct{ s *Server }

var _ serve.Handler = handler{}

// Find returns the object of a name.
func (h handler) Find(name string) serve.Object {
	s := h.s
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.findLocked(name)
	if e == nil {
		return nil
	}
	s.usedLocked(e)
	return e.obj
}

// findLocked is the object of a name; nil if there is none. Requires mu.
func (s *Server) findLocked(name string) *entry {
	invariants.Held(&s.mu)
	if id, ok := wire.ParseIDName(name); ok {
		if e := s.byID[id]; e != nil && !e.deleted {
			return e
		}
		return nil
	}
	return s.byName[name]
}

// Readers is called when readers have come or gone.
func (h handler) Readers(o serve.Object) {
	s := h.s
	s.mu.Lock()
	e := s.byID[o.ID()]
	unused := e != nil && s.usedLocked(e) == 0 && e.deleted
	s.mu.Unlock()
	if unused {
		s.drop(e)
	}
}

// requests are what a store does for each type of request.
var requests = map[wire.Type]func(*Server, serve.Conn, wire.Frame) error{
	wire.TypeCreate:  decoded((*Server).create, wire.DecodeCreate),
	wire.TypeLease:   decoded((*Server).lease, wire.DecodeLease),
	wire.TypeMapped:  decoded((*Server).mapped, wire.DecodeMapped),
	wire.TypeGrow:    decoded((*Server).grow, wire.DecodeGrow),
	wire.TypeWrote:   decoded((*Server).wrote, wire.DecodeWrote),
	wire.TypeSeal:    decoded((*Server).seal, wire.DecodeSeal),
	wire.TypeRelease: decoded((*Server).release, wire.DecodeRelease),
	wire.TypeDelete:  decoded((*Server).delete, wire.DecodeDelete),
	wire.TypeWait:    decoded((*Server).wait, wire.DecodeWait),
	wire.TypeLink:    decoded((*Server).link, wire.DecodeLink),
	wire.TypeUnlink:  decoded((*Server).unlink, wire.DecodeUnlink),
	wire.TypeQuery:   decoded((*Server).query, wire.DecodeQuery),
	wire.TypeCount:   (*Server).count,
	wire.TypeWatch:   decoded((*Server).watch, wire.DecodeWatch),
	wire.TypeReplace: decoded((*Server).replace, wire.DecodeReplace),
	wire.TypeReport:  (*Server).report,
	wire.TypeRevoke:  decoded((*Server).revokeOf, wire.DecodeRevoke),
	wire.TypeResume:  decoded((*Server).resume, wire.DecodeResume),
}

// decoded is what handle does with a request whose payload decode reads.
func decoded[Q any](handle func(*Server, serve.Conn, wire.Frame, Q) error, decode func([]byte) (Q, error)) func(*Server, serve.Conn, wire.Frame) error {
	return func(s *Server, c serve.Conn, f wire.Frame) error {
		q, err := decode(f.Payload)
		if err != nil {
			return err
		}
		return handle(s, c, f, q)
	}
}

// Request handles a request of a client.
func (h handler) Request(c serve.Conn, f wire.Frame) error {
	s := h.s
	s.step()
	defer s.step()
	if isOnce(f.Type) && s.isDone(s.requestOf(c, f)) {
		return done(c, f.Request)
	}
	handle := requests[f.Type]
	if lending.Handles(f.Type) {
		handle = func(_ *Server, c serve.Conn, f wire.Frame) error { return s.budgets.Request(c, f) }
	}
	if handle == nil {
		return &wire.ProtocolError{What: fmt.Sprintf("%v to a store", f.Type)}
	}
	err := handle(s, c, f)
	var sent *sentError
	var broke *wire.ProtocolError
	switch {
	case err == nil, f.Type == wire.TypeWrote: // which has no reply
		return err
	case errors.As(err, &sent):
		return sent.err
	case errors.As(err, &broke):
		s.refused(c, f.Type, err)
		return err
	}
	s.refused(c, f.Type, err)
	return c.Refuse(f.Request, err)
}

// sentError is that a reply could not be sent, which ends the connection.
type sentError struct{ err error }

func (e *sentError) Error() string { return e.err.Error() }

// reply sends a reply.
func reply(c serve.Conn, t wire.Type, request uint32, payload []byte, fds ...int) error {
	return sending(c.Reply(t, request, payload, fds...))
}

// sending is the error of sending a reply.
func sending(err error) error {
	if err != nil {
		return &sentError{err}
	}
	return nil
}

func done(c serve.Conn, request uint32) error { return reply(c, wire.TypeDone, request, nil) }

// Idle reports whether a connection has no lease, no request that waits, and no events. A forced
// delete may be of any.
func (h handler) Idle(c serve.Conn) bool {
	s := h.s
	isMember := s.budgets.IsMember(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.clients[c]
	return !isMember && s.forced == 0 && s.watchers[c] == nil && (x == nil || len(x.leases) == 0 && x.waits == 0)
}

// End ends what the connection had: its leases, and the requests that wait.
func (h handler) End(c serve.Conn) {
	s := h.s
	s.budgets.End(c)
	s.mu.Lock()
	state := s.clients[c]
	delete(s.clients, c)
	if state != nil && state.token != "" {
		if s.tokens[state.token]--; s.tokens[state.token] <= 0 {
			delete(s.tokens, state.token)
		}
	}
	if w := s.watchers[c]; w != nil {
		delete(s.watchers, c)
		s.ledger.Return(c.Cred().UID, recordsOfWatch)
		w.end()
	}
	if state == nil {
		s.mu.Unlock()
		return
	}
	own := func(w wait) bool {
		if w.c == c {
			s.overLocked(w)
		}
		return w.c == c
	}
	for name := range state.names {
		if all := slices.DeleteFunc(s.waits[name], own); len(all) == 0 {
			delete(s.waits, name)
		} else {
			s.waits[name] = all
		}
	}
	for _, e := range state.queues {
		e.waiting = slices.DeleteFunc(e.waiting, own)
	}
	began := s.beganLocked(state)
	s.mu.Unlock()
	var runs *process
	if len(state.leases) > 0 && !waitExit(int(c.Cred().PID), c.PeerPIDFD) {
		runs = processOf(c, began)
	}
	for _, e := range state.leases {
		s.endLease(e, c, leaseEnd{abort: !e.durable(), runs: runs})
	}
	if state.token != "" {
		s.clientsGone(state.token)
	}
}

func (s *Server) step() {
	if f := s.opts.hooks.step; f != nil {
		f()
	}
}

// forcedSuffix follows the token for requests whose replies come in an order of their own.
const forcedSuffix = "/forced"

// requestID is a request of a client that servers know by its token; the zero value is of none.
type requestID struct {
	client string
	number uint32
}

// requestOf is the request of a frame.
func (s *Server) requestOf(c serve.Conn, f wire.Frame) requestID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.clients[c]; x != nil && x.token != "" && f.Request != 0 {
		return requestID{x.token, f.Request}
	}
	return requestID{}
}

// isOnce reports whether a request must not be done again: a client whose server has ended does not
// know whether it was. The others do no harm, but for DELETE, which see.
func isOnce(t wire.Type) bool {
	switch t {
	case wire.TypeMapped, wire.TypeSeal, wire.TypeRelease, wire.TypeLink, wire.TypeUnlink, wire.TypeReplace, wire.TypeRevoke:
		return true
	}
	return false
}

// clientLocked is what the connection has that makes a request. Requires mu.
func (s *Server) clientLocked(c serve.Conn) *clientState {
	invariants.Held(&s.mu)
	x := s.clients[c]
	if x == nil {
		x = &clientState{leases: map[uint64]*entry{}, names: map[string]struct{}{}, queues: map[uint64]*entry{}}
		s.clients[c] = x
	}
	return x
}
