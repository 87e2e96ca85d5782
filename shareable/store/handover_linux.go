package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// A store hands all it has to a successor, which is another version of the same program:
//
//	successor -> TAKEOVER   the connections stop, between two frames
//	store     -> HANDOVER   descriptors; the first is a file with the state
//	store     -> DONE
//	successor -> TAKEN      it has everything
//	store     -> DONE       and begins to serve; the store has nothing any more
//
// Until TAKEN the store can go on: if the successor ends, or takes longer than
// handoverTime, it does. The memory itself stays where it is: descriptors keep it.

// handoverTime is the longest that connections stop for a handover. It is less than what
// clients wait for a reply, so a successor that does nothing costs none of them a request.
const handoverTime = defaultTimeout - time.Second

// handover is one that runs.
type handover struct {
	c       serve.Conn // of the successor
	timer   *time.Timer
	sent    atomic.Bool   // the successor has been sent everything
	decided chan struct{} // closed by decide
}

var errGoesOn = fmt.Errorf("%w: the store goes on", vmm.ErrBusy)

// storeState is what TAKEOVER sends, beside descriptors.
type storeState struct {
	Server   json.RawMessage // of package shareable
	Entries  []entryState
	Waits    []waitState
	Watchers []watcherState
	Counts   []uint64
	IDs      uint64 // of the recorder
}

// entryState is an entry. Connections are indices.
type entryState struct {
	ID, Max            uint64
	Has                []uint64 // of the ledger's kinds
	Used               int      // the place among those that can be evicted, from 1 on
	UID, Flags, Device uint32
	Prop               vmm.Prop
	Labels             []wire.Label
	Names              []string
	Lease              *int
	Waiting            []waitState
	Started            bool
	Sealed, Deleted    bool
}

// stateLocked is the entry without connections. Requires Server.mu.
func (e *entry) stateLocked() entryState {
	return entryState{
		ID: e.id, Max: e.max, Has: slices.Clone(e.has[:]), UID: e.uid, Flags: e.flags, Device: e.device, Prop: e.prop,
		Labels: e.labels, Names: e.names, Started: e.started, Sealed: e.sealed, Deleted: e.deleted,
	}
}

type waitState struct {
	Conn    int
	Request uint32
	Name    string

	Unsealed bool
}

type watcherState struct {
	Conn   int
	Prefix string
	Queue  []wire.Event
	Lost   uint64
}

// takeOver handles TAKEOVER.
func (s *Server) takeOver(c serve.Conn, f wire.Frame) error {
	if !c.Successor() && !s.opts.hooks.anyTakesOver {
		return fmt.Errorf("%w: a store is taken over only by a process that it was told of", vmm.ErrPermission)
	}
	// Readers that stand still cannot say that they have unmapped an object.
	var end time.Time
	for stands := false; !stands; {
		for over := s.forcedDelete(); over != nil; over = s.forcedDelete() {
			<-over
		}
		end = time.Now().Add(handoverTime)
		if err := s.objects.Park(handoverTime, c); err != nil {
			return err
		}
		if stands = s.forcedDelete() == nil; !stands { // one has come meanwhile
			s.objects.Decide(false)
		}
	}
	h := &handover{c: c, decided: make(chan struct{})}
	s.mu.Lock()
	s.handing = h
	h.timer = time.AfterFunc(time.Until(end), func() {
		// That also ends the sending of the state, to a successor that does not read. One
		// that has it all hears that the store goes on when it sends TAKEN.
		if s.decide(h, false) && !h.sent.Load() {
			c.Close(fmt.Errorf("%w: the successor took longer than %v", os.ErrDeadlineExceeded, handoverTime))
		}
	})
	s.mu.Unlock()
	if err := s.sendState(h); err != nil {
		s.decide(h, false)
		return err
	}
	h.sent.Store(true)
	return done(c, f.Request)
}

// taken handles TAKEN.
func (s *Server) taken(c serve.Conn, f wire.Frame) error {
	s.mu.Lock()
	h := s.handing
	s.mu.Unlock()
	if h == nil || h.c != c || !s.decide(h, true) {
		return errGoesOn
	}
	return done(c, f.Request)
}

// decide ends a handover, once: it returns false for a later call, and if a store is to move
// that is being closed.
func (s *Server) decide(h *handover, moved bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handing != h || moved && s.closed {
		return false
	}
	s.handing = nil
	h.timer.Stop()
	close(h.decided)
	if moved {
		s.recorder.stop()
	}
	s.objects.Decide(moved)
	if !moved {
		for c, w := range s.watchers {
			w.start(c)
		}
		return true
	}
	select {
	case <-s.gone: // another has taken over before
	default:
		close(s.gone)
	}
	return true
}

