package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// A writer that has lost its lease and whose process may run has the object's memory mapped, and can write to it: one
// that was stopped, say. So that memory is written to no more. The next client that appends makes an object of its own, with a
// copy of what was published, and REPLACE has that take the names over:
//
//	LEASE   -> OBJECT, for reading   the lease: no one else makes a copy meanwhile
//	ATTACH                           what was published
//	CREATE                           an object without a name
//	REPLACE -> DONE                  over the connection that has the lease: the copy has the names, and
//	                                 readers of the other one are told that it has gone

// watchLeases ends leases of writers that show no sign of life, of objects that others wait for.
func (s *Server) watchLeases() {
	t := time.NewTicker(max(s.opts.LeaseTime/8, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.stop:
			return
		}
		var late []*entry
		s.mu.Lock()
		for _, e := range s.order {
			if len(e.waiting) > 0 && s.isLateLocked(e, time.Now()) {
				late = append(late, e)
			}
		}
		s.mu.Unlock()
		for _, e := range late {
			s.revoke(e)
		}
	}
}

// isLateLocked reports whether the writer of an object has shown no sign of life for Options.LeaseTime, as this process
// has seen it: the clock of the writer does not count. Requires mu.
func (s *Server) isLateLocked(e *entry, now time.Time) bool {
	invariants.Held(&s.mu)
	if b := e.obj.Beat(); b != e.beat || e.beatSeen.Before(e.leasedAt) {
		e.beat, e.beatSeen = b, now
	}
	return e.lease != nil && now.Sub(e.beatSeen) > s.opts.LeaseTime
}

// revoke ends the lease of a writer that is late.
func (s *Server) revoke(e *entry) {
	s.mu.Lock()
	c := e.lease
	late := s.isLateLocked(e, time.Now())
	s.mu.Unlock()
	if !late {
		return
	}
	s.takeAway(e, c, "its writer showed no sign of life for too long")
}

// takeAway ends the lease that a connection has.
func (s *Server) takeAway(e *entry, c serve.Conn, why string) {
	err := fmt.Errorf("%w: the lease has ended: %s", shareable.ErrOwnerGone, why)
	if s.opts.Logger != nil {
		s.opts.Logger.Warn("lease taken away", "object", e.id, "name", s.nameOf(e), "uid", c.Cred().UID, "pid", c.Cred().PID, "why", why)
	}
	s.endLease(e, c, !e.durable(), true, requestID{})
	go func() { // it may not read
		_ = c.Refuse(0, err)
		c.Close(err)
	}()
}

// replace has an object take the names of one that is written to no more.
func (s *Server) replace(c serve.Conn, f wire.Frame) error {
	q, err := wire.DecodeReplace(f.Payload)
	if err != nil {
		return err
	}
	old, e, name, err := s.takeNames(c, q)
	if err != nil {
		return err
	}
	if err := s.record(e, s.requestOf(c, f)); err != nil {
		return err
	}
	s.emitAs(wire.EventDeleted, old, name, 0)
	s.emit(wire.EventCreated, e, 0)
	s.refuseWaits([]string{shareable.IDName(old.id)})
	s.drop(old)
	return done(c, f.Request)
}

