package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// EventKind is what has happened to an object.
type EventKind uint32

// Kinds of an Event.
const (
	EventCreated  = EventKind(wire.EventCreated)
	EventSealed   = EventKind(wire.EventSealed)
	EventDeleted  = EventKind(wire.EventDeleted)
	EventAborted  = EventKind(wire.EventAborted)
	EventEvicted  = EventKind(wire.EventEvicted)
	EventReleased = EventKind(wire.EventReleased) // its Writer has gone, and it stays: the next can append
	EventLost     = EventKind(wire.EventLost)     // events before this one were dropped, because this process read too slowly
)

func (k EventKind) String() string {
	names := [...]string{
		EventCreated: "created", EventSealed: "sealed", EventDeleted: "deleted", EventAborted: "aborted",
		EventEvicted: "evicted", EventReleased: "released", EventLost: "lost",
	}
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return fmt.Sprintf("event(%d)", uint32(k))
}

// Event is what has happened to an object.
type Event struct {
	Kind EventKind
	ID   ID     // zero of EventLost
	Name string // one of the object's names; may be empty
	Len  uint64 // bytes published; of EventLost how many events were dropped, 0 if that is not known
}

// Watch returns the events of all objects that have a name with the prefix, or of all if it is
// empty, from its return on. They end with ctx, with the loop, or with the server: the last pair
// has the error. The events can be read once. 1024 of them are kept for a loop that is slow, and
// EventLost tells of those that come then. It also comes when another server process has taken the
// place of the one before: first, and without a number.
func (c *Client) Watch(ctx context.Context, prefix string) (_ iter.Seq2[Event, error], err error) {
	defer errtext.Wrapf(&err, "watch %q", prefix)
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	if prefix != "" {
		if err := checkName(prefix); err != nil {
			return nil, err
		}
	}
	w := &watch{ctx: ctx, c: c, more: make(chan struct{}, 1), open: make(chan struct{})}
	sub, cancel := c.both(ctx)
	defer cancel()
	q := wire.Watch{Prefix: prefix}
	begin := func(ctx context.Context) error {
		return call(ctx, c.opts.Timeout, w.conn, wire.TypeWatch, q.Append(nil), wire.TypeDone, ignore)
	}
	conn, err := c.connect(sub, serve.Notified{Event: w.add, Again: func() { w.again(begin) }})
	if err != nil {
		return nil, c.why(ctx, err)
	}
	w.conn = conn
	close(w.open)
	if err := begin(sub); err != nil {
		w.end()
		if errors.Is(err, vmm.ErrClosed) {
			err = w.cause(err)
		}
		return nil, c.why(ctx, err)
	}
	// Until the loop begins nothing else ends the connection.
	stop1, stop2 := context.AfterFunc(ctx, w.end), context.AfterFunc(c.ctx, w.end)
	w.stop = func() { stop1(); stop2() }
	return w.all, nil
}

// watch is a connection that gets events.
type watch struct {
	// Immutable once the events begin.
	ctx  context.Context
	c    *Client
	conn serve.Client
	stop func()        // has the contexts no longer end it
	more chan struct{} // there may be events
	open chan struct{} // closed once conn is set

	// Guarded by mu.
	mu     sync.Mutex
	queue  eventQueue
	failed error // why another server sends no events
}

// add keeps an event for the loop. It never waits for that: the server disconnects who does not
// read.
func (w *watch) add(f wire.Frame) error {
	if f.Type != wire.TypeEvent {
		return unasked(f)
	}
	e, err := wire.DecodeEvent(f.Payload)
	if err != nil {
		return protocolError(err)
	}
	w.keep(e)
	return nil
}

func (w *watch) keep(e wire.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.add(e)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// again asks another server for events. How many there were meanwhile it does not know.
func (w *watch) again(begin func(context.Context) error) {
	<-w.open
	w.keep(wire.Event{Kind: wire.EventLost})
	err := begin(w.ctx)
	for errors.Is(err, os.ErrDeadlineExceeded) && w.conn.Err() == nil { // that one has ended, too
		err = begin(w.ctx)
	}
	if err != nil && !errors.Is(err, vmm.ErrBusy) { // the request of before was sent again
		w.fail(err)
	}
}

// fail ends the events with an error.
func (w *watch) fail(err error) {
	w.mu.Lock()
	w.failed = cmp.Or(w.failed, err)
	w.mu.Unlock()
	w.end()
}

// next takes the next event, if there is one.
func (w *watch) next() (wire.Event, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.take()
}

// end ends the connection. Twice is fine.
func (w *watch) end() { w.conn.Close() }

// all is what Watch returns.
func (w *watch) all(yield func(Event, error) bool) {
	defer w.stop()
	defer w.end()
	instance := w.conn.Hello().Instance
	for {
		e, ok := w.next()
		if !ok {
			select {
			case <-w.more:
				continue
			case <-w.conn.Ended(): // nothing comes after that
			}
			if e, ok = w.next(); !ok {
				yield(Event{}, w.err())
				return
			}
		}
		id := ID{Instance: instance, Number: e.ID}
		if e.ID == 0 {
			id = ID{}
		}
		if !yield(Event{Kind: EventKind(e.Kind), ID: id, Name: e.Name, Len: e.Length}, nil) {
			return
		}
	}
}

// err is why the events have ended.
func (w *watch) err() error {
	switch {
	case w.ctx.Err() != nil:
		return w.ctx.Err()
	case w.c.ctx.Err() != nil:
		return errClientClosed
	}
	return w.cause(w.conn.Err())
}

// cause is err, or why another server sends no events: then fail has ended the connection.
func (w *watch) cause(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.failed, err)
}