// sendState sends what there is to the successor.
func (s *Server) sendState(h *handover) error {
	c := h.c
	s.mu.Lock()
	if s.handing != h { // its time is over: the watchers must not be paused
		s.mu.Unlock()
		return errGoesOn
	}
	var stopped []<-chan struct{}
	for _, w := range s.watchers {
		stopped = append(stopped, w.pause())
	}
	s.mu.Unlock()
	// Events and replies that are on their way come before the state. A client that does not read them is
	// disconnected.
	late := time.AfterFunc(lateTime, s.cutOff)
	defer late.Stop()
	for _, over := range stopped {
		select {
		case <-over:
		case <-h.decided:
			return errGoesOn
		}
	}
	s.replies.Wait()
	state, fds, release, err := s.state(c)
	if err != nil {
		return err
	}
	defer release()
	if f := s.opts.hooks.earlyState; f != nil {
		s.objects.Decide(false)
		f()
		if err := s.objects.Park(handoverTime, c); err != nil {
			return err
		}
	}
	file, err := memoryFile(state)
	if err != nil {
		return err
	}
	defer closeFD(file)
	fds = append([]int{file}, fds...)
	for i := 0; i < len(fds); i += wire.MaxFDs {
		part := fds[i:min(len(fds), i+wire.MaxFDs)]
		h := wire.Handover{First: uint32(i), All: uint32(len(fds))}
		if err := reply(c, wire.TypeHandover, 0, h.Append(nil), part...); err != nil {
			return err
		}
	}
	return nil
}

// memoryFile makes a file in memory.
func memoryFile(b []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate("cuvmm-handover", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil {
			closeFD(fd)
			return -1, fmt.Errorf("write: %w", err)
		}
		b = b[n:]
	}
	return fd, nil
}

// state describes a store that is parked.
func (s *Server) state(but serve.Conn) (state []byte, fds []int, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var objects []serve.Object
	for _, e := range s.order {
		objects = append(objects, e.obj)
	}
	server, conns, fds, release, err := s.objects.Handover(objects, but)
	if err != nil {
		return nil, nil, nil, err
	}
	index := map[serve.Conn]int{}
	for i, c := range conns {
		index[c] = i
	}
	waits := func(all []wait) (out []waitState) {
		for _, w := range all {
			if i, ok := index[w.c]; ok {
				out = append(out, waitState{i, w.request, w.name, w.unsealed})
			}
		}
		return out
	}
	used := map[*entry]int{}
	for x := s.unused.Front(); x != nil; x = x.Next() {
		if e, ok := x.Value.(*entry); ok {
			used[e] = len(used) + 1
		}
	}
	x := storeState{Server: server, IDs: s.recorder.highest()}
	for _, e := range s.order {
		st := e.stateLocked()
		st.Used, st.Waiting = used[e], waits(e.waiting)
		if i, ok := index[e.lease]; ok {
			st.Lease = &i
		}
		x.Entries = append(x.Entries, st)
	}
	for _, all := range s.waits {
		x.Waits = append(x.Waits, waits(all)...)
	}
	for c, w := range s.watchers {
		if i, ok := index[c]; ok {
			x.Watchers = append(x.Watchers, w.state(i))
		}
	}
	for _, n := range s.counts.all() {
		x.Counts = append(x.Counts, n.Load())
	}
	if state, err = json.Marshal(x); err != nil {
		release()
	}
	return state, fds, release, err
}

// HandOver lets the process at the other end of a connection, a socket pair of the kind "unixpacket", take
// over by TakeOver, and takes the connection. It returns nil once that has everything; then Wait returns, too.
// After an error the store goes on. No other connection can take a store over.
func (s *Server) HandOver(conn *net.UnixConn) error {
	switch {
	case conn == nil:
		return fmt.Errorf("hand over: %w: no connection", vmm.ErrInvalid)
	case s == nil || s.dev == nil:
		return errors.Join(errNoServer, conn.Close())
	}
	err := s.objects.ServeSuccessor(conn)
	select {
	case <-s.gone:
		return nil
	default:
	}
	if err == nil {
		err = fmt.Errorf("%w: it has disconnected", errGoesOn)
	}
	return fmt.Errorf("hand over: %w", err)
}

