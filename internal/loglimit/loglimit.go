// Package loglimit limits the lines that a server logs: any process may connect and be refused, as often
// as it likes.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Burst lines with the same message are logged at once, then one per Period.
const (
	Burst  = 10
	Period = 10 * time.Second
)

// New returns a Logger that drops warnings if there are many with the same message. The next one of it that is
// logged has their number as "dropped". Other levels are not limited. A nil l logs nothing.
func New(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	if _, limited := l.Handler().(handler); limited {
		return l
	}
	return slog.New(handler{l.Handler(), &limits{of: map[string]*limit{}}})
}

// handler is a Handler behind limits.
type handler struct {
	slog.Handler
	limits *limits
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	dropped, ok := h.limits.take(r)
	switch {
	case !ok:
		return nil
	case dropped > 0:
		r = r.Clone()
		r.AddAttrs(slog.Uint64("dropped", dropped))
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(a []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(a), h.limits}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.limits}
}

// limits has a limit for each message. A server has few messages: attributes describe the client.
type limits struct {
	mu sync.Mutex
	of map[string]*limit
}

// limit is a token bucket.
type limit struct {
	full    time.Time // when all lines of Burst may be logged again
	dropped uint64
}

// take reports whether a line may be logged, and how many were dropped before it.
func (l *limits) take(r slog.Record) (dropped uint64, ok bool) {
	if r.Level != slog.LevelWarn {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.of[r.Message]
	if x == nil {
		x = &limit{}
		l.of[r.Message] = x
	}
	full := x.full
	if full.Before(r.Time) || full.Sub(r.Time) > (Burst+1)*Period { // the clock was set back; records come in any order
		full = r.Time
	}
	if full = full.Add(Period); full.Sub(r.Time) > Burst*Period {
		x.dropped++
		return 0, false
	}
	dropped, x.full, x.dropped = x.dropped, full, 0
	return dropped, true
}