// takeNames moves the names and the requests that wait from one object to another, and returns one of the names.
func (s *Server) takeNames(c serve.Conn, q wire.Replace) (old, e *entry, name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, err = s.leasedLocked(c, q.Old); err != nil {
		return nil, nil, "", err
	}
	e = s.byID[q.New]
	switch {
	case e == nil || e.deleted:
		return nil, nil, "", fmt.Errorf("%w: object %d", shareable.ErrNotFound, q.New)
	case e.uid != old.uid:
		return nil, nil, "", fmt.Errorf("%w: user %d has made it", vmm.ErrPermission, e.uid)
	}
	_, had, _, _ := old.obj.State()
	_, has, _, _ := e.obj.State()
	if !old.fenced || e == old || len(e.names) > 0 || e.flags.Load()|wire.StoreDurable != old.flags.Load()|wire.StoreDurable || e.max != old.max || has < had {
		return nil, nil, "", fmt.Errorf("%w: object %d of %d bytes is no copy of object %d, of %d, that is written to no more", vmm.ErrInvalid, e.id, has, old.id, had)
	}
	e.flags.Store(old.flags.Load()) // until now it was to go with its writer
	names := old.names
	name = old.nameLocked()
	if x := s.clients[old.lease]; x != nil {
		delete(x.leases, old.id)
	}
	old.lease = nil
	s.unnameLocked(old)
	for _, n := range names {
		s.ledger.Add(e.uid, recordsOfName(n))
		e.has = e.has.Plus(recordsOfName(n))
		s.byName[n] = e
	}
	e.names = append(e.names, names...)
	old.deleted = true
	for _, w := range old.waiting {
		if x := s.clients[w.c]; x != nil {
			delete(x.queues, old.id)
			x.queues[e.id] = e
		}
	}
	e.waiting, old.waiting = append(e.waiting, old.waiting...), nil
	s.objects.Listed(e.obj, e.nameLocked())
	return old, e, name, nil
}

// renew makes the Writer of an object that is a copy of one that is written to no more, of which w has the lease. Nothing
// is left of w.
func (w *Writer) renew(ctx context.Context) (next *Writer, err error) {
	alive, stop := context.WithCancel(ctx)
	defer stop()
	go w.showLife(alive)
	abort, times := true, w.conn.Times()
	defer func() {
		w.cancel()
		w.conn.Close()
		if err != nil && next != nil {
			err = errors.Join(err, next.end(context.WithoutCancel(ctx), abort))
			next = nil
		}
	}()
	id := w.id.String()
	info, err := w.c.stat(ctx, id)
	if err != nil {
		return nil, err
	}
	b, err := w.c.get(ctx, id, GetOptions{Unsafe: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = b.Close() }() // twice is fine
	o := CreateOptions{Size: info.Max, Growable: info.Growable, GrowAhead: w.ahead, Layout: b.Layout(), Meta: b.Meta(), Labels: info.Labels}
	if info.Host {
		o.Host = &info.Node
	}
	if next, err = w.c.create(ctx, "", o); err != nil {
		return nil, err
	}
	next.name, next.heldAs = w.name, w.heldAs
	if err := errors.Join(next.copyOf(ctx, b), b.Close()); err != nil {
		return next, err
	}
	q := wire.Replace{Old: w.id.Number, New: next.id.Number}
	err = w.call(context.WithoutCancel(ctx), wire.TypeReplace, q.Append(nil), wire.TypeDone, ignore)
	if err == nil {
		next.durable = info.Durable
		return next, nil
	}
	// Without a reply the copy may have the names: then it is all that there is.
	abort = !errors.Is(err, shareable.ErrOwnerGone) && !errors.Is(err, os.ErrDeadlineExceeded)
	if abort && w.conn.Times() > times { // the lease has ended with a server
		err = errors.Join(errLeaseLost, err)
	}
	return next, err
}

// errLeaseLost is that the object is to be appended to anew.
var errLeaseLost = errors.New("the lease has ended with a server")

// showLife tells the server once a second that the process runs, which has no page to say so.
func (w *Writer) showLife(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for ctx.Err() == nil {
		_ = w.conn.Send(wire.TypeWrote, wire.Wrote{Object: w.id.Number}.Append(nil)) // an error is the connection's
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// copyOf makes the bytes of b those of the Writer, which has none.
func (w *Writer) copyOf(ctx context.Context, b *Buffer) error {
	n := b.Len()
	if n == 0 {
		return nil
	}
	if err := w.r.Grow(n); err != nil {
		return err
	}
	s, err := w.r.Device().NewStream()
	if err != nil {
		return err
	}
	if err = s.Copy(w.r.Ptr(), b.Ptr(), n); err == nil {
		err = s.Sync()
	}
	if err = errors.Join(err, s.Close()); err == nil {
		err = w.r.SetLen(n)
	}
	if err != nil {
		return err
	}
	return w.Flush(ctx)
}