// TakeOver makes a server that goes on with all that another store has: objects,
// names, leases and connections. The clients notice nothing. It returns once the other
// store has given everything up; that one's Wait returns then. dev must be the same device. conn, which it
// takes, is the other end of what HandOver got there. Other is a pidfd (pidfd_open) of that process, which
// the caller closes: if it dies before it has said so, TakeOver goes on if it is known to have ended. It
// may be -1 then.
//
// If TakeOver returns an error the other store goes on, or there is none. It returns
// shareable.ErrOwnerGone if that disconnects, vmm.ErrPermission if it
// runs as another user, vmm.ErrNotSupported if it has memory of another device or of other pages,
// vmm.ErrBusy if another process takes over or if this one was too slow,
// vmm.ErrLimit if descriptors run out here, and its context's error if that ends first. The
// caller must Close the Server, before the device.
func TakeOver(ctx context.Context, dev *vmm.Device, conn *net.UnixConn, other int, o Options) (*Server, error) {
	if conn == nil {
		return nil, fmt.Errorf("take over: %w: no connection", vmm.ErrInvalid)
	}
	return takeOverOn(ctx, dev, conn, other, o, nil)
}

// takeOverOn is TakeOver of a server that tells the keeper what it promises, unless that is nil.
func takeOverOn(ctx context.Context, dev *vmm.Device, conn *net.UnixConn, other int, o Options, control *net.UnixConn) (*Server, error) {
	s, err := takeOver(ctx, dev, func(with shareable.AttachOptions, event func(wire.Frame) error) (serve.Client, error) {
		return shareable.DialConn(ctx, conn, dev, with, event)
	}, other, o, control)
	if err != nil {
		return nil, fmt.Errorf("take over: %w", err)
	}
	return s, nil
}

func takeOver(ctx context.Context, dev *vmm.Device, dial func(shareable.AttachOptions, func(wire.Frame) error) (serve.Client, error), other int, o Options, control *net.UnixConn) (*Server, error) {
	o, err := o.resolve()
	if err != nil {
		return nil, err
	}
	var got []int
	defer func() { closeFDs(got) }()
	all := 0
	event := func(f wire.Frame) error {
		if f.Type != wire.TypeHandover {
			return fmt.Errorf("%w: %v in a handover", shareable.ErrProtocol, f.Type)
		}
		h, err := wire.DecodeHandover(f.Payload)
		if err != nil {
			return protocolError(err)
		}
		if int(h.First) != len(got) || all > 0 && int(h.All) != all {
			return fmt.Errorf("%w: descriptor %d of %d after %d of %d", shareable.ErrProtocol, h.First, h.All, len(got), all)
		}
		all = int(h.All)
		for _, fd := range f.FDs {
			got = append(got, fd.Take())
		}
		return nil
	}
	c, err := dial(shareable.AttachOptions{Timeout: o.Timeout}, event)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := sameMemory(dev, c.Hello()); err != nil {
		return nil, err
	}
	if err := c.Call(ctx, wire.TypeTakeOver, nil, wire.TypeDone, ignore); err != nil {
		return nil, err
	}
	if len(got) == 0 || len(got) != all {
		return nil, fmt.Errorf("%w: %d descriptors of %d in a handover", shareable.ErrProtocol, len(got), all)
	}
	f := os.NewFile(uintptr(got[0]), "state")
	fds := got[1:]
	got = nil
	state, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	_ = f.Close()
	if err != nil {
		closeFDs(fds)
		return nil, err
	}
	s, start, err := resume(dev, o, state, fds)
	if err != nil {
		return nil, err
	}
	if f := o.hooks.beforeTaken; f != nil {
		f()
	}
	// After DONE the other store does not go on. If its process has ended without a reply,
	// no other process has what this one has.
	err = c.Call(ctx, wire.TypeTaken, nil, wire.TypeDone, ignore)
	if err != nil && !(errors.Is(err, shareable.ErrOwnerGone) && other >= 0 && hasEnded(other, cmp.Or(o.hooks.exitTime, handoverTime))) {
		s.objects.Abandon()
		return nil, errors.Join(err, s.Close())
	}
	s.counts.takeovers.Add(1)
	if control != nil { // it hears that this one serves before it hears what that promises
		s.startRecording(control)
		_ = writeKept(control, keptMessage{Op: opReady}) // without a keeper the process ends soon
	}
	start()
	return s, nil
}

// sameMemory is nil if memory of the store that sent h is memory of dev. Objects of another device, or
// of other sizes of pages, could not be mapped.
func sameMemory(dev *vmm.Device, h wire.Hello) error {
	gran, err := granularity(dev)
	if err == nil && (dev.Info().UUID != h.UUID || gran != h.Granularity) {
		err = fmt.Errorf("%w: the store has memory of device %x in multiples of %d bytes, this process of %x in %d",
			vmm.ErrNotSupported, h.UUID, h.Granularity, dev.Info().UUID, gran)
	}
	return err
}

