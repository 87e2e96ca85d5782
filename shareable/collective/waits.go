package collective

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// waits are what other members can keep waiting: calls in the engine, waits for streams, and calls
// that are queued on streams. A timer looks after them, and aborts the group, which ends all, when
// a context has ended, when Options.Timeout is over, and when the engine knows that another member
// is gone.
//
// One timer looks at all of them every 20 ms: a timer and a context.AfterFunc for each call would
// take more than a third of the time of a small call.
type waits struct {
	g *Group

	mu      sync.Mutex // the locks of streams and events come after it
	all     []*wait
	spare   *wait         // one that has ended, for the next
	queued  []*queuedCall // oldest first
	idle    []*queuedCall // whose events can be recorded again
	timer   *time.Timer
	running bool // the timer
	stopped bool // no call is queued any more

	unwritten []vmm.Span // what the calls would have written that were stopped
	ends      []func()   // of the stops of their streams
}

type wait struct {
	ctx     context.Context //nolint:containedctx // it is that of a call that is being made
	limited bool            // by Options.Timeout: it is in the engine
	seen    time.Time       // when the timer saw it first; zero before that
}

// queuedCall is a call that is queued on a stream. Its time begins with the call itself: once what
// was queued before it on the stream has run, and the group's call before it.
type queuedCall struct {
	st         *vmm.Stream
	writes     []vmm.Span
	start, end *vmm.Event
	whole      bool      // end is recorded
	began      time.Time // when the timer saw that start is reached; zero before that
}

// lookPause is the time between two looks. A wait ends up to one of them after its context, and up
// to two after Options.Timeout.
const lookPause = 20 * time.Millisecond

// beginCall begins a call of the engine, which Options.Timeout limits, and beginSync a wait for a stream.
func (ws *waits) beginCall(ctx context.Context) *wait { return ws.begin(ctx, true) }
func (ws *waits) beginSync(ctx context.Context) *wait { return ws.begin(ctx, false) }

func (ws *waits) begin(ctx context.Context, limited bool) *wait {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.spare
	if ws.spare = nil; w == nil {
		w = &wait{}
	}
	w.ctx, w.limited = ctx, limited
	ws.all = append(ws.all, w)
	ws.runLocked()
	return w
}

// runLocked has the timer look. Requires mu.
func (ws *waits) runLocked() {
	switch {
	case ws.running:
	case ws.timer == nil:
		ws.timer = time.AfterFunc(lookPause, ws.look)
	default:
		ws.timer.Reset(lookPause)
	}
	ws.running = true
}

func (ws *waits) end(w *wait) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	last := len(ws.all) - 1
	ws.all[slices.Index(ws.all, w)] = ws.all[last]
	ws.all[last] = nil
	ws.all = ws.all[:last]
	*w = wait{}
	ws.spare = w
}

// queue begins a call that is about to be queued on the stream. Then comes isQueued, or
// isNotQueued.
func (ws *waits) queue(st *vmm.Stream, spans []vmm.Span) (q *queuedCall, err error) {
	if q = ws.takeIdle(); q == nil {
		q = &queuedCall{}
		if q.start, err = ws.g.dev.NewEvent(vmm.EventBlocking); err == nil {
			q.end, err = ws.g.dev.NewEvent(vmm.EventBlocking)
		}
	}
	if q.st, q.whole, q.began = st, false, (time.Time{}); err == nil {
		err = q.start.Record(st)
	}
	if err != nil {
		return nil, errors.Join(err, q.close())
	}
	q.writes = written(q.writes[:0], spans)
	if !ws.add(q) {
		return nil, errors.Join(ws.g.Err(), q.close())
	}
	return q, nil
}

// add reports false if the group has ended.
func (ws *waits) add(q *queuedCall) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !ws.stopped {
		ws.queued = append(ws.queued, q)
		ws.runLocked()
	}
	return !ws.stopped
}

// enough is how many calls are queued, at least, before one is asked whether it has run. To ask
// takes the driver some time; if one has run, so have those before it on its stream.
const enough = 32

// takeIdle takes a call that has run, if there is one, for its events: nil if there is none.
func (ws *waits) takeIdle() (q *queuedCall) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.idle) == 0 && len(ws.queued) >= enough {
		const n = enough / 2
		last := ws.queued[n-1]
		ofAnother := func(q *queuedCall) bool { return q.st != last.st }
		if !slices.ContainsFunc(ws.queued[:n], ofAnother) {
			if ran, err := last.hasRun(); ran && err == nil {
				ws.idle = append(ws.idle, ws.queued[:n]...)
				ws.queued = slices.Delete(ws.queued, 0, n)
			}
		}
	}
	if last := len(ws.idle) - 1; last >= 0 {
		q, ws.idle = ws.idle[last], ws.idle[:last]
	}
	return q
}

