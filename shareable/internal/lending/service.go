// Package lending serves the budgets of devices to the members that connect: it has their connections, the
// deadlines of demands, and the watch for processes that end, around package broker, which has the rules.
package lending

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/broker"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// UUID names a device.
type UUID = [16]byte

// Budget is what the members of one device may have together.
type Budget struct {
	Device string // as people name it
	UUID   UUID
	Bytes  uint64
	Memory uint64 // what the device has
	// Free is how many bytes of it are free. Nil: not known.
	Free func() (uint64, error)
}

// Of is a budget of a device.
func Of(dev *vmm.Device, bytes uint64, free func() (uint64, error)) Budget {
	return Budget{Device: dev.String(), UUID: dev.Info().UUID, Bytes: bytes, Memory: dev.Info().Memory, Free: free}
}

// Options says what is served.
type Options struct {
	Budgets []Budget
	Logger  *slog.Logger
	// Keep has the record of a member kept for a server after this one, or forgotten if it is nil. Nil: nothing
	// is kept.
	Keep func(token string, record []byte) error
	// Records are what a server before this one has had kept, by token.
	Records map[string][]byte
	// Step, a hook of tests, is called before and after each step that a death can fall between.
	Step func()
	// Deadline is how long a member may take for a demand; 0: 5 s. Soft is the same of one for idle memory
	// alone; 0: as Deadline.
	Deadline, Soft time.Duration
	// JoinTime is how long a server without records waits for members of one before it; 0: 1 s.
	JoinTime time.Duration
	// AwayTime is how long a member whose connection has ended may take to connect again, or to end, before asks go
	// on without it; 0: 1 s.
	AwayTime time.Duration
}

// Service is the budgets of a server. Safe for concurrent use.
type Service struct {
	opts Options

	mu      sync.Mutex
	budgets map[UUID]*budget
	members map[serve.Conn]*member
	byToken map[[16]byte]*member
	lastID  broker.ID
	closed  bool
	known   bool     // there were records of a server before this one
	ready   bool     // members of a server before this one have joined, as far as is known
	waiting []func() // asks that came before
	begins  *time.Timer
	done    sync.WaitGroup // goroutines
	records queue          // records to keep, with the frames that wait for them
}

// budget is one device's. Guarded by Service.mu.
type budget struct {
	Budget
	b       *broker.Broker
	members map[broker.ID]*member
	self    *broker.Terms // that this process has as a member, if a server before this one was told; else nil
	stats   Counts
}

// token is under which a changed budget is kept, and selfToken under which changed terms of this process are: the
// next one is another member. No member has either.
func (b *budget) token() string     { return "budget of " + hex.EncodeToString(b.UUID[:]) }
func (b *budget) selfToken() string { return "own terms in " + b.token() }

// Counts is how often things have happened, since the server began.
type Counts struct {
	Granted   uint64 `json:"granted"`
	Refused   uint64 `json:"refused"`
	Demands   uint64 `json:"demands"`
	Expired   uint64 `json:"expired"`    // demands that were not answered in time
	GivenBack uint64 `json:"given_back"` // bytes
}

// New makes a Service. The caller must Close it.
func New(o Options) (*Service, error) {
	o.Deadline = cmp.Or(o.Deadline, 5*time.Second)
	o.Soft = cmp.Or(o.Soft, o.Deadline)
	o.JoinTime = cmp.Or(o.JoinTime, time.Second)
	o.AwayTime = cmp.Or(o.AwayTime, time.Second)
	s := &Service{opts: o, budgets: map[UUID]*budget{}, members: map[serve.Conn]*member{}, byToken: map[[16]byte]*member{}}
	s.records = queue{handle: s.keep, done: &s.done}
	for _, b := range o.Budgets {
		if s.budgets[b.UUID] != nil {
			return nil, fmt.Errorf("%w: two budgets for %s", vmm.ErrInvalid, b.Device)
		}
		if b.Bytes == 0 {
			return nil, fmt.Errorf("%w: a budget of 0 bytes for %s", vmm.ErrInvalid, b.Device)
		}
		if b.Bytes > b.Memory {
			return nil, fmt.Errorf("%w: a budget of %d bytes for %s, which has %d", vmm.ErrInvalid, b.Bytes, b.Device, b.Memory)
		}
		s.budgets[b.UUID] = &budget{Budget: b, b: broker.New(b.Bytes), members: map[broker.ID]*member{}}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for token, record := range o.Records {
		s.restoreLocked(token, record)
	}
	for _, b := range s.budgets { // whose members, which have to come down to it, are known
		if n, err := strconv.ParseUint(string(o.Records[b.token()]), 10, 64); err == nil { // it was changed
			b.Bytes = n
		}
		if self := o.Records[b.selfToken()]; self != nil {
			_ = json.Unmarshal(self, &b.self) // this program has written it
		}
		b.b.SetBudget(b.Bytes)
	}
	s.known = len(o.Records) > 0
	if s.ready = s.known && s.allAreBack(); !s.ready {
		s.begins = s.afterLocked(o.JoinTime, s.begin)
	}
	return s, nil
}

// Close ends the Service. Members keep what they have.
func (s *Service) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	if s.begins != nil {
		s.begins.Stop()
	}
	for _, b := range s.budgets {
		for _, m := range b.members {
			m.stop()
		}
	}
	s.mu.Unlock()
	s.done.Wait()
}

