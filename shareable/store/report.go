package store

import (
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/lending"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Report is what a store says of itself.
type Report struct {
	Stats

	Device   string        `json:"device"`
	Instance string        `json:"instance"` // in hexadecimal
	PID      int           `json:"pid"`      // of the process that serves
	Uptime   time.Duration `json:"uptime"`   // of that process, in ns
	Limits   Limits        `json:"limits"`

	// Refused are requests that were refused since the process began, by reason: "limit",
	// "out_of_memory", "permission", "busy", "protocol". Those of a store that is asked for what it
	// has not are none.
	Refused map[string]uint64 `json:"refused"`
	Users   []UserReport      `json:"users"` // by id

	// Behind are readers that have not mapped, or unmapped, all that they were told: the first ones
	// at most, and how many there are.
	Behind        []shareable.ReaderStats `json:"behind"`
	ReadersBehind int                     `json:"readers_behind"`

	Budgets []budget.Report `json:"budgets,omitempty"`
}

// maxBehind is how many readers a report names.
const maxBehind = 50

// Limits are what may be at most; of one user they are each user's part. Without a limit they are
// the largest number.
type Limits struct {
	Bytes              uint64 `json:"bytes"`
	BytesPerUser       uint64 `json:"bytes_per_user"`
	Objects            uint64 `json:"objects"`
	ObjectsPerUser     uint64 `json:"objects_per_user"`
	RecordBytes        uint64 `json:"record_bytes"` // of the server's own memory for names, metadata, waits
	RecordBytesPerUser uint64 `json:"record_bytes_per_user"`
	Descriptors        uint64 `json:"descriptors"` // of objects
	DescriptorsPerUser uint64 `json:"descriptors_per_user"`
}

// UserReport is what one user has.
type UserReport struct {
	UID         uint32            `json:"uid"`
	Bytes       uint64            `json:"bytes"`   // of memory, also of what has gone and is not free
	Objects     uint64            `json:"objects"` // also those that are deleted and that readers have
	RecordBytes uint64            `json:"record_bytes"`
	Descriptors uint64            `json:"descriptors"`
	Clients     int               `json:"clients"` // connections
	Refused     map[string]uint64 `json:"refused,omitempty"`
}

// refusals counts requests that were refused, by user and reason. It is guarded by Server.mu.
type refusals map[uint32]map[string]uint64

// reasonOf is the name of why a request is refused; empty for what is no matter of the operator's.
func reasonOf(err error) string {
	for _, r := range []struct {
		is   error
		name string
	}{
		{vmm.ErrLimit, "limit"}, {vmm.ErrOutOfMemory, "out_of_memory"}, {vmm.ErrPermission, "permission"}, {vmm.ErrBusy, "busy"},
	} {
		if errors.Is(err, r.is) {
			return r.name
		}
	}
	var broke *wire.ProtocolError
	if errors.As(err, &broke) {
		return "protocol"
	}
	return ""
}

// refused counts a request, and logs it.
func (s *Server) refused(c serve.Conn, t wire.Type, err error) {
	reason := reasonOf(err)
	if reason == "" || t == wire.TypeMapped && s.before > 0 { // a lease may have ended with the server before: its client asks anew
		return
	}
	cred := c.Cred()
	s.mu.Lock()
	of := s.refusals[cred.UID]
	if of == nil {
		of = map[string]uint64{}
		s.refusals[cred.UID] = of
	}
	of[reason]++
	s.mu.Unlock()
	if reason != "busy" {
		s.opts.Logger.Warn("request refused", "request", t.String(), "reason", reason, "uid", cred.UID, "pid", cred.PID, "error", err)
	}
}

// Report returns the report as of now: one moment, but for Conns and the connections of users.
func (s *Server) Report() Report {
	if s == nil || s.dev == nil {
		return Report{}
	}
	for range heldAsked / heldEach { // a few at a time: meanwhile freeHeld does not find them
		s.askHeld(heldEach, func(heldChunk) bool { return true })
	}
	clients := s.objects.Users()
	late := slices.DeleteFunc(s.conns.Readers(), func(r shareable.ReaderStats) bool { return r.BehindSince.IsZero() })
	conns := s.conns.Stats()
	instance := s.conns.Instance()
	budgets := s.budgets.Reports()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Report{
		Stats: s.statsLocked(conns), Device: s.dev.String(), Instance: hex.EncodeToString(instance[:]),
		PID: os.Getpid(), Uptime: time.Since(s.began), Limits: s.limitsLocked(), Refused: map[string]uint64{},
		Behind: late[:min(len(late), maxBehind)], ReadersBehind: len(late), Budgets: budgets,
	}
	has := s.ledger.Users()
	users := slices.Concat(slices.Collect(maps.Keys(has)), slices.Collect(maps.Keys(clients)), slices.Collect(maps.Keys(s.refusals)))
	slices.Sort(users)
	for _, uid := range slices.Compact(users) {
		u := UserReport{
			UID: uid, Bytes: has[uid][ledger.Bytes], Objects: has[uid][ledger.Objects], RecordBytes: has[uid][ledger.Records],
			Descriptors: has[uid][ledger.Descriptors], Clients: clients[uid], Refused: maps.Clone(s.refusals[uid]),
		}
		for reason, n := range u.Refused {
			r.Refused[reason] += n
		}
		r.Users = append(r.Users, u)
	}
	return r
}

func (s *Server) limitsLocked() Limits {
	of := s.ledger.Limit
	return Limits{
		Bytes: of(ledger.Bytes).All, BytesPerUser: of(ledger.Bytes).User, Objects: of(ledger.Objects).All, ObjectsPerUser: of(ledger.Objects).User,
		RecordBytes: of(ledger.Records).All, RecordBytesPerUser: of(ledger.Records).User,
		Descriptors: of(ledger.Descriptors).All, DescriptorsPerUser: of(ledger.Descriptors).User,
	}
}

// report handles REPORT.
func (s *Server) report(c serve.Conn, f wire.Frame) error {
	r := s.Report()
	if uid := c.Cred().UID; uid != 0 && !wire.IsOwn(uid) {
		r.Users = slices.DeleteFunc(r.Users, func(u UserReport) bool { return u.UID != uid })
		r.Behind = slices.DeleteFunc(r.Behind, func(b shareable.ReaderStats) bool { return b.UID != uid })
	}
	b, err := lending.Marshal(r, r.Budgets)
	if err != nil {
		return err
	}
	return reply(c, wire.TypeReported, f.Request, wire.Reported{JSON: b}.Append(nil))
}
