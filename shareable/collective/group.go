package collective

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/vmm"
)

// Group is this process's membership in a group, with memory of one device. Safe for
// concurrent use; calls are made one after the other, and all members have to make them in
// the same order. The caller must Close or Abort it, before its device.
type Group struct {
	// Immutable.
	dev        *vmm.Device
	rank, size int
	opts       Options
	of         engine.Maker
	met        bool          // the members have connections with each other
	stop       chan struct{} // closed by fail

	// calling has an element while a call of the group is made. It comes before the locks of
	// memory, and those before engineMu.
	calling chan struct{}

	// Of the call that is made.
	ownStream *vmm.Stream // for words that the members exchange
	scratch   *vmm.Pinned // the words
	calls     []nccl.Call
	spans     []vmm.Span
	arg       vmm.MemoryArg // for Op.prepare

	// engineMu is held for each call of e but Abort and Name, also by registrations while memory
	// grows. A holder waits for other members, and for nothing else.
	engineMu sync.Mutex
	e        engine.Engine

	// Guarded by mu.
	mu     sync.Mutex // held while fail marks: of the locks, those of waits, streams and events come after it
	failed error      // why the group cannot be used any more
	closed bool
	regs   map[*Registration]struct{}

	circle *circle // the connections with the other members; nil if they did not meet; Shrink sets it

	aborted  chan struct{} // closed when the engine is aborted
	abortErr error         // of that
	waits    waits
	counters counters
}

type counters struct{ calls, registered, deregistered atomic.Uint64 }

// Stats counts what a Group has done.
type Stats struct {
	Calls        uint64 `json:"calls"`        // NCCL's operations, those that exchange lengths included
	Registered   uint64 `json:"registered"`   // chunks registered so far
	Deregistered uint64 `json:"deregistered"` // chunks of which that was undone
}

// newGroup takes e and c over. The options are resolved.
func newGroup(dev *vmm.Device, e engine.Engine, o Options, of engine.Maker, c *circle) (*Group, error) {
	g := &Group{
		dev: dev, rank: o.Rank, size: o.Size, opts: o, e: e, of: of, circle: c, met: c != nil, stop: make(chan struct{}), aborted: make(chan struct{}),
		calling: make(chan struct{}, 1), regs: map[*Registration]struct{}{},
	}
	g.waits.g = g
	if err := g.makeScratch(); err != nil {
		g.circle = nil // the caller's: Shrink may be called again
		c.hangUp(err)
		return nil, errors.Join(err, g.Abort())
	}
	c.watch(func(err error) { _ = g.fail(err) })
	return g, nil
}

// Rank is this member's number, from 0 on.
func (g *Group) Rank() int { return nonnil.Of(g).rank }

// Size is how many members the group has.
func (g *Group) Size() int { return nonnil.Of(g).size }

// Device is the device whose memory the group moves.
func (g *Group) Device() *vmm.Device { return nonnil.Of(g).dev }

// Engine is what carries the data, and its version.
func (g *Group) Engine() string {
	if g == nil || g.dev == nil {
		return ""
	}
	return g.e.Name()
}

// Stats counts what the group has done.
func (g *Group) Stats() Stats {
	c := &nonnil.Of(g).counters
	return Stats{Calls: c.calls.Load(), Registered: c.registered.Load(), Deregistered: c.deregistered.Load()}
}

// Err is nil while the group can be used. Else it says why not: ErrPeerGone, ErrFailed, a
// wait that took too long, ErrAborted, vmm.ErrClosed.
func (g *Group) Err() error {
	if g == nil || g.dev == nil {
		return errNoGroup
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.failed != nil:
		return g.failed
	case g.closed:
		return errClosed
	}
	return nil
}

// op adds the operation's name to an error.
func (g *Group) op(name string, err error) error {
	if err == nil {
		return nil
	}
	if g == nil || g.dev == nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s, rank %d of %d: %w", name, g.rank, g.size, err)
}

