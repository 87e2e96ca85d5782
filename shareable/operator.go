package shareable

import (
	"os"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// reservedConns are the connections beyond all limits that root and the user of a store may have, to see what
// is wrong and to delete objects. They make nothing.
const reservedConns = 8

// hasPlaceLocked reports whether a user has one of the reserved connections left. Requires mu.
func (s *Server) hasPlaceLocked(user uint32) bool {
	invariants.Held(&s.mu)
	if s.opts.hooks.handler == nil || user != 0 && user != uint32(os.Getuid()) {
		return false
	}
	n := 0
	for ses := range s.sessions {
		if ses.operator {
			n++
		}
	}
	return n < reservedConns
}

// forOperators reports whether a connection with a reserved place may send a frame.
func forOperators(t wire.Type) bool {
	switch t {
	case wire.TypeList, wire.TypeStat, wire.TypeQuery, wire.TypeCount, wire.TypeDelete, wire.TypeTakeOver, wire.TypeTaken:
		return true
	}
	return false
}
