package store

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// The right to write to an object is a lease. A connection has it, and it ends with the
// connection, so no writer is left when its process dies.
//
//	CREATE, LEASE -> OBJECT with the page   the connection has the lease
//	MAPPED        -> DONE                   only the writer can write to the page; readers get it
//	GROW          -> CHUNKS                 memory, old and new
//	WROTE                                   readers are woken
//	SEAL, RELEASE -> DONE                   the lease is over

// lease gives the right to write to an object that is there.
func (s *Server) lease(c serve.Conn, f wire.Frame, q wire.Lease) (err error) {
	s.mu.Lock()
	e := s.findLocked(q.Name)
	switch {
	case e == nil:
		err = shareable.ErrNotFound
	case e.sealed:
		err = shareable.ErrSealed
	case e.uid != c.Cred().UID:
		err = fmt.Errorf("%w: user %d has made it", vmm.ErrPermission, e.uid)
	case e.lease == nil:
		s.leaseLocked(e, c)
	case !q.Wait:
		err = fmt.Errorf("%w: another client writes to it", vmm.ErrBusy)
	default:
		w := wait{c: c, request: f.Request, name: q.Name}
		if err = s.reserveWaitLocked(w); err == nil {
			s.addLeaseWaitLocked(e, w)
			s.mu.Unlock()
			return nil
		}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.sendLeased(c, f.Request, e)
}

// addLeaseWaitLocked has a request wait for the lease of an object. Requires mu.
func (s *Server) addLeaseWaitLocked(e *entry, w wait) {
	x := s.clientLocked(w.c)
	x.waits++
	x.queues[e.id] = e
	e.waiting = append(e.waiting, w)
}

// leaseLocked gives a lease to a connection. Requires mu.
func (s *Server) leaseLocked(e *entry, c serve.Conn) {
	invariants.Held(&s.mu)
	e.lease, e.beatSeen, e.mapped = c, s.looks, false
	s.clientLocked(c).leases[e.id] = e
	s.counts.leases.Add(1)
}

// unleaseLocked takes a lease from the connection that has it. Requires mu.
func (s *Server) unleaseLocked(e *entry) {
	invariants.Held(&s.mu)
	if x := s.clients[e.lease]; x != nil {
		delete(x.leases, e.id)
	}
	e.lease, e.mapped = nil, false
}

// sendLeased sends the reply to LEASE. If that fails the lease ends.
func (s *Server) sendLeased(c serve.Conn, request uint32, e *entry) error {
	err := s.sendLease(c, request, e)
	if err != nil {
		s.endLease(e, c, leaseEnd{})
	}
	return err
}

// sendLease sends OBJECT with a page for the writer.
func (s *Server) sendLease(c serve.Conn, request uint32, e *entry) error {
	fd, err := s.leasePage(c, e)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := s.checkFD(fd); err != nil {
		return err
	}
	access := wire.AccessReadWrite
	if s.isFenced(e) {
		access = wire.AccessRead
	}
	return sending(e.obj.Describe(c, request, s.nameOf(e), access, fd))
}

// leasePage makes the page of a lease, if the connection has it still: another's stays as it
// is.
func (s *Server) leasePage(c serve.Conn, e *entry) (fd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.lease != c {
		return -1, fmt.Errorf("%w: the lease of object %d has ended", shareable.ErrNotFound, e.id)
	}
	return e.obj.LeasePage()
}

func (s *Server) nameOf(e *entry) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.nameLocked()
}

// leased is the object whose lease the connection has, else an error.
func (s *Server) leased(c serve.Conn, id uint64) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leasedLocked(c, id)
}

// leasedLocked is leased. Requires mu.
func (s *Server) leasedLocked(c serve.Conn, id uint64) (*entry, error) {
	invariants.Held(&s.mu)
	switch e := s.byID[id]; {
	case e == nil || e.deleted && e.lease != c:
		return nil, fmt.Errorf("%w: object %d", shareable.ErrNotFound, id)
	case e.lease != c:
		return nil, fmt.Errorf("%w: no lease of object %d", vmm.ErrPermission, id)
	default:
		return e, nil
	}
}

