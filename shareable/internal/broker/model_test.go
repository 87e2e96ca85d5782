package broker_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/shareable/internal/broker"
	"github.com/cuvmm/cuvmm/vmm"
)

// model has what a Broker must know, in the simplest form, and checks what the Broker does.
type model struct {
	*rapid.T
	b, twin          *broker.Broker // both get the same calls, and must return the same actions
	budget, physical uint64
	members          map[broker.ID]*modelMember
	waiting          []*modelAsk
	demands, asks    broker.Number // the last ones
}

type modelMember struct {
	broker.Member
	demand *modelDemand
	due    bool // the terms or the budget were lowered below its lease
}

// gives reports whether others wait for memory that the member uses.
func (o *modelMember) gives() bool { return o.demand != nil && !o.demand.Soft }

type modelDemand struct {
	broker.Action
	asker *modelAsk // of a hard demand
}

type modelAsk struct {
	broker.Ask
	n       broker.Number
	m       *modelMember
	waits   []broker.Number        // demands that were there when the ask began to wait
	lacking map[broker.ID]bool     // who has given less than a hard demand of anyone
	refused map[broker.ID]struct{} // who has given less than a hard demand of this ask
}

// TestModel lets random members join, ask, give, lie, be silent, go away and come back.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.SampledFrom([]uint64{80, 100, 60, 10}).Draw(t, "budget")
		m := &model{
			T: t, b: broker.New(budget), twin: broker.New(budget), budget: budget, physical: math.MaxUint64,
			members: map[broker.ID]*modelMember{},
		}
		for id := broker.ID(1); id <= 4; id++ {
			m.joins(id)
		}
		var steps []func() // the first ones are drawn more often
		for range 9 {
			steps = append(steps, m.urgent, m.next, m.urgent, m.next, m.next)
		}
		steps = append(steps, m.ask, m.expire, m.join, m.withdraw, m.absent, m.back, m.setTerms, m.said, m.setBudget, m.setRoom, m.leave)
		for range rapid.IntRange(20, 60).Draw(t, "steps") {
			rapid.SampledFrom(steps).Draw(t, "step")()
		}
		m.drain()
	})
}

// drain has all demands answered or expire. Then no ask waits.
func (m *model) drain() {
	for range 300 {
		if m.outstanding() == nil {
			break
		}
		if m.bool("expires") {
			m.expire()
		} else {
			m.gave()
		}
	}
	m.must(len(m.waiting) == 0, "an ask waits for nothing")
	m.must(m.outstanding() == nil, "demands have no end")
}

// The random steps.

func (m *model) join() { m.joins(m.id()) }

func (m *model) joins(id broker.ID) {
	t, lease, created := m.terms(), m.bytes("lease"), m.bytes("created")
	if m.bool("was a member") {
		least := min(t.Least, m.budget-min(m.budget, m.promised(0)))
		if t.Most > 0 {
			least = min(least, t.Most)
		}
		t = m.b.Fitting(t)
		m.must(t.Least == least, "a promise of %d, not %d", t.Least, least)
	}
	err := m.b.Join(id, fmt.Sprint("m", id), t, lease, created)
	m.must(fmt.Sprint(err) == fmt.Sprint(m.twin.Join(id, fmt.Sprint("m", id), t, lease, created)), "errors differ")
	switch {
	case m.members[id] != nil || t.Most > 0 && t.Least > t.Most:
		m.must(errors.Is(err, vmm.ErrInvalid), "join: %v", err)
	case t.Least > 0 && m.promised(id)+t.Least > m.budget:
		m.must(errors.Is(err, vmm.ErrLimit), "join: %v", err)
	default:
		m.must(err == nil, "join: %v", err)
		m.members[id] = &modelMember{Member: broker.Member{ID: id, Name: fmt.Sprint("m", id), Terms: t, Lease: lease, Created: created}}
	}
	m.state()
}

func (m *model) leave() {
	id := m.id()
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.Leave(id) })
	known := m.members[id] != nil
	m.disconnect(id)
	delete(m.members, id)
	m.verify(known, actions)
}

func (m *model) absent() {
	id := m.id()
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.Absent(id) })
	m.disconnect(id)
	if o := m.members[id]; o != nil {
		o.Absent = true
	}
	m.verify(m.members[id] != nil, actions)
}

func (m *model) back() {
	id, lease, created := m.id(), m.bytes("lease"), m.bytes("created")
	var has uint64
	actions := m.call(func(b *broker.Broker) (list []broker.Action) {
		has, list = b.Back(id, lease, created)
		return list
	})
	if o := m.members[id]; o != nil {
		m.disconnect(id)
		o.Absent, o.Silent, o.Created, o.Lease = false, false, created, min(o.Lease, lease)
		m.must(has == o.Lease, "back: %d", has)
	}
	m.verify(m.members[id] != nil, actions)
}

