package store

import (
	"log/slog"
	"math"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/stats"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// Stats is a store in numbers.
type Stats struct {
	Objects int    `json:"objects"` // now, also those that are deleted and that readers have
	Bytes   uint64 `json:"bytes"`   // of memory now
	Clients int    `json:"clients"` // connections now
	Leases  int    `json:"leases"`  // objects that a client may write to now
	Waits   int    `json:"waits"`   // requests that wait now

	Created  uint64 `json:"created"` // objects
	Sealed   uint64 `json:"sealed"`
	Aborted  uint64 `json:"aborted"`
	Deleted  uint64 `json:"deleted"`
	Evicted  uint64 `json:"evicted"`
	Granted  uint64 `json:"granted"`  // leases
	Restarts uint64 `json:"restarts"` // how often another process has gone on with what there was

	Conns shareable.Stats `json:"conns"`
}

// counts is what has happened since the server was made.
type counts struct {
	created, sealed, aborted, deleted, evicted, leases atomic.Uint64
}

// Stats returns the counts as of now.
func (s *Server) Stats() Stats {
	if s == nil || s.dev == nil {
		return Stats{}
	}
	conns := s.conns.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statsLocked(conns)
}

// count handles COUNT.
func (s *Server) count(c serve.Conn, f wire.Frame) error {
	x := s.Stats()
	return reply(c, wire.TypeCounters, f.Request, x.encode().Append(nil))
}

// statsLocked is Stats. Requires mu.
func (s *Server) statsLocked(conns shareable.Stats) Stats {
	invariants.Held(&s.mu)
	x := Stats{
		Objects: len(s.order), Bytes: s.ledger.All()[ledger.Bytes] - s.heldBytes, Clients: conns.Conns, Conns: conns,
		Created: s.counts.created.Load(), Sealed: s.counts.sealed.Load(), Aborted: s.counts.aborted.Load(),
		Deleted: s.counts.deleted.Load(), Evicted: s.counts.evicted.Load(), Granted: s.counts.leases.Load(), Restarts: s.before,
	}
	for _, c := range s.clients {
		x.Leases += len(c.leases)
		x.Waits += c.waits
	}
	return x
}

// counters are the numbers of Stats in the order in which COUNTERS has them.
func (x *Stats) counters() []*uint64 {
	return []*uint64{&x.Bytes, &x.Created, &x.Sealed, &x.Aborted, &x.Deleted, &x.Evicted, &x.Granted}
}

// gauges are those that are no uint64, after the counters.
func (x *Stats) gauges() []*int {
	return []*int{&x.Objects, &x.Clients, &x.Leases, &x.Waits}
}

func (x *Stats) encode() wire.Counters {
	var c wire.Counters
	for _, v := range x.counters() {
		c.Values = append(c.Values, *v)
	}
	for _, v := range x.gauges() {
		c.Values = append(c.Values, uint64(*v))
	}
	c.Values = append(c.Values, x.Restarts)
	return c
}

// decode is the reverse of encode. A server of another version may have fewer, or more.
func (x *Stats) decode(c wire.Counters) {
	for _, v := range x.counters() {
		if len(c.Values) == 0 {
			return
		}
		*v, c.Values = c.Values[0], c.Values[1:]
	}
	for _, v := range x.gauges() {
		if len(c.Values) == 0 {
			return
		}
		*v, c.Values = int(min(c.Values[0], math.MaxInt)), c.Values[1:]
	}
	if len(c.Values) > 0 {
		x.Restarts = c.Values[0]
	}
}

// String is the statistics as JSON, the same that expvar.Func makes of Stats. JSON field names are stable.
func (x Stats) String() string { return stats.Text(x) }

// LogValue is the statistics as a group of numbers.
func (x Stats) LogValue() slog.Value { return stats.Group(x) }
