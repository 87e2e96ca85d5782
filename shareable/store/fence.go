package store

import (
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// A writer that has lost its lease and whose process may run has the object's memory mapped, and
// can write to it: one that was stopped, say. So nothing writes to that memory until that process is
// known to have ended. A client that appends before makes an object of its own, with a copy of what
// was published. REPLACE gives that object the names:
//
//	LEASE   -> OBJECT, for reading   the lease: no one else makes a copy meanwhile
//	ATTACH                           what was published
//	CREATE                           an object without a name
//	REPLACE -> DONE                  over the connection that has the lease: the copy has the names, and
//	                                 readers of the other one are told that it has gone

// leaseLooks is how often a server looks for a sign of life in Options.LeaseTime. It counts looks, and
// no time: those that fall into a pause of its process are lost, so a pause is one look or two.
const leaseLooks = 8

// watchLeases ends leases of writers that show no sign of life, of objects that others wait for, and looks for memory
// that clients have given up.
func (s *Server) watchLeases() {
	pause := max(s.opts.LeaseTime/leaseLooks, time.Millisecond)
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		looks := uint64(1)
		select {
		case <-t.C:
			if s.opts.hooks.pauses {
				looks = uint64(time.Since(s.began)/pause) - s.looks
			}
		case <-s.stop:
			return
		}
		var late []*entry
		s.mu.Lock()
		s.looks += looks
		for _, e := range s.order {
			if len(e.waiting) > 0 && s.isLateLocked(e) {
				late = append(late, e)
			}
		}
		s.mu.Unlock()
		for _, e := range late {
			s.revoke(e)
		}
		s.askHeld(heldAsked, func(heldChunk) bool { return true }) // without it other members would not get what is free by now
	}
}

// isLateLocked reports whether the writer of an object has shown no sign of life for
// Options.LeaseTime, as this process has seen it: the clock of the writer does not count. Requires
// mu.
func (s *Server) isLateLocked(e *entry) bool {
	invariants.Held(&s.mu)
	if b := e.obj.Beat(); b != e.beat {
		e.beat, e.beatSeen = b, s.looks
	}
	return e.lease != nil && s.looks-e.beatSeen > leaseLooks
}

// revoke ends the lease of a writer that is late.
func (s *Server) revoke(e *entry) {
	s.mu.Lock()
	c := e.lease
	late := s.isLateLocked(e)
	s.mu.Unlock()
	if !late {
		return
	}
	s.takeAway(e, c, "its writer showed no sign of life for too long")
}

// revokeOf handles REVOKE.
func (s *Server) revokeOf(c serve.Conn, f wire.Frame, q wire.Revoke) (err error) {
	s.mu.Lock()
	e := s.findLocked(q.Name)
	switch {
	case e == nil:
		err = shareable.ErrNotFound
	case e.sealed:
		err = shareable.ErrSealed
	case e.lease == nil:
		err = fmt.Errorf("%w: it has no writer", shareable.ErrNotFound)
	default:
		err = s.mayChange(c, e)
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	e.flags.Or(wire.StoreDurable)
	writer := e.lease
	s.mu.Unlock()
	s.takeAway(e, writer, "an operator has revoked it")
	return done(c, f.Request)
}

// takeAway ends the lease that a connection has.
func (s *Server) takeAway(e *entry, c serve.Conn, reason string) {
	err := fmt.Errorf("%w: the lease has ended: %s", shareable.ErrOwnerGone, reason)
	s.opts.Logger.Info("lease taken away", "object", e.id, "name", s.nameOf(e), "uid", c.Cred().UID, "pid", c.Cred().PID, "why", reason)
	s.mu.Lock()
	began := s.beganLocked(s.clients[c])
	s.mu.Unlock()
	s.endLease(e, c, leaseEnd{abort: !e.durable(), runs: processOf(c, began)})
	go func() { // it may not read
		_ = c.Refuse(0, err)
		c.Close(err)
	}()
}

// process is one that may write to memory that it has mapped.
type process struct {
	pid   int32  // 0: it has none here
	began uint64 // see processes.StartOf
}

// pidfd is of that process.
func (p *process) pidfd() (int, error) { return processes.PIDFD(int(p.pid), p.began) }

// beganLocked is when a client's process began, if that is recorded; else 0. A nil x, which has no leases any
// more, is fine. Requires mu.
func (s *Server) beganLocked(x *clientState) uint64 {
	invariants.Held(&s.mu)
	if x == nil {
		return 0
	}
	return x.began
}

// processOf is the one at a connection, of which it may be recorded when it began.
func processOf(c serve.Conn, began uint64) *process {
	p := &process{pid: c.Cred().PID, began: began}
	if p.began == 0 {
		p.began = processes.StartOf(int(p.pid))
	}
	return p
}

// isFenced reports whether a writer that has no lease may write to an object. It may not once its
// process has ended.
func (s *Server) isFenced(e *entry) bool {
	s.mu.Lock()
	by := e.fenced
	s.mu.Unlock()
	if by == nil || !hasExited(by.pidfd) {
		return by != nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.fenced == by { // else another writer has lost its lease meanwhile
		e.fenced = nil
	}
	return e.fenced != nil
}

// replace has an object take the names of one that is no longer written to.
func (s *Server) replace(c serve.Conn, f wire.Frame, q wire.Replace) error {
	old, e, name, err := s.takeNames(c, q)
	if err != nil {
		return err
	}
	if err := s.record(e, s.requestOf(c, f)); err != nil {
		return err
	}
	s.emitAs(wire.EventDeleted, old, name, 0)
	s.emit(wire.EventCreated, e, 0)
	s.refuseWaits([]string{wire.IDName(old.id)})
	s.drop(old)
	return done(c, f.Request)
}

// takeNames moves the names and the requests that wait from one object to another, and returns one
// of the names.
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
	if old.fenced == nil || e == old || len(e.names) > 0 || e.flags.Load()|wire.StoreDurable != old.flags.Load()|wire.StoreDurable || e.max != old.max || has < had {
		return nil, nil, "", fmt.Errorf("%w: object %d of %d bytes is no copy of object %d, of %d, to which its last writer may still write", vmm.ErrInvalid, e.id, has, old.id, had)
	}
	e.flags.Store(old.flags.Load()) // until now it was to go with its writer
	names := old.names
	name = old.nameLocked()
	s.unleaseLocked(old)
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
