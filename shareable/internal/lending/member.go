package lending

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/shareable/internal/broker"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Record describes a member to the next server.
type Record struct {
	Device             UUID
	Name               string
	PID                int32 // 0: of another pid namespace
	UID                uint32
	Start              uint64 // as of processes.ID; 0: not known
	Least, Most, Lease uint64
	Since              time.Time
}

// member is a process that has a part of a budget. Guarded by Service.mu, but for the queue.
type member struct {
	Record
	s      *Service
	of     *budget
	id     broker.ID
	name   string
	isSelf bool // it is this process
	token  [16]byte
	conn   serve.Conn  // nil: it has none now
	due    *time.Timer // the deadline of the demand that it has; nil without one
	dueOf  broker.Number
	asked  time.Time
	said   time.Time // when it reported last how much it has created

	away *time.Timer // until it counts as absent; nil: its connection has not ended

	exit *os.File // a pidfd; nil: its end is not seen
	out  queue    // of frames
}

// queue has items, in order. A goroutine handles them, and ends when there are none.
type queue struct {
	handle func(item)
	done   *sync.WaitGroup // goroutines

	mu      sync.Mutex
	all     []item
	running bool
}

// item is a frame for a member, and the record that is kept before it is sent; or a record that is of no member.
type item struct {
	to      *member
	token   string // without to
	conn    serve.Conn
	record  []byte
	forget  bool      // the record, in place of keeping one
	t       wire.Type // 0: none
	payload []byte
	kept    chan<- error // of capacity 1; nil: no one waits until the record is kept
}

func (q *queue) add(i item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = append(q.all, i)
	if !q.running {
		q.running = true
		q.done.Add(1)
		go q.run()
	}
}

func (q *queue) run() {
	defer q.done.Done()
	for {
		q.mu.Lock()
		if len(q.all) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		all := q.all
		q.all = nil
		q.mu.Unlock()
		for _, i := range all {
			q.handle(i)
		}
	}
}

// send queues a frame, and a record. The caller has Service.mu, so the order is that of the changes that they report.
func (m *member) send(record []byte, t wire.Type, payload []byte) {
	m.s.records.add(item{to: m, conn: m.conn, record: record, t: t, payload: payload})
}

// keep keeps a record, and passes its frame on. Records of all members are kept in one order: the giver's before the
// taker's. Frames are not, as a member may be slow to read.
func (s *Service) keep(i item) {
	var err error
	if s.opts.Keep != nil && (i.record != nil || i.forget) {
		if i.to != nil {
			i.token = i.to.tokenText()
		}
		err = s.opts.Keep(i.token, i.record)
	}
	if i.kept != nil {
		i.kept <- err
	}
	s.step()
	if err == nil && i.t != 0 && i.conn != nil { // an error: the keeper has ended, and this process does
		i.to.out.add(i)
	}
}

func (m *member) reply(i item) {
	_ = i.conn.Reply(i.t, 0, i.payload) // an error ends the connection
}

func (m *member) tokenText() string { return hex.EncodeToString(m.token[:]) }

// join makes a connection a member's.
func (s *Service) join(c serve.Conn, q wire.Join) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.budgets[q.UUID]
	switch old := s.byToken[q.Token]; {
	case s.closed:
		return fmt.Errorf("%w: budget", vmm.ErrClosed)
	case of == nil:
		return fmt.Errorf("%w: this server has no budget of that device", vmm.ErrNotSupported)
	case s.members[c] != nil: // a JOIN that came late: grants since then count
		m := s.members[c]
		t := of.b.Terms(m.id)
		m.send(nil, wire.TypeLent, wire.Lent{More: of.b.Lease(m.id), Least: t.Least, Most: t.Most}.Append(nil))
		return nil
	case old == nil:
		return s.joinFirst(c, of, q)
	case old.PID != c.Cred().PID || old.of != of:
		return fmt.Errorf("%w: another process is member %q", vmm.ErrPermission, old.name)
	default:
		s.joinAgain(old, c, q)
		return nil
	}
}

// maxOfProcess is how many members of one device a process may be. The processes of a user whose pids are not known
// count as one. The library makes one member; each takes a descriptor of the server.
const maxOfProcess = 64

// joinFirst makes a new member. It needs mu.
func (s *Service) joinFirst(c serve.Conn, of *budget, q wire.Join) error {
	lease := min(q.Lease, of.Memory) // of a server before this one, of which there are no records
	if s.ready || s.known {          // it comes late, and its memory is there all the same
		lease = min(lease, max(of.b.Idle(), q.Created))
	}
	same := 0
	for _, x := range of.members {
		if x.PID == c.Cred().PID && x.UID == c.Cred().UID {
			same++
		}
	}
	if same >= maxOfProcess {
		return fmt.Errorf("%w: process %d is %d members already", vmm.ErrLimit, c.Cred().PID, same)
	}
	s.lastID++
	m := &member{s: s, of: of, id: s.lastID, name: q.Name, token: q.Token, conn: c}
	m.out = queue{handle: m.reply, done: &s.done}
	m.Record = Record{Device: of.UUID, Name: q.Name, PID: c.Cred().PID, UID: c.Cred().UID, Since: time.Now()}
	t := broker.Terms{Least: q.Least, Most: mostOf(q.Most)}
	var all []broker.Action
	if _, m.isSelf = c.(selfConn); m.isSelf && of.self != nil { // they were checked, and count even if the budget is less now
		t = *of.self
		of.b.Restore(m.id, q.Name, t, lease)
		_, all = of.b.Back(m.id, lease, q.Created)
	} else {
		if q.Lease > 0 { // its memory is there, whatever was promised meanwhile
			t = of.b.Fitting(t)
		}
		if err := of.b.Join(m.id, q.Name, t, lease, q.Created); err != nil {
			return err
		}
	}
	if lease > 0 {
		more, _ := of.b.SetTerms(m.id, t) // asks for a lease above its most; Join has checked the terms
		all = append(all, more...)
	}
	if fd, err := c.PeerPIDFD(); err == nil {
		m.watch(fd)
		m.Record.Start = processes.StartOf(int(m.PID))
	}
	of.members[m.id] = m
	s.members[c], s.byToken[q.Token] = m, m
	m.send(s.record(m), wire.TypeLent, wire.Lent{More: lease, Least: t.Least, Most: t.Most}.Append(nil))
	s.carryOut(of, all)
	return nil
}

