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

// A server is a member of the budget of its own device, so that members and objects together stay within it. It joins
// before it has a socket. So memory of the server before it is in its lease before another member can ask. The next
// server counts the objects, and needs no record of their memory. A lease counts until its process has ended, as of
// every member.

// membership is the door of package budget.
var membership = door.Through[serve.Joining[*budget.Member]]()

// memberName is the name of a server as a member of its own budget.
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

// countLocked counts memory beside the open Chunks of this process: that of objects of a server before it, and closed
// memory that is not free yet. Requires mu.
func (s *Server) countLocked() {
	invariants.Held(&s.mu)
	if !s.closed {
		s.counted.Set(s.inherited + s.heldBytes + s.closing)
	}
}

// give is the server's function of OnPressure: an object or another process needs memory. Before it deletes an object,
// it looks for memory that has become free.
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

// The keeper holds memory of a deleted object a moment longer than the server. A server that does not wait for that
// evicts more than is needed.
const (
	heldTime  = time.Second // after it, a client must hold the memory
	heldPause = time.Millisecond
)

// awaitSoon waits for memory that is to be free soon. It reports whether there was any since the last call. Then the
// caller may have been told to give before that memory was free, and need not evict.
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