// afterLocked has f called with mu after a time, unless the Service has ended. It needs mu.
func (s *Service) afterLocked(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			f()
		}
	})
}

// begin carries out the asks that came before members of another server could join. It needs mu.
func (s *Service) begin() {
	if s.ready {
		return
	}
	s.ready = true
	for _, f := range s.waiting {
		f()
	}
	s.waiting = nil
}

// allAreBack reports whether no member of a server before this one is still to connect. It needs mu.
func (s *Service) allAreBack() bool {
	for _, m := range s.byToken {
		if m.conn == nil {
			return false
		}
	}
	return true
}

// beginIfAllAreBack ends the wait for known members early. It needs mu.
func (s *Service) beginIfAllAreBack() {
	if s.known && !s.ready && s.allAreBack() {
		s.begins.Stop()
		s.begin()
	}
}

// Handles reports whether a Service handles frames of a type.
func Handles(t wire.Type) bool { return t >= wire.TypeJoin && t <= wire.TypeTerms }

// IsMember reports whether a connection is one of a member.
func (s *Service) IsMember(c serve.Conn) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members[c] != nil
}

// Request handles a frame for which Handles is true. An error is the reply to its sender.
func (s *Service) Request(c serve.Conn, f wire.Frame) error {
	if s == nil {
		return fmt.Errorf("%w: this server has no budget", vmm.ErrNotSupported)
	}
	s.step()
	defer s.step()
	switch f.Type {
	case wire.TypeJoin:
		q, err := wire.DecodeJoin(f.Payload)
		if err != nil {
			return err
		}
		return s.join(c, q)
	case wire.TypeAsk:
		q, err := wire.DecodeAsk(f.Payload)
		if err == nil {
			s.ask(c, q)
		}
		return err
	case wire.TypeGave:
		q, err := wire.DecodeGave(f.Payload)
		if err == nil {
			s.gave(c, q)
		}
		return err
	case wire.TypeLeave:
		s.leave(c)
		return c.Reply(wire.TypeDone, f.Request, nil)
	}
	q, err := wire.DecodeTerms(f.Payload)
	if err != nil {
		return err
	}
	return s.terms(c, f.Request, q)
}

func (s *Service) step() {
	if s.opts.Step != nil {
		s.opts.Step()
	}
}

// ask carries an ASK out.
func (s *Service) ask(c serve.Conn, q wire.Ask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[c]
	if m == nil { // it has connected again, and joins next
		return
	}
	do := func() {
		if s.members[c] != m {
			return
		}
		m.asked = time.Now()
		m.says(q.Created)
		if q.Urgent {
			s.look(m.of)
		}
		s.carryOut(m.of, m.of.b.Ask(m.id, broker.Number(q.Number), broker.Ask{Need: q.Need, Want: q.Want, Created: q.Created, Urgent: q.Urgent}))
	}
	if s.ready || s.known && !q.Urgent {
		do()
	} else { // a member that can give may be about to connect again
		s.waiting = append(s.waiting, do)
	}
}

// gave takes the reply to a demand, or a report.
func (s *Service) gave(c serve.Conn, q wire.Gave) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[c]
	if m == nil {
		return
	}
	m.says(q.Created)
	if q.Number == 0 && q.Given == 0 { // it says something, and a demand may be due
		s.carryOut(m.of, m.of.b.Gave(m.id, 0, m.of.b.Lease(m.id), q.Created, ""))
		return
	}
	s.look(m.of)
	have := m.of.b.Lease(m.id)
	given := min(q.Given, have)
	m.of.stats.GivenBack += given
	if broker.Number(q.Number) == m.dueOf {
		m.endDemand()
	}
	all := m.of.b.Gave(m.id, broker.Number(q.Number), have-given, q.Created, q.Why)
	m.send(s.record(m), 0, nil) // before the records of members that get it
	s.carryOut(m.of, all)
}

