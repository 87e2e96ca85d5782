package shareable

import (
	"cmp"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/stats"
)

// Stats counts what a Server has done since it was made. It is an slog.LogValuer, and String
// returns its JSON, for package expvar. JSON field names are stable.
type Stats struct {
	Conns     int `json:"conns"`     // open now, also those that are being closed
	Published int `json:"published"` // publications now
	KeptFDs   int `json:"kept_fds"`  // descriptors of chunks kept open now

	Accepted   uint64 `json:"accepted"`   // connections
	Refused    uint64 `json:"refused"`    // connections, because of their user or of a limit
	Violations uint64 `json:"violations"` // connections that broke the protocol
	TimedOut   uint64 `json:"timed_out"`  // connections that took longer than a time limit
	Frames     uint64 `json:"frames"`     // frames of chunks sent
	Resyncs    uint64 `json:"resyncs"`    // requests to send chunks again
}

// String is the statistics as JSON, the same that expvar.Func makes of Stats.
func (s Stats) String() string { return stats.Text(s) }

// LogValue is the statistics as a group of numbers.
func (s Stats) LogValue() slog.Value { return stats.Group(s) }

// Stats returns the counters as of now.
func (s *Server) Stats() Stats {
	if s == nil || s.dev == nil {
		return Stats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Conns: len(s.sessions), Published: len(s.names), KeptFDs: s.fds.len(),
		Accepted: s.counts.accepted.Load(), Refused: s.counts.refused.Load(),
		Violations: s.counts.violations.Load(), TimedOut: s.counts.timedOut.Load(),
		Frames: s.counts.frames.Load(), Resyncs: s.counts.resyncs.Load(),
	}
}

// ReaderStats is one reader of one object: what was sent to it, and what it has acknowledged. A
// reader acknowledges memory once it has mapped it. It does not report which lengths it reads.
type ReaderStats struct {
	Object uint64 `json:"object"` // the number of its ID
	Name   string `json:"name"`   // the object's; in a store one of several, or its ID
	Addr   uint64 `json:"addr"`   // of the range that is published, in this process; 0 in a store, which maps nothing
	UID    uint32 `json:"uid"`    // the reader's user
	PID    int    `json:"pid"`    // the reader's process, as the kernel says; 0 in another namespace

	Sent         int    `json:"sent"`         // chunks, of those that the object has now
	Acknowledged int    `json:"acknowledged"` // chunks of those
	Bytes        uint64 `json:"bytes"`        // of chunks that were acknowledged: what the reader maps
	BytesBehind  uint64 `json:"bytes_behind"` // of chunks that were sent and are not acknowledged

	// BehindSince is when a reader with chunks to map last made progress, or when it was first told
	// to unmap memory that it still has. It is zero if there is neither. The reader is disconnected
	// Options.AckTimeout later.
	BehindSince time.Time `json:"behind_since,omitzero"`
}

// Readers returns the attached readers, sorted by object, then by user and process. A reader of
// several objects is there once for each. The numbers of one reader are of one moment. Safe for
// concurrent use.
func (s *Server) Readers() []ReaderStats {
	if s == nil || s.dev == nil {
		return nil
	}
	var all []ReaderStats
	for _, o := range s.listed(0, math.MaxInt) {
		name := s.nameOf(o)
		o.mu.Lock()
		for a := range o.attachments {
			all = append(all, a.statsLocked(name))
		}
		o.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b ReaderStats) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.UID, b.UID), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Sent, b.Sent),
			cmp.Compare(a.Acknowledged, b.Acknowledged))
	})
	return all
}

// statsLocked is the reader as it is now. Requires obj.mu.
func (a *attachment) statsLocked(name string) ReaderStats {
	o := a.obj
	invariants.Held(&o.mu)
	r := ReaderStats{
		Object: o.id, Name: name, Addr: o.addr, UID: a.ses.cred.UID, PID: int(a.ses.cred.PID),
		Sent: o.indexLocked(a.sentID + 1), Acknowledged: o.indexLocked(a.ackedID + 1), BehindSince: a.behindLocked().since,
	}
	for i, c := range o.chunks[:r.Sent] {
		if i < r.Acknowledged {
			r.Bytes += c.Size
		} else {
			r.BytesBehind += c.Size
		}
	}
	return r
}