func (m *model) setTerms() {
	id, t := m.id(), m.terms()
	var err error
	actions := m.call(func(b *broker.Broker) (list []broker.Action) {
		list, err = b.SetTerms(id, t)
		return list
	})
	o := m.members[id]
	switch {
	case o == nil || t.Most > 0 && t.Least > t.Most:
		m.must(errors.Is(err, vmm.ErrInvalid), "terms: %v", err)
	case t.Least > o.Least && m.promised(id)+t.Least > m.budget:
		m.must(errors.Is(err, vmm.ErrLimit), "terms: %v", err)
	default:
		m.must(err == nil, "terms: %v", err)
		o.Terms = t
		o.due = o.due || t.Most > 0 && o.Lease > t.Most
	}
	m.verify(err == nil, actions)
}

func (m *model) setBudget() {
	m.budget = 30 + m.bytes("budget")
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.SetBudget(m.budget) })
	if shares := m.shares(); m.sum() > m.limit() {
		for id, o := range m.members {
			o.due = o.due || o.Lease > shares[id]
		}
	}
	m.verify(true, actions)
}

func (m *model) setRoom() {
	if m.physical = math.MaxUint64; m.bytes("known") < 5 {
		m.physical = 30 + m.bytes("physical")
	}
	m.verify(true, m.call(func(b *broker.Broker) []broker.Action { return b.SetRoom(m.physical) }))
}

func (m *model) said() {
	id, created := m.id(), m.bytes("created")
	m.b.Said(id, created)
	m.twin.Said(id, created)
	if o := m.members[id]; o != nil {
		o.Created, o.Silent = created, false
	}
	m.state()
}

func (m *model) withdraw() {
	id := m.id()
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.Withdraw(id) })
	m.withdrawn(id)
	m.verify(true, actions)
}

func (m *model) expire() {
	d := m.outstanding()
	n := rapid.Uint64Range(0, uint64(m.demands)).Draw(m.T, "expires")
	if d != nil && !m.bool("any") {
		n = uint64(d.Number)
	}
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.Expire(broker.Number(n)) })
	known := false
	for _, o := range m.members {
		if o.demand != nil && o.demand.Number == broker.Number(n) {
			known, o.Silent, o.due = true, true, o.due || !o.demand.Soft
			m.end(o)
		}
	}
	m.verify(known, actions)
}

// gave is a reply to a demand, that member's or another one's, old or not yet sent. It may lie.
func (m *model) gave() {
	id, n, created := m.id(), m.demands, m.bytes("created")
	lease := m.bytes("lease")
	if d := m.outstanding(); d != nil && m.bytes("which") > 1 {
		id, n = d.To, d.Number
		has := m.members[id].Lease
		gives := []uint64{d.Lease, has, (has + d.Lease) / 2, has - min(has, 1), lease}
		if d.Soft {
			gives[0], gives[1] = has, d.Lease
		}
		lease = rapid.SampledFrom(gives).Draw(m.T, "gives")
	}
	why := []string{"", "in use"}[created%2]
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.Gave(id, n, lease, created, why) })
	if o := m.members[id]; o != nil {
		o.Created, o.Silent, o.Lease = created, false, min(o.Lease, lease)
		if o.demand != nil && o.demand.Number == n {
			m.end(o)
		}
	}
	m.verify(m.members[id] != nil, actions)
}

// next is a reply to a demand if there is one, or else an ask.
func (m *model) next() {
	if m.outstanding() != nil {
		m.gave()
	} else {
		m.ask()
	}
}

func (m *model) ask()    { m.askFor(false) }
func (m *model) urgent() { m.askFor(true) }

