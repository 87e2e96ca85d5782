package broker

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// ID is the id of a member.
type ID uint64

// Number is the number of an ask, which the caller chooses and which is unique for its member, or
// of a demand, which the Broker chooses and which rises.
type Number uint64

// Terms is what a member is promised and may have, in bytes.
type Terms struct {
	Least uint64 // never demanded from it
	Most  uint64 // of its lease; 0: no other bound than the budget
}

// most is the bound of a lease.
func (t Terms) most() uint64 {
	if t.Most == 0 {
		return math.MaxUint64
	}
	return t.Most
}

// Member is the state of a member, as shown to people. Sizes are bytes.
type Member struct {
	ID   ID
	Name string
	Terms
	Lease    uint64 // what it may have
	Created  uint64 // what it has, as it said last
	Silent   bool   // it did not answer a demand, and has said nothing since
	Absent   bool   // its connection is gone and its process is not
	Share    uint64 // what it can have whatever others do
	Demanded uint64 // what it is asked to give now
}

// Kind is what an Action is.
type Kind int

// Kinds of actions.
const (
	Granted Kind = iota // the reply to an ask
	Refused             // the reply to an urgent ask
	Demand              // a request to lower a lease; Gave has the reply
)

func (k Kind) String() string { return [...]string{"granted", "refused", "demand"}[k] }

// Action is what the caller has to send to a member.
type Action struct {
	Kind   Kind
	To     ID
	Number Number // of the ask or of the demand
	Lease  uint64 // Granted: the new lease. Refused: the lease that stays. Demand: the lease to come down to
	Added  uint64 // Granted: by how much the lease has risen
	Soft   bool   // Demand: only what is idle or cached; nothing that the program uses
	Err    error  // Refused: vmm.ErrOutOfMemory
}

// Broker divides a budget among members. Its methods do nothing for members that it does not know.
type Broker struct {
	budget, physical uint64
	members          map[ID]*member
	waiting          []*waiter          // urgent asks in their order
	demands          map[Number]*demand // that are not answered
	last             Number             // of a demand
	actions          []Action           // of the call that runs
}

// member is one member.
type member struct {
	id   ID
	name string
	Terms
	lease, created uint64
	silent, absent bool
	demand         *demand // that it has not answered
	reduce         bool    // a demand is due because the terms or the budget were lowered
}

// New makes a Broker without members.
func New(budget uint64) *Broker {
	return &Broker{budget: budget, physical: math.MaxUint64, members: map[ID]*member{}, demands: map[Number]*demand{}}
}

// Join adds a member that has lease bytes already, 0 for a new one, and has created some of them.
// It returns vmm.ErrInvalid for a known id and for terms whose least is above their most, and
// vmm.ErrLimit if the budget is less than what it and the others are promised.
func (b *Broker) Join(id ID, name string, t Terms, lease, created uint64) error {
	if b.members[id] != nil {
		return fmt.Errorf("%w: member %d is there already", vmm.ErrInvalid, id)
	}
	m := &member{id: id, name: name, lease: lease, created: created}
	if err := b.check(m, t, b.budget); err != nil {
		return err
	}
	m.Terms = t
	b.members[id] = m
	return nil
}

// Restore adds a member of a Broker before this one, which is absent until Back. Its terms were checked there, and
// count even if the budget is less now.
func (b *Broker) Restore(id ID, name string, t Terms, lease uint64) {
	b.members[id] = &member{id: id, name: name, Terms: t, lease: lease, created: lease, absent: true, reduce: lease > t.most()}
}

// CheckTerms returns the error that SetTerms would return after SetBudget.
func (b *Broker) CheckTerms(id ID, t Terms, budget uint64) error {
	m := b.members[id]
	if m == nil {
		return fmt.Errorf("%w: no member %d", vmm.ErrInvalid, id)
	}
	return b.check(m, t, budget)
}

// check checks terms of a member. A higher least must be left by those of the others.
func (b *Broker) check(m *member, t Terms, budget uint64) error {
	if t.Least > t.most() {
		return fmt.Errorf("%w: the least is %s, and the most is %s", vmm.ErrInvalid, errtext.Size(t.Least), errtext.Size(t.Most))
	}
	if left := b.unpromised(m, budget); t.Least > m.Least && t.Least > left {
		return fmt.Errorf("%w: %s to promise, and %s of a budget of %s are promised to no one", vmm.ErrLimit,
			errtext.Size(t.Least), errtext.Size(left), errtext.Size(budget))
	}
	return nil
}

// Fitting cuts the least of a member that has memory already, so that Join accepts it: to its most, and to the part of
// the budget that is promised to no one.
func (b *Broker) Fitting(t Terms) Terms {
	t.Least = min(t.Least, t.most(), b.unpromised(nil, b.budget))
	return t
}

