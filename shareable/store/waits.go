package store

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// maxWaits is how many requests of one connection may wait.
const maxWaits = 1024

// wait replies once an object is sealed, or there.
func (s *Server) wait(c serve.Conn, f wire.Frame, q wire.Wait) error {
	s.mu.Lock()
	e := s.findLocked(q.Name)
	if e != nil && (e.sealed || q.Unsealed) {
		s.mu.Unlock()
		return s.describe(c, f.Request, e, q.Name)
	}
	defer s.mu.Unlock()
	if _, isID := wire.ParseIDName(q.Name); isID && e == nil { // no other object gets it
		return shareable.ErrNotFound
	}
	w := wait{c, f.Request, q.Name, q.Unsealed}
	if err := s.reserveWaitLocked(w); err != nil {
		return err
	}
	s.addWaitLocked(w)
	return nil
}

// reserveWaitLocked counts a request that is to wait. Requires mu.
func (s *Server) reserveWaitLocked(w wait) error {
	invariants.Held(&s.mu)
	if s.clientLocked(w.c).waits >= maxWaits {
		return fmt.Errorf("%w: %d requests wait", vmm.ErrLimit, maxWaits)
	}
	return s.ledger.Reserve(w.c.Cred().UID, recordsOfName(w.name))
}

// overLocked ends the count of a request that waits no more. Requires mu.
func (s *Server) overLocked(w wait) {
	invariants.Held(&s.mu)
	s.ledger.Return(w.c.Cred().UID, recordsOfName(w.name))
	if x := s.clients[w.c]; x != nil { // else the connection has ended
		x.waits--
	}
}

// addWaitLocked has a request wait for an object of a name. Requires mu.
func (s *Server) addWaitLocked(w wait) {
	x := s.clientLocked(w.c)
	x.waits++
	x.names[w.name] = struct{}{}
	s.waits[w.name] = append(s.waits[w.name], w)
}

func (s *Server) describe(c serve.Conn, request uint32, e *entry, name string) error {
	return sending(e.obj.Describe(c, request, name, wire.AccessRead))
}

// replyWaits ends the waits for an object under these names: those for its seal if it is sealed.
func (s *Server) replyWaits(e *entry, names ...string) {
	for _, w := range s.takeWaits(names, func(w wait) bool { return e.sealed || w.unsealed }) {
		go func() { _ = s.describe(w.c, w.request, e, w.name) }() // an error ends the connection
	}
}

// refuseWaits ends the waits under these names for an object that goes before it is sealed.
func (s *Server) refuseWaits(names []string) {
	for _, w := range s.takeWaits(names, func(wait) bool { return true }) {
		go func() { _ = w.c.Refuse(w.request, shareable.ErrAborted) }() // an error ends the connection
	}
}

// takeWaits takes the waits for objects of these names that match. It calls match with mu.
func (s *Server) takeWaits(names []string, match func(wait) bool) (all []wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		var left []wait
		for _, w := range s.waits[name] {
			if match(w) {
				all = append(all, w)
			} else {
				left = append(left, w)
			}
		}
		if delete(s.waits, name); len(left) > 0 {
			s.waits[name] = left
		}
	}
	for _, w := range all {
		s.overLocked(w)
		if x := s.clients[w.c]; x != nil {
			if !slices.ContainsFunc(s.waits[w.name], func(o wait) bool { return o.c == w.c }) {
				delete(x.names, w.name)
			}
		}
	}
	return all
}
