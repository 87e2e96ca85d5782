package store

import (
	"errors"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// A server is a member of the budget of its own device, so that members and objects together never have more than
// that. It joins before it has a socket: what a server before it has created is in its lease before anyone asks. It
// keeps no record of that for the next server, to which the objects say it. The record of its lease has the process,
// like that of every member, and counts until that has ended.

// membership is what package budget does for this one.
var membership = door.Through[serve.Joining[*budget.Member]]()

// memberName is what reports and errors call a server as a member of its own budget.
const memberName = "store"

// join makes the server a member, if its device has a budget.
func (s *Server) join() (err error) {
	has := func(b budget.Budget) bool { return b.Device.Info().UUID == s.dev.Info().UUID }
	if s.opts.hooks.alone || !slices.ContainsFunc(s.opts.Budgets, has) {
		return nil
	}
	s.member, err = membership.Join(s.life, s.dev, memberName, s.budgets.Connect)
	return err
}

// countLocked counts memory that is no open Chunk of this process: a server before this one has created it, or
// it is not free though it was closed. Requires mu.
func (s *Server) countLocked() {
	invariants.Held(&s.mu)
	if !s.closed {
		s.counted.Set(s.inherited + s.heldBytes + s.closing)
	}
}

// give is the server's function of OnPressure: for an object that needs memory, and if another process does. It
// looks for memory that has become free before it deletes any object.
func (s *Server) give(need error) (released bool) {
	var op *vmm.OpError
	if !errors.As(need, &op) {
		return false
	}
	var of *entry
	if id, ok := wire.ParseIDName(op.Name); ok {
		s.mu.Lock()
		of = s.byID[id]
		s.mu.Unlock()
	}
	if of == nil && op.Op != "give" { // something else in the program needs it
		return false
	}
	return s.awaitSoon() || s.askHeld(heldAsked, func(heldChunk) bool { return true }) || s.evictFor(of, op.Size)
}

// The keeper has the memory of an object that has gone a moment longer than the server. Without a wait for it more would be
// evicted than is needed.
const (
	heldTime  = time.Second // after which it is taken for a client that has the memory
	heldPause = time.Millisecond
)

// awaitSoon waits for memory that is to be free soon. It reports whether there was any since it was called last: what is
// needed was perhaps counted before that was free.
func (s *Server) awaitSoon() bool {
	s.mu.Lock()
	was := s.freed
	s.freed = false
	s.mu.Unlock()
	for range heldTime / heldPause {
		s.mu.Lock()
		none := s.soon == 0
		s.mu.Unlock()
		if none {
			return was
		}
		s.askHeld(heldAsked, func(h heldChunk) bool { return h.soon })
		select {
		case <-time.After(heldPause):
		case <-s.stop:
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.soon = 0
	for i := range s.held {
		s.held[i].soon = false
	}
	return was
}
