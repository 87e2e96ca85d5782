package collective

import (
	"context"
	"slices"
	"sync"
	"time"
)

// waits are the calls of a group that other members can keep waiting, in the engine or for a
// stream. A timer looks after them, and aborts the group, which ends all, when a context has ended,
// when Options.Timeout is over, and when the engine knows that another member is gone.
//
// One timer looks at all waits every 20 ms: a timer and a context.AfterFunc for each call would take
// more than a third of the time of a small call.
type waits struct {
	g *Group

	mu      sync.Mutex
	all     []*wait
	timer   *time.Timer
	running bool // the timer
}

type wait struct {
	ctx  context.Context //nolint:containedctx // it is that of a call that is being made
	seen time.Time       // when the timer saw it first; zero before that
}

// lookPause is the time between two looks. A wait ends up to one of them after its context, and up
// to two after Options.Timeout.
const lookPause = 20 * time.Millisecond

func (ws *waits) begin(ctx context.Context) *wait {
	w := &wait{ctx: ctx}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.all = append(ws.all, w)
	switch {
	case ws.running:
	case ws.timer == nil:
		ws.timer = time.AfterFunc(lookPause, ws.look)
	default:
		ws.timer.Reset(lookPause)
	}
	ws.running = true
	return w
}

func (ws *waits) end(w *wait) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	last := len(ws.all) - 1
	ws.all[slices.Index(ws.all, w)] = ws.all[last]
	ws.all[last] = nil
	ws.all = ws.all[:last]
}

// look looks at all, and comes again in a while if there are any.
func (ws *waits) look() {
	ws.mu.Lock()
	if len(ws.all) == 0 {
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
		_ = ws.g.fail(err)
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
		if now.Sub(w.seen) >= ws.g.opts.Timeout {
			return ws.g.errLate()
		}
	}
	return nil
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
