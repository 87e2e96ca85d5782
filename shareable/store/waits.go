package store

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// maxWaits is how many requests of one connection may wait.
const maxWaits = 1024

// wait replies once an object is sealed.
func (s *Server) wait(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeWait(f.Payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	e := s.findLocked(q.Name)
	if e != nil && e.sealed {
		s.mu.Unlock()
		return s.describe(c, f.Request, e, q.Name)
	}
	defer s.mu.Unlock()
	x := s.clientLocked(c)
	if x.waits >= maxWaits {
		return fmt.Errorf("%w: %d requests wait", vmm.ErrLimit, maxWaits)
	}
	x.waits++
	s.waits[q.Name] = append(s.waits[q.Name], wait{c, f.Request, q.Name})
	return nil
}

func (s *Server) describe(c serve.Conn, request uint32, e *entry, name string) error {
	if err := e.obj.Describe(c, request, name, wire.AccessRead); err != nil {
		return &sentError{err}
	}
	return nil
}

// replyWaits ends the waits for a sealed object under these names.
func (s *Server) replyWaits(e *entry, names ...string) {
	for _, w := range s.takeWaits(names...) {
		go s.describe(w.c, w.request, e, w.name) //nolint:errcheck // that ends the connection, which says why
	}
}

// refuseWaits ends the waits for an object that goes before it is sealed.
func (s *Server) refuseWaits(e *entry, name string) {
	for _, w := range s.takeWaits(name, shareable.IDName(e.id)) {
		go w.c.Refuse(w.request, shareable.ErrAborted) //nolint:errcheck // that ends the connection, which says why
	}
}

func (s *Server) takeWaits(names ...string) (all []wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		all = append(all, s.waits[name]...)
		delete(s.waits, name)
	}
	for _, w := range all {
		if x := s.clients[w.c]; x != nil {
			x.waits--
		}
	}
	return all
}

// watcher sends events to a client. Those that it does not take in time are dropped and
// counted, so a slow client costs no more than its queue.
type watcher struct {
	prefix string
	wake   chan struct{}

	mu    sync.Mutex
	queue []wire.Event
	lost  uint64
	ended bool
}

const maxEvents = 1024

// watch starts events.
func (s *Server) watch(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeWatch(f.Payload)
	if err != nil {
		return err
	}
	w := &watcher{prefix: q.Prefix, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	_, again := s.watchers[c]
	s.clientLocked(c)
	if !again {
		s.watchers[c] = w
	}
	s.mu.Unlock()
	if again {
		return fmt.Errorf("%w: the connection gets events already", vmm.ErrBusy)
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
	if len(w.queue) >= maxEvents {
		w.lost++
		return
	}
	w.queue = append(w.queue, e)
	w.wakeLocked()
}

// take returns the next events; false once there are no more.
func (w *watcher) take() (events []wire.Event, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events = w.queue
	w.queue = nil
	if w.lost > 0 {
		events = append(events, wire.Event{Kind: wire.EventLost, Length: w.lost})
		w.lost = 0
	}
	return events, !w.ended
}

// run sends events until the connection ends.
func (w *watcher) run(c serve.Conn) {
	for range w.wake {
		events, more := w.take()
		for _, e := range events {
			if c.Reply(wire.TypeEvent, 0, e.Append(nil)) != nil {
				return
			}
		}
		if !more {
			return
		}
	}
}

// emit tells those who watch.
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
	if name != shareable.IDName(e.id) {
		names = append(slices.Clone(names), name)
	} else {
		name = ""
	}
	for _, w := range s.watchers {
		if w.prefix == "" || slices.ContainsFunc(names, func(n string) bool { return len(n) >= len(w.prefix) && n[:len(w.prefix)] == w.prefix }) {
			w.add(wire.Event{Kind: kind, ID: e.id, Length: length, Name: name})
		}
	}
}