// errNotWritten is for an object whose memory is fenced.
var errNotWritten = fmt.Errorf("%w: the process that had the lease before may still write to the object", vmm.ErrPermission)

// written is leased for a request that adds something.
func (s *Server) written(c serve.Conn, id uint64) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writtenLocked(c, id)
}

// writtenLocked is written. Requires mu.
func (s *Server) writtenLocked(c serve.Conn, id uint64) (*entry, error) {
	e, err := s.leasedLocked(c, id)
	if err == nil && e.fenced != nil {
		err = errNotWritten
	}
	return e, err
}

// mapped has only the writer write to its page.
func (s *Server) mapped(c serve.Conn, f wire.Frame, q wire.Mapped) error {
	e, had, err := s.startLease(c, q.Object)
	if err == nil && !had {
		err = s.record(e, s.requestOf(c, f))
	}
	if err != nil {
		return err
	}
	return done(c, f.Request)
}

// startLease has readers get the page of a lease, if the connection has it still. It reports whether
// they had it before: then the client asks what it has published, which counts once this has returned.
func (s *Server) startLease(c serve.Conn, id uint64) (e *entry, had bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, err = s.writtenLocked(c, id); err != nil {
		return nil, false, err
	}
	if err := e.obj.StartLease(); err != nil {
		return nil, false, err
	}
	had = e.mapped
	e.started, e.mapped = true, true
	return e, had, nil
}

// grow sends memory to the writer.
func (s *Server) grow(c serve.Conn, f wire.Frame, q wire.Grow) error {
	e, err := s.written(c, q.Object)
	if err != nil {
		return err
	}
	if q.Capacity > e.max {
		return fmt.Errorf("%w: %d bytes, over %d", vmm.ErrBounds, q.Capacity, e.max)
	}
	err = s.addMemory(e, q.Capacity)
	if errors.Is(err, vmm.ErrClosed) {
		return fmt.Errorf("%w: object %d", shareable.ErrNotFound, e.id) // it was deleted meanwhile
	}
	if err != nil {
		return err
	}
	if err := s.record(e, requestID{}); err != nil {
		return err
	}
	return sending(e.obj.ReplyChunks(c, f.Request, q.After))
}

// wrote has readers woken.
func (s *Server) wrote(c serve.Conn, f wire.Frame, q wire.Wrote) error {
	// It has no reply. The lease may have ended since it was sent.
	if e, err := s.leased(c, q.Object); err == nil {
		s.mu.Lock()
		e.beatSeen = s.looks
		s.mu.Unlock()
		e.obj.Wrote()
	}
	return nil
}