// unpromised is what is left of a budget below the promises to all members but m.
func (b *Broker) unpromised(m *member, budget uint64) uint64 {
	others := slices.DeleteFunc(b.sorted(), func(o *member) bool { return o == m })
	left, _ := within(budget, others, func(o *member) uint64 { return o.Least })
	return left
}

// Leave removes a member. All that it had is idle.
func (b *Broker) Leave(id ID) []Action {
	m := b.members[id]
	if m == nil {
		return nil
	}
	b.disconnect(m)
	delete(b.members, id)
	return b.settle()
}

// Absent says that a member's connection is gone, and its process is not. Its lease counts, nothing
// is demanded from it, and its ask does not wait any more.
func (b *Broker) Absent(id ID) []Action {
	m := b.members[id]
	if m == nil {
		return nil
	}
	b.disconnect(m)
	m.absent = true
	return b.settle()
}

// Back says that an absent member is connected again. It may say that it has less than its lease,
// and never more. Back returns the lease that it has now.
func (b *Broker) Back(id ID, lease, created uint64) (uint64, []Action) {
	m := b.members[id]
	if m == nil {
		return 0, nil
	}
	b.disconnect(m) // if the caller has missed that it was absent
	m.absent = false
	m.says(created)
	m.lease = min(m.lease, lease)
	actions := b.settle()
	return m.lease, actions
}

// disconnect ends what goes on with a member over its connection: its urgent ask, and the demand
// that it has not answered.
func (b *Broker) disconnect(m *member) {
	b.withdraw(m)
	if m.demand != nil {
		m.reduce = m.reduce || !m.demand.soft // what was lowered still is
		b.end(m.demand)
	}
}

// says counts what a member says it has created. It is not silent then.
func (m *member) says(created uint64) { m.created, m.silent = created, false }

// Said is a periodic report of a member.
func (b *Broker) Said(id ID, created uint64) {
	if m := b.members[id]; m != nil {
		m.says(created)
	}
}

// SetTerms changes the terms of a member. If its lease is above the new most, it is asked to come
// down. SetTerms returns the errors of Join, and then has changed nothing.
func (b *Broker) SetTerms(id ID, t Terms) ([]Action, error) {
	if err := b.CheckTerms(id, t, b.budget); err != nil {
		return nil, err
	}
	m := b.members[id]
	m.Terms = t
	m.reduce = m.reduce || m.lease > t.most()
	return b.settle(), nil
}

// SetBudget changes the budget. If leases are above it, those over their share are asked to come
// down to it. Nothing below their least is demanded, even if the budget is less than that together.
func (b *Broker) SetBudget(budget uint64) []Action {
	b.budget = budget
	if _, fits := within(b.limit(), b.sorted(), lease); !fits {
		for m, share := range b.shares() {
			m.reduce = m.reduce || m.lease > share
		}
	}
	return b.settle()
}

// SetRoom says how many bytes the device has for members, math.MaxUint64 if that is unknown. The
// lower one of budget and room counts. Nothing is demanded because there is less room.
func (b *Broker) SetRoom(bytes uint64) []Action {
	b.physical = bytes
	return b.settle()
}

// Members is the state of all members, sorted by ID.
func (b *Broker) Members() []Member {
	list, shares := make([]Member, 0, len(b.members)), b.shares()
	for _, m := range b.sorted() {
		to := m.lease
		if m.demand != nil {
			to = min(to, m.demand.to)
		}
		list = append(list, Member{
			ID: m.id, Name: m.name, Terms: m.Terms, Lease: m.lease, Created: m.created,
			Silent: m.silent, Absent: m.absent, Share: shares[m], Demanded: m.lease - to,
		})
	}
	return list
}

// Lease is the lease of a member, 0 for an unknown one.
func (b *Broker) Lease(id ID) uint64 {
	if m := b.members[id]; m != nil {
		return m.lease
	}
	return 0
}

// Terms is what a member is promised and may have; nothing for an unknown one.
func (b *Broker) Terms(id ID) Terms {
	if m := b.members[id]; m != nil {
		return m.Terms
	}
	return Terms{}
}

// Waits is the lease that an urgent ask of a member waits for, 0 if none does.
func (b *Broker) Waits(id ID) uint64 {
	for _, w := range b.waiting {
		if w.m.id == id {
			return w.Need
		}
	}
	return 0
}

// Budget is the budget.
func (b *Broker) Budget() uint64 { return b.budget }

// sorted are the members, sorted by ID.
func (b *Broker) sorted() []*member {
	return slices.SortedFunc(maps.Values(b.members), func(m, o *member) int { return cmp.Compare(m.id, o.id) })
}