// checkCall returns an error for a Group or a context that is none.
func (g *Group) checkCall(ctx context.Context) error {
	switch {
	case g == nil || g.dev == nil:
		return errNoGroup
	case ctx == nil:
		return errNoContext
	}
	return nil
}

// begin waits until no other call is made. The caller must call end, unless there is an error.
func (g *Group) begin(ctx context.Context) error {
	if err := g.checkCall(ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return cmp.Or(g.Err(), err)
	}
	select {
	case g.calling <- struct{}{}: // a select of one channel takes a third of the time of one of three
	default:
		select {
		case g.calling <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-g.stop:
			return g.Err()
		}
	}
	if err := g.Err(); err != nil { // it has ended meanwhile
		g.end()
		return err
	}
	return nil
}

func (g *Group) end() { <-g.calling }

// Do queues operations on a stream of the group's device, as one: none waits for another to end.
// They run once all members that take part have queued theirs, and Do returns before that. Whatever
// unmaps the memory or takes access away waits for them, as for any work. On a stream that is being
// captured they become part of the graph, which cannot be launched once the group has ended. The
// first call takes longer, because the members connect; so does one that finds the stream full.
//
// Arguments that cannot be used are refused before anything is queued: vmm.ErrInvalid, also for
// memory that one operation writes and another one of the call uses, vmm.ErrBounds,
// vmm.ErrPermission, vmm.ErrClosed, vmm.ErrAsleep, vmm.ErrBusy as for Function.Launch; so is a
// context that has ended, or ends while another call of the group is made. vmm.ErrNotSupported
// leaves the group usable, too. All other errors end it: ErrPeerGone, ErrFailed,
// os.ErrDeadlineExceeded after Options.Timeout, and the error of a context that ends before the
// operations are queued.
func (g *Group) Do(ctx context.Context, st *vmm.Stream, ops ...Op) error {
	if err := g.begin(ctx); err != nil {
		return g.op("do", err)
	}
	defer g.end()
	return g.op("do", g.do(ctx, st, ops...))
}

// do is Do. The caller has begun a call.
func (g *Group) do(ctx context.Context, st *vmm.Stream, ops ...Op) error {
	if err := checkStream(st, g.dev); err != nil {
		return err
	}
	g.calls, g.spans = g.calls[:0], g.spans[:0]
	for i := range ops {
		c, spans, err := ops[i].prepare(g.rank, g.size, g.spans, &g.arg)
		if err != nil {
			return fmt.Errorf("%v: %w", ops[i].op, err)
		}
		if err := apart(g.spans, spans[len(g.spans):]); err != nil {
			return fmt.Errorf("%v: %w", ops[i].op, err)
		}
		if g.spans = spans; c.Count > 0 {
			g.calls = append(g.calls, c)
		}
	}
	if len(g.calls) == 0 {
		return st.Usable()
	}
	unlock, err := st.LockSpans(g.spans...)
	if err != nil {
		return err
	}
	defer unlock()
	g.counters.calls.Add(uint64(len(g.calls)))
	run := func() error { return g.e.Run(st.Queue(), g.spans, g.calls) }
	if errors.Is(st.Usable(), vmm.ErrCapturing) { // it stays so: LockSpans holds the stream
		if err := g.call(ctx, run); err != nil {
			return err
		}
		return g.waits.inGraph(st, g.spans)
	}
	if g.opts.hooks.noWatch {
		return g.call(ctx, run)
	}
	q, err := g.waits.queue(st, g.spans)
	if err != nil {
		return cmp.Or(g.stopped(), err)
	}
	if err := g.call(ctx, run); err != nil {
		g.waits.isNotQueued(q)
		return err
	}
	return g.failIf(g.waits.isQueued(q))
}