// hasEnded reports whether a process has ended, or does so in time.
func hasEnded(pidfd int, limit time.Duration) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(limit/time.Millisecond))
	return err == nil && n > 0
}

// resume makes a server of a state, and takes the descriptors. start has it serve.
func resume(dev *vmm.Device, o Options, state []byte, fds []int) (*Server, func(), error) {
	var x storeState
	if err := json.Unmarshal(state, &x); err != nil {
		closeFDs(fds)
		return nil, nil, protocolError(err)
	}
	return resumeState(dev, o, x, func(h serve.Handler) (shareable.Resumed, error) {
		return shareable.TakeOver(dev, o.server(), h, x.Server, fds)
	})
}

// resumeState is resume of a state, whose objects and connections come from resumed: it takes their descriptors.
func resumeState(dev *vmm.Device, o Options, x storeState, resumed func(serve.Handler) (shareable.Resumed, error)) (*Server, func(), error) {
	s, err := bareServer(dev, o)
	if err != nil {
		return nil, nil, err
	}
	r, err := resumed(handler{s})
	if err != nil {
		return nil, nil, err
	}
	clients := r.Conns
	s.conns, s.objects = r.Server, r.Seam
	s.ledger = newLedger(o, s.objects.FileLimit())
	if len(r.Objects) != len(x.Entries) {
		return nil, nil, errors.Join(fmt.Errorf("%w: %d objects of %d", shareable.ErrProtocol, len(r.Objects), len(x.Entries)), r.Abandon())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	used := map[*entry]int{}
	for i, st := range x.Entries {
		if e := s.resumeEntryLocked(r.Objects[i], st, clients); st.Used > 0 {
			used[e] = st.Used
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(used), func(a, b *entry) int { return cmp.Compare(used[a], used[b]) }) {
		s.usedLocked(e)
	}
	for _, w := range x.Waits {
		s.resumeWaitLocked(wait{clients[w.Conn], w.Request, w.Name, w.Unsealed}, s.addWaitLocked)
	}
	for _, w := range x.Watchers {
		c := clients[w.Conn]
		s.clientLocked(c)
		s.ledger.Add(c.Cred().UID, recordsOfWatch)
		s.watchers[c] = newWatcher(w.Prefix, w.Queue, w.Lost)
	}
	for i, n := range s.counts.all() {
		if i < len(x.Counts) {
			n.Store(x.Counts[i])
		}
	}
	s.resumedIDs = x.IDs
	return s, func() {
		r.Start()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c, w := range s.watchers {
			w.start(c)
		}
	}, nil
}

// resumeEntryLocked makes an entry of its state. Requires mu.
func (s *Server) resumeEntryLocked(obj serve.Object, st entryState, clients []serve.Conn) *entry {
	e := &entry{
		obj: obj, id: st.ID, uid: st.UID, flags: st.Flags, device: st.Device, prop: st.Prop, max: st.Max, labels: st.Labels,
		names: st.Names, started: st.Started, sealed: st.Sealed, deleted: st.Deleted,
	}
	for _, w := range st.Waiting {
		s.resumeWaitLocked(wait{c: clients[w.Conn], request: w.Request, name: w.Name}, func(w wait) { s.addLeaseWaitLocked(e, w) })
	}
	if st.Lease != nil {
		e.lease = clients[*st.Lease]
		s.clientLocked(e.lease).leases[e.id] = e
	}
	s.addLocked(e)
	for _, name := range e.names {
		s.byName[name] = e
	}
	copy(e.has[:], st.Has)
	s.ledger.Add(e.uid, e.has)
	return e
}

// resumeWaitLocked counts a request that waits already. Requires mu.
func (s *Server) resumeWaitLocked(w wait, add func(wait)) {
	s.ledger.Add(w.c.Cred().UID, recordsOfName(w.name))
	add(w)
}

func (c *counts) all() []*atomic.Uint64 {
	return []*atomic.Uint64{&c.created, &c.sealed, &c.aborted, &c.deleted, &c.evicted, &c.leases, &c.takeovers}
}

// pause has the goroutine that sends end, and returns what is closed then. The events stay.
func (w *watcher) pause() (stopped <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = true
	w.wakeLocked()
	if w.running == nil {
		over := make(chan struct{})
		close(over)
		return over
	}
	return w.running
}

// state describes a watcher that is paused.
func (w *watcher) state(conn int) watcherState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return watcherState{Conn: conn, Prefix: w.prefix, Queue: w.queue, Lost: w.lost}
}

// forcedDelete is closed when a forced delete that runs now is over; nil: none runs.
func (s *Server) forcedDelete() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, over := range s.forced {
		return over
	}
	return nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		closeFD(fd)
	}
}