// carryOut does what the broker wants. It needs mu.
func (s *Service) carryOut(of *budget, all []broker.Action) {
	for _, a := range all {
		m := of.members[a.To]
		switch a.Kind {
		case broker.Granted, broker.Refused:
			if a.Kind == broker.Granted {
				of.stats.Granted++
			} else {
				of.stats.Refused++
			}
			s.lend(m, a)
		case broker.Demand:
			of.stats.Demands++
			s.demand(of, m, a)
		}
	}
}

// lend tells a member its new lease, or why it has none. It needs mu.
func (s *Service) lend(m *member, a broker.Action) {
	t := m.of.b.Terms(m.id)
	l := wire.Lent{Number: uint32(a.Number), More: a.Added, Least: t.Least, Most: t.Most}
	if a.Err != nil {
		l.Code, l.Text = wire.CodeOutOfMemory, a.Err.Error()
	}
	var record []byte
	if l.More > 0 {
		record = s.record(m)
	}
	m.send(record, wire.TypeLent, l.Append(nil))
}

// demand asks a member to give. It needs mu.
func (s *Service) demand(of *budget, m *member, a broker.Action) {
	within := s.opts.Deadline
	if a.Soft {
		within = s.opts.Soft
	}
	m.dueOf = a.Number
	m.due = s.afterLocked(within, func() {
		if m.dueOf != a.Number {
			return
		}
		m.endDemand()
		of.stats.Expired++
		s.opts.Logger.Warn("a member does not reply", "device", of.Device, "member", m.name, "after", within)
		s.carryOut(of, of.b.Expire(a.Number))
	})
	told := within - within/8 // a member that uses all of it replies in time
	m.send(nil, wire.TypeDemand, wire.Demand{Number: uint32(a.Number), Soft: a.Soft, Within: uint32(told / time.Millisecond), Lease: a.Lease}.Append(nil))
}

// freshFor is how long what a member has said of its memory is taken for what it has.
const freshFor = 100 * time.Millisecond

// look has the broker know what the device has left for members. It needs mu.
func (s *Service) look(of *budget) {
	if of.Free == nil {
		return
	}
	lendable, err := of.Free()
	if err != nil {
		return
	}
	// What members have created is not free, and is theirs. One that has said nothing lately may have all of its lease.
	for _, x := range of.b.Members() {
		if m := of.members[x.ID]; time.Since(m.said) < freshFor {
			lendable += min(x.Created, x.Lease)
		} else {
			lendable += x.Lease
		}
	}
	s.carryOut(of, of.b.SetRoom(lendable))
}

// terms changes what a member is promised, or the budget.
func (s *Service) terms(c serve.Conn, request uint32, q wire.Terms) error {
	kept, err := s.change(q, c.Cred().UID)
	if err == nil {
		err = <-kept
	}
	if err != nil {
		return err
	}
	return c.Reply(wire.TypeDone, request, nil)
}

// change changes a budget, the terms of a member, or both. The channel says when the records are kept. Root and the
// server's own user may change all, and others the terms of their own processes.
func (s *Service) change(q wire.Terms, by uint32) (<-chan error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.budgets[q.UUID]
	if of == nil && q.UUID == (UUID{}) && len(s.budgets) == 1 {
		of = slices.Collect(maps.Values(s.budgets))[0]
	}
	if of == nil {
		return nil, fmt.Errorf("%w: no budget of this device", vmm.ErrInvalid)
	}
	var m *member
	if q.Flags&(wire.TermsLeast|wire.TermsMost) != 0 {
		var err error
		if m, err = of.named(q.Member); err != nil {
			return nil, err
		}
	}
	if all := by == 0 || wire.IsOwn(by); !all && (q.Flags&wire.TermsBudget != 0 || m.UID != by) {
		return nil, fmt.Errorf("%w: user %d", vmm.ErrPermission, by)
	}
	bytes := of.b.Budget()
	if q.Flags&wire.TermsBudget != 0 {
		if bytes = q.Budget; bytes == 0 {
			return nil, fmt.Errorf("%w: a budget of 0 bytes", vmm.ErrInvalid)
		}
		if bytes > of.Memory {
			return nil, fmt.Errorf("%w: a budget of %d bytes for %s, which has %d", vmm.ErrInvalid, bytes, of.Device, of.Memory)
		}
	}
	kept := make(chan error, 1)
	if m == nil {
		s.setBudget(of, bytes, kept)
		return kept, nil
	}
	t := of.b.Terms(m.id)
	if q.Flags&wire.TermsLeast != 0 {
		t.Least = q.Least
	}
	if q.Flags&wire.TermsMost != 0 {
		t.Most = q.Most
	}
	if err := of.b.CheckTerms(m.id, t, bytes); err != nil {
		return nil, err
	}
	if q.Flags&wire.TermsBudget != 0 {
		s.setBudget(of, bytes, nil)
	}
	all, _ := of.b.SetTerms(m.id, t) // they were checked
	if m.isSelf {
		b, _ := json.Marshal(t) // numbers
		s.records.add(item{token: of.selfToken(), record: b})
	}
	lent := wire.Lent{Least: t.Least, Most: t.Most}
	s.records.add(item{to: m, conn: m.conn, record: s.record(m), t: wire.TypeLent, payload: lent.Append(nil), kept: kept})
	s.carryOut(of, all)
	return kept, nil
}