// joinAgain has a member go on over another connection. It needs mu.
func (s *Service) joinAgain(m *member, c serve.Conn, q wire.Join) {
	if m.conn != nil {
		delete(s.members, m.conn)
	}
	m.endDemand()
	if m.away != nil {
		m.away.Stop()
	}
	m.conn = c
	s.members[c] = m
	lease, all := m.of.b.Back(m.id, q.Lease, q.Created)
	t := m.of.b.Terms(m.id)
	m.send(s.record(m), wire.TypeLent, wire.Lent{More: lease, Least: t.Least, Most: t.Most}.Append(nil))
	s.carryOut(m.of, all)
	s.beginIfAllAreBack()
}

// mostOf is the bound of a member as package broker has it.
func mostOf(most uint64) uint64 {
	if most == math.MaxUint64 {
		return 0
	}
	return most
}

// restoreLocked adds a member of the server before this one, which is absent until it connects. It needs mu.
func (s *Service) restoreLocked(token string, record []byte) {
	var r Record
	raw, err := hex.DecodeString(token)
	if err != nil || len(raw) != 16 || json.Unmarshal(record, &r) != nil || s.budgets[r.Device] == nil {
		return
	}
	fd, err := processes.PIDFD(int(r.PID), r.Start)
	if processes.IsGone(err) {
		_ = s.opts.Keep(token, nil)
		return
	}
	of := s.budgets[r.Device]
	s.lastID++
	m := &member{s: s, of: of, id: s.lastID, name: r.Name, token: [16]byte(raw), Record: r}
	m.out = queue{handle: m.reply, done: &s.done}
	of.b.Restore(m.id, r.Name, broker.Terms{Least: r.Least, Most: r.Most}, r.Lease)
	of.members[m.id], s.byToken[m.token] = m, m
	if err == nil {
		m.watch(fd)
	}
}

// watch has the member leave when its process ends. It takes the pidfd.
func (m *member) watch(fd int) {
	f, err := processes.File(fd)
	if err != nil {
		return
	}
	m.exit = f
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	m.s.done.Add(1)
	go func() {
		defer m.s.done.Done()
		ended := false
		_ = raw.Read(func(fd uintptr) bool { // an error: it was closed
			ended = processes.EndsIn(int(fd), 0)
			return ended
		})
		if ended {
			m.s.mu.Lock()
			defer m.s.mu.Unlock()
			m.s.removeLocked(m)
		}
	}()
}

// stop ends the watch. It needs Service.mu.
func (m *member) stop() {
	m.endDemand()
	if m.away != nil {
		m.away.Stop()
	}
	if m.exit != nil {
		_ = m.exit.Close()
		m.exit = nil
	}
}

// endDemand ends the deadline of the demand that the member has. It needs Service.mu.
func (m *member) endDemand() {
	if m.due != nil {
		m.due.Stop()
	}
	m.due, m.dueOf = nil, 0
}

// says has the broker know what a member has created. It needs Service.mu.
func (m *member) says(created uint64) {
	m.said = time.Now()
	m.of.b.Said(m.id, created)
}

// leave ends a membership whose process lives on.
func (s *Service) leave(c serve.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.members[c]; m != nil {
		s.removeLocked(m)
	}
}

// removeLocked gives back all that a member had. It needs mu.
func (s *Service) removeLocked(m *member) {
	if s.closed || m.of.members[m.id] != m {
		return
	}
	m.stop()
	delete(m.of.members, m.id)
	delete(s.byToken, m.token)
	if m.conn != nil {
		delete(s.members, m.conn)
	}
	if s.opts.Keep != nil {
		s.records.add(item{to: m, forget: true})
	}
	s.carryOut(m.of, m.of.b.Leave(m.id))
	s.beginIfAllAreBack()
}

// End is called when a connection has ended. The lease of a process that lives on counts until that comes back, or
// ends.
func (s *Service) End(c serve.Conn) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[c]
	if m == nil || s.closed {
		return
	}
	delete(s.members, c)
	m.conn = nil
	if m.exit == nil { // its end would not be seen
		s.removeLocked(m)
		return
	}
	s.carryOut(m.of, m.of.b.Withdraw(m.id))
	// The connection of a killed process ends before the process does, and a live process connects again. Until then
	// others wait for the member, as for a reply.
	m.away = s.afterLocked(s.opts.AwayTime, func() {
		if m.conn == nil && m.of.members[m.id] == m {
			m.endDemand()
			s.carryOut(m.of, m.of.b.Absent(m.id))
		}
	})
}