func (m *model) askFor(urgent bool) {
	m.asks++
	id, n := m.id(), m.asks
	q := broker.Ask{Need: m.bytes("need"), Created: m.bytes("created"), Urgent: urgent}
	if o := m.members[id]; o != nil && m.bytes("less") < 20 {
		q.Need = o.Lease + q.Need/2
	}
	q.Want = q.Need + m.bytes("want")/4
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.Ask(id, n, q) })
	o := m.members[id]
	if o == nil {
		m.verify(false, actions)
		return
	}
	o.Created, o.Silent = q.Created, false
	a := &modelAsk{Ask: q, n: n, m: o, lacking: map[broker.ID]bool{}, refused: map[broker.ID]struct{}{}}
	if urgent {
		m.withdrawn(id)
	}
	if !urgent || q.Need <= o.Lease {
		i := slices.IndexFunc(actions, func(r broker.Action) bool { return r.To == id && r.Number == n && r.Kind != broker.Demand })
		m.must(i >= 0, "no reply at once")
		m.atOnce(a, actions[i])
		m.verify(true, slices.Delete(actions, i, i+1))
		return
	}
	m.waiting = append(m.waiting, a)
	m.verify(true, actions)
	for other, has := range m.members {
		if other != id && has.demand != nil && has.Lease > has.Least {
			a.waits = append(a.waits, has.demand.Number)
		}
		asked := other == id || has.Silent || has.Absent || has.Lease <= has.Least || has.demand != nil
		m.must(asked || !slices.Contains(m.waiting, a), "m%d has no demand", other)
	}
}

// atOnce checks the reply to an ask that does not wait.
func (m *model) atOnce(a *modelAsk, r broker.Action) {
	lease := a.m.Lease
	if len(m.waiting) == 0 {
		lease = max(lease, min(a.Want, most(a.m), lease+m.idle()))
	}
	m.must(r.Kind == broker.Granted && r.Lease == lease && r.Added == lease-a.m.Lease, "at once: %v, not %d", r, lease)
	a.m.Lease = lease
}

// What the model knows.

func (m *model) limit() uint64 { return min(m.budget, m.physical) }

func (m *model) sum() (n uint64) {
	for _, o := range m.members {
		n += o.Lease
	}
	return n
}

func (m *model) idle() uint64 { return m.limit() - min(m.limit(), m.sum()) }

func (m *model) promised(but broker.ID) (n uint64) {
	for id, o := range m.members {
		if id != but {
			n += o.Least
		}
	}
	return n
}

func most(o *modelMember) uint64 {
	if o.Most == 0 {
		return math.MaxUint64
	}
	return o.Most
}

// shares are found by raising the part of all, byte by byte.
func (m *model) shares() map[broker.ID]uint64 {
	at := func(s uint64) (shares map[broker.ID]uint64, sum uint64) {
		shares = map[broker.ID]uint64{}
		for id, o := range m.members {
			claim := o.Lease
			for _, a := range m.waiting {
				if a.m == o {
					claim = max(claim, a.Need)
				}
			}
			shares[id] = min(claim, o.Least+s)
			sum += shares[id]
		}
		return shares, sum
	}
	shares, _ := at(0)
	for s := uint64(1); s < 200; s++ {
		if more, sum := at(s); sum <= m.limit() {
			shares = more
		}
	}
	return shares
}

// outstanding is one of the demands that are not answered.
func (m *model) outstanding() *modelDemand {
	var list []*modelDemand
	for _, id := range slices.Sorted(maps.Keys(m.members)) {
		if d := m.members[id].demand; d != nil {
			list = append(list, d)
		}
	}
	if list == nil {
		return nil
	}
	return rapid.SampledFrom(list).Draw(m.T, "demand")
}

func (m *model) disconnect(id broker.ID) {
	if o := m.members[id]; o != nil {
		o.due = o.due || o.demand != nil && !o.demand.Soft
		o.demand = nil
	}
	m.withdrawn(id)
}

// withdrawn has the member wait for no ask.
func (m *model) withdrawn(id broker.ID) {
	m.waiting = slices.DeleteFunc(m.waiting, func(a *modelAsk) bool { return a.m.ID == id })
}

// end has a demand answered or expired.
func (m *model) end(o *modelMember) {
	if !o.demand.Soft && o.Lease > o.demand.Lease {
		for _, a := range m.waiting {
			a.lacking[o.ID] = true
			if a == o.demand.asker {
				a.refused[o.ID] = struct{}{}
			}
		}
	}
	o.demand = nil
}

// Random numbers.

func (m *model) id() broker.ID {
	return broker.ID(rapid.SampledFrom([]int{1, 2, 3, 4, 5}).Draw(m.T, "id"))
}

func (m *model) bytes(label string) uint64 { return rapid.SampledFrom(sizes).Draw(m.T, label) }

// sizes are drawn, the first ones more often.
var sizes = []uint64{20, 10, 40, 3, 25, 7, 15, 30, 1, 60, 12, 5, 8, 17, 2, 0}

func (m *model) bool(label string) bool { return rapid.Bool().Draw(m.T, label) }

func (m *model) terms() broker.Terms {
	t := broker.Terms{Least: m.bytes("least") / 6}
	if m.bytes("bounded") < 5 {
		t.Most = m.bytes("most")
	}
	return t
}