// seal makes the length final.
func (s *Server) seal(c serve.Conn, f wire.Frame, q wire.Seal) error {
	e, err := s.written(c, q.Object)
	if err != nil {
		return err
	}
	seal := serve.Seal{Length: q.Length}
	if q.HasDigest {
		seal.Digest = &q.Digest
	}
	var length, capacity uint64
	chunks := 0
	err = s.recordSeal(e, s.requestOf(c, f), seal, func(seal serve.Seal) error {
		if err := e.obj.Seal(seal); err != nil {
			return err
		}
		_, length, capacity, _ = e.obj.State()
		chunks, _ = e.obj.Chunks()
		s.mu.Lock()
		defer s.mu.Unlock()
		e.sealed = true
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.unleaseLocked(e)
	unused := e.has[ledger.Bytes] - min(e.has[ledger.Bytes], capacity)
	s.refundLocked(e, ledger.Amounts{ledger.Bytes: unused, ledger.Descriptors: e.has[ledger.Descriptors] - s.descriptorsOf(uint64(chunks))})
	s.usedLocked(e)
	s.refuseLeasesLocked(e, shareable.ErrSealed)
	names := e.allNamesLocked()
	s.mu.Unlock()
	s.freeMemory(e, capacity)
	s.counts.sealed.Add(1)
	s.emit(wire.EventSealed, e, length)
	s.replyWaits(e, names...)
	return done(c, f.Request)
}

// release ends a lease.
func (s *Server) release(c serve.Conn, f wire.Frame, q wire.Release) error {
	e, err := s.leased(c, q.Object)
	if err != nil {
		return err
	}
	s.endLease(e, c, leaseEnd{abort: q.Abort || !e.durable(), by: s.requestOf(c, f)})
	return done(c, f.Request)
}

// leaseEnd says how a lease ends.
type leaseEnd struct {
	abort bool      // the object goes; else the next that waits for the lease gets it
	runs  *process  // the writer, if it may still write to the memory
	by    requestID // the request that ends it, if one does
}

// endLease ends the lease that a connection has, if it has it still.
func (s *Server) endLease(e *entry, c serve.Conn, how leaseEnd) {
	s.mu.Lock()
	if e.lease != c {
		s.mu.Unlock()
		return
	}
	// What the writer has published counts from here on, and nothing that it writes later.
	// With the lock, so that this is not the next writer's page.
	if !s.opts.hooks.keepPage {
		e.obj.EndLease()
	}
	// An object whose CREATE no client has heard of would have no use and no owner.
	how.abort = how.abort || !e.started
	if e.fenced == nil && !s.opts.hooks.unfenced {
		e.fenced = how.runs
	}
	s.unleaseLocked(e)
	if !how.abort {
		s.passLeaseLocked(e)
		s.mu.Unlock()
		_ = s.record(e, how.by) // without a keeper the process ends
		return
	}
	names := e.allNamesLocked()
	s.emitLocked(wire.EventAborted, e, e.nameLocked(), 0)
	s.unnameLocked(e)
	e.deleted = true
	s.refuseLeasesLocked(e, shareable.ErrAborted)
	s.mu.Unlock()
	s.counts.aborted.Add(1)
	s.refuseWaits(names)
	_ = s.forget(e, how.by) // without a keeper the process ends
	s.drop(e)
}

// dropLease ends the lease of an object that is deleted.
func (s *Server) dropLease(e *entry, c serve.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.lease != c {
		return
	}
	e.obj.EndLease()
	s.unleaseLocked(e)
	s.refuseLeasesLocked(e, shareable.ErrNotFound)
}

// passLeaseLocked gives a lease that has ended to the first request that waits for it. Requires mu.
func (s *Server) passLeaseLocked(e *entry) {
	invariants.Held(&s.mu)
	for len(e.waiting) > 0 {
		w := e.waiting[0]
		e.waiting = e.waiting[1:]
		s.overLocked(w)
		if x := s.clients[w.c]; x != nil { // else the connection has ended
			if !slices.ContainsFunc(e.waiting, func(other wait) bool { return other.c == w.c }) {
				delete(x.queues, e.id)
			}
			s.leaseLocked(e, w.c)
			go func() { s.passLease(e, w) }()
			return
		}
	}
	s.emitLocked(wire.EventReleased, e, e.nameLocked(), 0)
}

// refuseLeasesLocked ends the requests that wait for a lease. Requires mu.
func (s *Server) refuseLeasesLocked(e *entry, cause error) {
	invariants.Held(&s.mu)
	for _, w := range e.waiting {
		s.overLocked(w)
		if x := s.clients[w.c]; x != nil {
			delete(x.queues, e.id)
		}
		go func() { _ = w.c.Refuse(w.request, cause) }() // an error ends the connection
	}
	e.waiting = nil
}

// passLease sends a lease to a client that has waited for it.
func (s *Server) passLease(e *entry, w wait) {
	if err := s.sendLeased(w.c, w.request, e); err != nil {
		_ = w.c.Refuse(w.request, err)
	}
}