// written appends the spans that are written to to.
func written(to, spans []vmm.Span) []vmm.Span {
	for _, s := range spans {
		if s.Access == vmm.AccessReadWrite {
			to = append(to, s)
		}
	}
	return to
}

// isQueued notes that all of a call is queued.
func (ws *waits) isQueued(q *queuedCall) error {
	err := q.end.Record(q.st)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	q.whole = err == nil
	return err
}

// isNotQueued undoes queue.
func (ws *waits) isNotQueued(q *queuedCall) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.queued = slices.DeleteFunc(ws.queued, func(x *queuedCall) bool { return x == q })
	ws.idle = append(ws.idle, q)
}

// hasRun reports whether the call has run.
func (q *queuedCall) hasRun() (bool, error) {
	if !q.whole {
		return false, nil
	}
	return q.end.Done()
}

func (q *queuedCall) close() error { return errors.Join(q.start.Close(), q.end.Close()) }

// look looks at all, and comes again in a while if there are any.
func (ws *waits) look() {
	ws.mu.Lock()
	if len(ws.all)+len(ws.queued) == 0 {
		ws.running = false
		ws.mu.Unlock()
		return
	}
	err := ws.overLocked()
	ws.mu.Unlock()
	if err == nil {
		err = ws.g.check()
	}
	if err != nil {
		_ = ws.g.engineFailed(err)
		return // the group has ended
	}
	ws.timer.Reset(lookPause)
}

// overLocked is why one of them must not wait longer. Requires mu.
func (ws *waits) overLocked() error {
	now := time.Now()
	for _, w := range ws.all {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if w.seen.IsZero() {
			w.seen = now
		}
		if w.limited && now.Sub(w.seen) >= ws.g.opts.Timeout {
			return ws.g.errLate()
		}
	}
	left := ws.queued[:0]
	var late error
	for _, q := range ws.queued {
		if len(left) == 0 { // else it waits for the first one: a member's calls run one after the other, on all streams
			if ran, err := q.hasRun(); ran || err != nil { // of a device that is lost nothing more is to be known
				ws.idle = append(ws.idle, q)
				continue
			}
			if q.began.IsZero() {
				if began, err := q.start.Done(); err == nil && began {
					q.began = now
				}
			} else if now.Sub(q.began) >= ws.g.opts.Timeout {
				late = ws.g.errLate()
			}
		}
		left = append(left, q)
	}
	clear(ws.queued[len(left):])
	ws.queued = left
	return late
}

// stop stops the streams of calls that are queued and have not run: they are about to be ended. The
// caller holds the group's lock.
func (ws *waits) stop(cause error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.stopped = true
	var streams []*vmm.Stream
	for _, q := range ws.queued {
		if ran, err := q.hasRun(); ran && err == nil {
			continue
		}
		ws.unwritten = append(ws.unwritten, q.writes...)
		if !slices.Contains(streams, q.st) {
			streams = append(streams, q.st)
			ws.ends = append(ws.ends, inside.VMM.StopWork(q.st, cause))
		}
	}
}

// free frees the events. The group has ended.
func (ws *waits) free(discard func(func() error) error) (err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.stopped = true
	for _, q := range slices.Concat(ws.queued, ws.idle) {
		err = errors.Join(err, discard(q.close))
	}
	ws.queued, ws.idle = nil, nil
	for _, end := range ws.ends {
		end()
	}
	ws.ends = nil
	return err
}

// inGraph has each launch of the graph that the stream's capture becomes counted as a call that is
// queued. A capture that another library has begun is not known, so neither are its launches.
func (ws *waits) inGraph(st *vmm.Stream, spans []vmm.Span) error {
	spans = slices.Clone(spans)
	err := inside.VMM.OnGraphLaunch(st, func(on *vmm.Stream) (launched func(), err error) {
		q, err := ws.queue(on, spans)
		if err != nil { // the group has ended, or the stream
			return nil, err
		}
		return func() {
			if err := ws.isQueued(q); err != nil {
				_ = ws.g.fail(err)
			}
		}, nil
	})
	if errors.Is(err, vmm.ErrInvalid) {
		return nil
	}
	return err
}

// check asks the engine whether another member is gone, unless a call is in it, which then fails
// by itself.
func (g *Group) check() error {
	if !g.engineMu.TryLock() {
		return nil
	}
	defer g.engineMu.Unlock()
	if err := g.Err(); err != nil { // it was closed: the engine may be freed
		return err
	}
	return g.e.Err()
}
