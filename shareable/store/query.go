package store

import (
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// query lists objects.
func (s *Server) query(c serve.Conn, f wire.Frame, q wire.Query) error {
	const maxBytes = 16 << 10 // a client with a small buffer takes that, too
	var found wire.Found
	size := 0
	for after, more := q.After, true; more && !found.More; {
		s.mu.Lock()
		entries := s.nextEntriesLocked(after)
		for _, e := range entries {
			after = e.id
			if e.deleted || !e.matchesLocked(q) {
				continue
			}
			info := e.infoLocked()
			if size += info.Size(); size > maxBytes && len(found.Entries) > 0 {
				found.More = true
				break
			}
			found.Entries = append(found.Entries, info)
		}
		s.mu.Unlock()
		more = len(entries) == queryStep
	}
	return reply(c, wire.TypeFound, f.Request, found.Append(nil))
}

// queryStep is how many objects QUERY looks at before others get a turn.
const queryStep = 256

// nextEntriesLocked returns up to queryStep objects with ids above after, by id. They are
// valid as long as mu is held. Requires mu.
func (s *Server) nextEntriesLocked(after uint64) []*entry {
	invariants.Held(&s.mu)
	i, found := slices.BinarySearchFunc(s.order, after, (*entry).byID)
	if found {
		i++
	}
	return s.order[i:min(len(s.order), i+queryStep)]
}

// matchesLocked reports whether a QUERY asks for the object. Requires Server.mu.
func (e *entry) matchesLocked(q wire.Query) bool {
	named := q.Prefix == "" || slices.ContainsFunc(e.names, func(n string) bool { return strings.HasPrefix(n, q.Prefix) })
	if !named {
		return false
	}
	for _, want := range q.Labels {
		has := slices.ContainsFunc(e.labels, func(l wire.Label) bool {
			return l.Key == want.Key && (want.Value == "" || l.Value == want.Value)
		})
		if !has {
			return false
		}
	}
	return true
}

// infoLocked describes the object. Requires Server.mu.
func (e *entry) infoLocked() wire.Info {
	state, length, capacity, readers := e.obj.State()
	info := wire.Info{
		ID: e.id, State: state, Flags: e.flags.Load(), Device: e.device, Readers: uint32(readers),
		Length: length, Capacity: capacity, Max: e.max, Names: e.names, Labels: e.labels,
		UID: e.uid, Waiting: uint32(len(e.waiting)), Created: uint64(e.created),
	}
	if e.lease != nil {
		info.Flags |= wire.StoreLeased
	}
	return info
}