// apart is nil if no bytes that an operation uses are written by another one of the same call, in
// either order: none waits for the other.
func apart(before, more []vmm.Span) error {
	for _, x := range more {
		for _, y := range before {
			if (x.Access == vmm.AccessReadWrite || y.Access == vmm.AccessReadWrite) && overlap(x, y) {
				return fmt.Errorf("%w: the memory at %v is written, and used by another operation of the call", vmm.ErrInvalid, max(x.Addr, y.Addr))
			}
		}
	}
	return nil
}

// checkStream is nil for a stream of the device.
func checkStream(st *vmm.Stream, dev *vmm.Device) error {
	switch {
	case st.Device() == nil:
		return fmt.Errorf("%w: no stream", vmm.ErrInvalid)
	case !sameDevice(st.Device(), dev):
		return fmt.Errorf("%w: a stream of %v, the group is on %v", vmm.ErrInvalid, st.Device(), dev)
	}
	return nil
}

// sameDevice reports whether memory of a is memory of b.
func sameDevice(a, b *vmm.Device) bool {
	return a == b || a.Driver() == b.Driver() && a.Info().Ordinal == b.Info().Ordinal
}

// call makes a call of the engine, which may wait for other members. An error that is not the
// caller's mistake ends the group.
func (g *Group) call(ctx context.Context, f func() error) error {
	g.engineMu.Lock()
	defer g.engineMu.Unlock()
	if err := g.stopped(); err != nil { // the engine cannot be used any more
		return err
	}
	w := g.waits.beginCall(ctx)
	err := f()
	g.waits.end(w)
	if err == nil || errors.Is(err, vmm.ErrInvalid) || errors.Is(err, vmm.ErrNotSupported) {
		return err
	}
	return g.engineFailed(err)
}

// fail ends the group with err as the reason, and begins to abort the engine. If the group has
// ended already, it returns the first reason.
func (g *Group) fail(err error) error {
	g.mu.Lock()
	first, ended := g.failed == nil && !g.closed, g.failed != nil
	if first {
		if g.failed = err; !errors.Is(err, ErrAborted) {
			g.failed = fmt.Errorf("%w: %w", ErrAborted, err)
		}
		g.waits.stop(g.failed) // the streams are stopped before any caller learns of the failure
		close(g.stop)
	}
	g.mu.Unlock()
	switch {
	case ended: // err is what came of that
		return g.Err()
	case !first: // it was closed
		return err
	}
	go func() { // it takes up to a second, and what waits is free before its end
		g.circle.hangUp(err)
		g.abortErr = g.e.Abort()
		close(g.aborted)
	}()
	return err
}

// failIf is fail for an error, and nil for none.
func (g *Group) failIf(err error) error {
	if err == nil {
		return nil
	}
	return g.fail(err)
}

// Unwritten lists the memory that calls were to write which were queued on streams when the group
// ended, and had not run. Its bytes are undefined. A call that was to append is listed beyond Len. The
// list is empty while the group runs, and stays after Close, Abort and Shrink. Memory that was unmapped
// or freed since may have another user by now.
func (g *Group) Unwritten() []vmm.Span {
	if g == nil {
		return nil
	}
	g.waits.mu.Lock()
	defer g.waits.mu.Unlock()
	return slices.Clone(g.waits.unwritten)
}

// Abort ends this member's part of the group at once, and what the group has queued on streams; the
// bytes that it would have written are undefined (see Unwritten). It takes up to a second, and 4 ms more for each
// call that is queued. Other calls return ErrAborted, or that the group is closed. Other members
// get ErrPeerGone, or reach their Timeout. Twice is fine, and so is a nil Group.
func (g *Group) Abort() error {
	if g == nil || g.dev == nil {
		return nil
	}
	_ = g.fail(ErrAborted) // nothing where Close is ending it: free waits for that
	return g.op("abort", g.free())
}

// free releases what the group has, once it has ended. Twice is fine.
func (g *Group) free() error {
	g.calling <- struct{}{} // calls return soon: they wait for no other member any more
	defer g.end()
	return g.freeCalling()
}