// setBudget changes a budget, whose bytes were checked. It needs mu.
func (s *Service) setBudget(of *budget, bytes uint64, kept chan<- error) {
	s.records.add(item{token: of.token(), record: strconv.AppendUint(nil, bytes, 10), kept: kept})
	s.carryOut(of, of.b.SetBudget(bytes))
}

// named is the one member of a name. It needs Service.mu.
func (b *budget) named(name string) (m *member, err error) {
	for _, x := range b.members {
		if x.name != name {
			continue
		}
		if m != nil {
			return nil, fmt.Errorf("%w: two members are named %q", vmm.ErrInvalid, name)
		}
		m = x
	}
	if m == nil {
		return nil, fmt.Errorf("%w: no member is named %q", vmm.ErrInvalid, name)
	}
	return m, nil
}

// Marshal is the JSON of a report that is to be sent, and that has budgets. While it is too long for a frame, members with
// the smallest leases are left out. It returns vmm.ErrLimit if it is too long without any.
func Marshal(report any, budgets []Report) ([]byte, error) {
	for {
		b, err := json.Marshal(report)
		if err != nil || len(b) <= wire.MaxReport {
			return b, err
		}
		most := 0
		for _, r := range budgets {
			most = max(most, len(r.Members))
		}
		if most == 0 {
			return nil, fmt.Errorf("%w: a report of %d bytes", vmm.ErrLimit, len(b))
		}
		for i := range budgets {
			budgets[i].shorten(most - most/8 - 1)
		}
	}
}

// shorten leaves n members, those with the largest leases.
func (r *Report) shorten(n int) {
	if len(r.Members) > n {
		slices.SortStableFunc(r.Members, func(a, b Member) int { return cmp.Compare(b.Lease, a.Lease) })
		r.LeftOut += len(r.Members) - n
		r.Members = r.Members[:n]
	}
}

// Report is a budget as people see it.
type Report struct {
	Device  string   `json:"device"`
	Budget  uint64   `json:"budget"`
	Idle    uint64   `json:"idle"`
	Counts  Counts   `json:"counts"`
	Members []Member `json:"members"`
	LeftOut int      `json:"left_out,omitempty"` // members, of those with the smallest leases
}

// Member is one of its members.
type Member struct {
	Name     string    `json:"name"`
	PID      int32     `json:"pid"` // 0: of another pid namespace
	Lease    uint64    `json:"lease"`
	Created  uint64    `json:"created"` // as it said last
	Share    uint64    `json:"share"`
	Least    uint64    `json:"least"`
	Most     uint64    `json:"most"`
	Wants    uint64    `json:"wants"`          // the lease that it waits for; 0: it waits for none
	Gives    uint64    `json:"gives"`          // bytes that it was asked for and has not answered
	Since    time.Time `json:"since"`          // when it joined
	Asked    time.Time `json:"asked,omitzero"` // when it asked last
	IsSilent bool      `json:"silent"`         // it has not answered, or has no connection
}

// Reports describes all budgets, by device.
func (s *Service) Reports() (all []Report) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.budgets {
		r := Report{Device: of.Device, Budget: of.b.Budget(), Idle: of.b.Idle(), Counts: of.stats, Members: []Member{}}
		for _, x := range of.b.Members() {
			m := of.members[x.ID]
			r.Members = append(r.Members, Member{
				Name: x.Name, PID: m.PID, Lease: x.Lease, Created: x.Created, Share: x.Share, Least: x.Least, Most: x.Most,
				Wants: of.b.Waits(x.ID), Gives: x.Demanded, Since: m.Since, Asked: m.asked, IsSilent: x.Silent || x.Absent,
			})
		}
		slices.SortStableFunc(r.Members, func(a, b Member) int { return a.Since.Compare(b.Since) }) // as with the server before
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Report) int { return cmp.Compare(a.Device, b.Device) })
	return all
}

// record is what a server after this one has to know of a member. It needs mu.
func (s *Service) record(m *member) []byte {
	if s.opts.Keep == nil {
		return nil
	}
	t := m.of.b.Terms(m.id)
	m.Record.Least, m.Record.Most, m.Record.Lease = t.Least, t.Most, m.of.b.Lease(m.id)
	b, _ := json.Marshal(m.Record) // numbers and a name
	return b
}
