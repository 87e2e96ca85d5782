package store

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// eventQueue is events that were not taken yet. If there are many, those that come are dropped and
// counted.
type eventQueue struct {
	queue []wire.Event
	lost  uint64 // after those
}

func (q *eventQueue) add(e wire.Event) {
	switch {
	case q.lost == 0 && len(q.queue) < maxEvents:
		q.queue = append(q.queue, e)
	case e.Kind == wire.EventLost: // it stands for several
		q.lost += e.Length
	default:
		q.lost++
	}
}

// take takes the next event, or the number of those that were dropped then.
func (q *eventQueue) take() (e wire.Event, ok bool) {
	switch {
	case len(q.queue) > 0:
		e, q.queue = q.queue[0], q.queue[1:]
	case q.lost > 0:
		e, q.lost = wire.Event{Kind: wire.EventLost, Length: q.lost}, 0
	default:
		return e, false
	}
	return e, true
}

// watcher sends events to a client. A slow one costs no more than its queue.
type watcher struct {
	prefix string
	wake   chan struct{}

	// Guarded by mu.
	mu sync.Mutex
	eventQueue
	ended bool
}

const maxEvents = 1024

// recordsOfWatch is what a watcher counts: its queue.
var recordsOfWatch = ledger.Amounts{ledger.Records: maxEvents * recordOfName}

// watch starts events.
func (s *Server) watch(c serve.Conn, f wire.Frame, q wire.Watch) (err error) {
	s.mu.Lock()
	s.clientLocked(c)
	w := &watcher{prefix: q.Prefix, wake: make(chan struct{}, 1)}
	if _, watching := s.watchers[c]; watching {
		err = fmt.Errorf("%w: the connection gets events already", vmm.ErrBusy)
	} else if err = s.ledger.Reserve(c.Cred().UID, recordsOfWatch); err == nil {
		s.watchers[c] = w
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	// The reply comes before the first event.
	err = done(c, f.Request)
	go w.run(c)
	return err
}

func (w *watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.wakeLocked()
}

func (w *watcher) wakeLocked() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) add(e wire.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.eventQueue.add(e)
	w.wakeLocked()
}

// next takes the next event. more is false once the goroutine is to end.
func (w *watcher) next() (e wire.Event, ok, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return e, false, false
	}
	e, ok = w.take()
	return e, ok, true
}

// run sends events until the connection ends.
func (w *watcher) run(c serve.Conn) {
	for range w.wake {
		for {
			e, ok, more := w.next()
			if !more {
				return
			}
			if !ok {
				break
			}
			if c.Reply(wire.TypeEvent, 0, e.Append(nil)) != nil {
				w.end()
			}
		}
	}
}

// emit tells the clients that watch.
func (s *Server) emit(kind uint32, e *entry, length uint64) {
	s.emitAs(kind, e, s.nameOf(e), length)
}

// emitAs is emit for an object that had a name. An id is no name.
func (s *Server) emitAs(kind uint32, e *entry, name string, length uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emitLocked(kind, e, name, length)
}

// emitLocked is emitAs. Requires mu.
func (s *Server) emitLocked(kind uint32, e *entry, name string, length uint64) {
	invariants.Held(&s.mu)
	names := e.names
	if name != wire.IDName(e.id) {
		names = append(slices.Clone(names), name)
	} else {
		name = ""
	}
	for _, w := range s.watchers {
		if w.prefix == "" || slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, w.prefix) }) {
			w.add(wire.Event{Kind: kind, ID: e.id, Length: length, Name: name})
		}
	}
}