// freeCalling is free for a caller of begin.
func (g *Group) freeCalling() error {
	g.mu.Lock()
	was, failed := g.closed, g.failed != nil
	g.closed = true
	regs := g.regs
	g.regs = nil
	g.mu.Unlock()
	if was {
		return nil
	}
	var err error
	if failed {
		<-g.aborted // the engine is not freed before
		err = g.abortErr
	}
	for r := range regs {
		err = errors.Join(err, r.end())
	}
	discard := func(f func() error) error { return inside.VMM.Discard(g.dev, nil, f) }
	err = errors.Join(err, g.waits.free(discard), discard(g.ownStream.Close), discard(g.scratch.Close))
	g.circle.leave()
	g.engineMu.Lock()
	defer g.engineMu.Unlock()
	return errors.Join(err, g.e.Free())
}

// Close ends the group, and its registrations, once what it has queued has run and the other
// members call Close, too. If they do not, it aborts the group after Options.Timeout and returns
// os.ErrDeadlineExceeded or ErrPeerGone. Close graphs that have calls of the group before it.
// Twice is fine, and so is a nil Group.
func (g *Group) Close() error {
	if g == nil || g.dev == nil {
		return nil
	}
	err := g.begin(context.Background())
	switch {
	case errors.Is(err, vmm.ErrClosed) && !errors.Is(err, ErrAborted):
		return nil
	case err != nil: // it was aborted, or is
		return g.op("close", g.free())
	}
	defer g.end() // not before the group is closed: no other call comes in between
	// Registrations end first: the engine needs to be whole for that.
	g.mu.Lock()
	regs := maps.Clone(g.regs)
	g.mu.Unlock()
	for r := range regs {
		err = errors.Join(err, r.end())
	}
	err = errors.Join(err, g.call(context.Background(), g.e.Close), g.freeCalling())
	return g.op("close", err)
}

// Sync waits until the work that is queued on the stream has run. If another member is gone or
// makes other calls, it aborts the group, which frees the stream, and returns ErrPeerGone,
// ErrFailed, os.ErrDeadlineExceeded, or the error of a context that has ended: NCCL can take
// nothing back. vmm.ErrCapturing, vmm.ErrInvalid and the error of a lost device leave the group as
// it is. If the group is closed meanwhile, Sync ends with the stream's work alone.
func (g *Group) Sync(ctx context.Context, st *vmm.Stream) error {
	err := g.checkCall(ctx)
	if err == nil {
		err = g.sync(ctx, st)
	}
	return g.op("sync", err)
}

func (g *Group) sync(ctx context.Context, st *vmm.Stream) error {
	if err := g.Err(); err != nil {
		return err
	}
	if err := checkStream(st, g.dev); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return g.fail(err)
	}
	raw, err := g.dev.Raw()
	if err != nil {
		return err
	}
	queue, capturing, release, err := st.Hold() // a Close of the stream waits
	if err != nil {
		return err
	}
	defer release()
	if capturing {
		return fmt.Errorf("%w: what is queued on the stream becomes part of a graph", vmm.ErrCapturing)
	}
	stopped := inside.VMM.Stops(st)
	w := g.waits.beginSync(ctx)
	err = raw.SyncStream(queue) // not Stream.Sync: that waits for an event, and wakes up later
	g.waits.end(w)
	other := stopped()
	if err = cmp.Or(g.stopped(), err); err != nil {
		return err
	}
	if other != nil && g.Err() != nil { // its own: it is about to be aborted
		return g.Err()
	}
	if other != nil { // another group's, of which errors.Is must say nothing here
		return errors.New("another group's work on the stream was stopped: " + other.Error())
	}
	return nil
}

// stopped is nil unless the group was aborted: then what was queued has ended, and may have
// done nothing.
func (g *Group) stopped() error {
	select {
	case <-g.stop:
		return g.Err()
	default:
		return nil
	}
}
