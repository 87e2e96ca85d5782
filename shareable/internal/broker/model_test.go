package broker_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
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
	id, n := m.id(), m.asks
	for _, a := range m.waiting {
		if m.bool("this ask") {
			id, n = a.m.ID, a.n
		}
	}
	actions := m.call(func(b *broker.Broker) []broker.Action { return b.Withdraw(id, n) })
	m.waiting = slices.DeleteFunc(m.waiting, func(a *modelAsk) bool { return a.m.ID == id && a.n == n })
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
			known, o.Silent = true, true
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
	o.Created, o.Silent, o.Want = q.Created, false, q.Want
	a := &modelAsk{Ask: q, n: n, m: o, lacking: map[broker.ID]bool{}, refused: map[broker.ID]struct{}{}}
	if !urgent || q.Need <= o.Lease || slices.ContainsFunc(m.waiting, func(other *modelAsk) bool { return other.m == o }) {
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
	if a.Urgent && slices.ContainsFunc(m.waiting, func(o *modelAsk) bool { return o.m == a.m }) {
		m.must(r.Kind == broker.Refused && errors.Is(r.Err, vmm.ErrBusy) && r.Lease == a.m.Lease, "another one waits: %v", r)
		return
	}
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
		o.demand = nil
		m.waiting = slices.DeleteFunc(m.waiting, func(a *modelAsk) bool { return a.m == o })
	}
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

// What must be.

func (m *model) must(ok bool, format string, args ...any) {
	if !ok {
		m.Fatalf(format, args...)
	}
}

// call makes a call of both brokers, which must do the same.
func (m *model) call(f func(b *broker.Broker) []broker.Action) []broker.Action {
	actions, twin := f(m.b), f(m.twin)
	m.must(fmt.Sprint(actions) == fmt.Sprint(twin), "%v and %v: not deterministic", actions, twin)
	m.must(slices.IsSortedFunc(actions, func(a, c broker.Action) int { return cmp.Compare(a.To, c.To) }), "not sorted: %s", show(actions))
	return actions
}

// verify checks the actions of a call, when the model knows what the call has said. A call about
// what the Broker does not know does nothing.
func (m *model) verify(known bool, actions []broker.Action) {
	if !known {
		m.must(len(actions) == 0, "%s, for an unknown member or demand", show(actions))
		m.state()
		return
	}
	replies, demands := map[*modelAsk]broker.Action{}, map[broker.ID]broker.Action{}
	for _, r := range actions {
		if r.Kind == broker.Demand {
			o := m.members[r.To]
			m.must(demands[r.To].Number == 0, "two demands to m%d", r.To)
			m.must(o != nil && o.demand == nil && !o.Silent && !o.Absent, "a demand to m%d", r.To)
			demands[r.To] = r
			continue
		}
		i := slices.IndexFunc(m.waiting, func(a *modelAsk) bool { return a.m.ID == r.To && a.n == r.Number })
		m.must(i >= 0 && replies[m.waiting[i]].Number == 0, "reply to nothing: %v", r)
		replies[m.waiting[i]] = r
	}
	n := len(replies)
	m.waiting = slices.DeleteFunc(m.waiting, func(a *modelAsk) bool {
		if a.Need <= min(most(a.m), m.limit()) {
			return false
		}
		n--
		m.must(replies[a].Kind == broker.Refused && errors.Is(replies[a].Err, vmm.ErrOutOfMemory), "too much: %v", replies[a])
		return true
	})
	m.reductions(demands)
	for len(m.waiting) > 0 {
		a := m.waiting[0]
		r, replied := replies[a]
		if lacks := a.Need - min(a.Need, a.m.Lease); lacks <= m.idle() {
			m.granted(a, r)
		} else if replied {
			m.refused(a, r)
		} else {
			break
		}
		n--
		m.waiting = m.waiting[1:]
	}
	m.must(n == 0, "a later ask was served before: %s", show(actions))
	m.soft(demands)
	m.hard(demands)
	m.must(len(demands) == 0, "needless demands: %s", show(actions))
	m.state()
}

func (m *model) granted(a *modelAsk, r broker.Action) {
	lease := a.Need
	if len(m.waiting) == 1 {
		lease = max(a.Need, min(a.Want, most(a.m), a.m.Lease+m.idle()))
	}
	m.must(r.Kind == broker.Granted && r.Number == a.n && r.Lease == lease && r.Added == lease-a.m.Lease, "%v, not %d granted", r, lease)
	a.m.Lease = lease
	m.must(m.sum() <= m.limit(), "granted beyond the budget")
}

// refused checks that nothing could have been done, and that the error names those who are at fault.
func (m *model) refused(a *modelAsk, r broker.Action) {
	m.must(r.Kind == broker.Refused && errors.Is(r.Err, vmm.ErrOutOfMemory) && r.Lease == a.m.Lease, "%v", r)
	shares := m.shares()
	for id, o := range m.members {
		m.must(o == a.m || o.demand == nil || a.Need > shares[a.m.ID] || o.demand.Soft, "refused before m%d has answered", id)
		m.must(o.demand == nil || !slices.Contains(a.waits, o.demand.Number), "refused before m%d has answered", id)
		named, over := strings.Contains(r.Err.Error(), fmt.Sprintf("%q", o.Name)), o != a.m && o.Lease > shares[id]
		faulty := o.Silent || o.Absent || a.lacking[id]
		m.must(!named || over && faulty, "m%d is named: %v", id, r.Err)
		m.must(named || !over || a.Need > shares[a.m.ID], "m%d is over its share, and not named: %v", id, r.Err)
		m.must(named || !over || !o.Silent && !o.Absent, "m%d does not answer, and is not named: %v", id, r.Err)
	}
}

// reductions are the demands because of lowered terms or a lowered budget.
func (m *model) reductions(demands map[broker.ID]broker.Action) {
	shares, over := m.shares(), m.sum() > m.limit()
	for id, o := range m.members {
		if !o.due || o.Silent || o.Absent || o.demand != nil {
			continue
		}
		o.due = false
		to := min(o.Lease, most(o))
		if over {
			to = min(to, shares[id])
		}
		if to == o.Lease {
			continue
		}
		r := demands[id]
		m.must(r.Number > 0 && !r.Soft && r.Lease == to && to >= min(o.Least, o.Lease), "%v, not a demand to come down to %d", r, to)
		m.demanded(r, nil)
		delete(demands, id)
	}
}

func (m *model) demanded(r broker.Action, a *modelAsk) {
	m.must(r.Number > m.demands, "%v has an old number", r)
	m.members[r.To].demand = &modelDemand{Action: r, asker: a}
}

func (m *model) soft(demands map[broker.ID]broker.Action) {
	for id, r := range demands {
		if !r.Soft {
			continue
		}
		o, lacks, all := m.members[id], uint64(0), uint64(0)
		m.must(slices.ContainsFunc(m.waiting, func(a *modelAsk) bool { return a.m != o }), "a demand for no one: %v", r)
		for i, a := range m.waiting {
			if all += a.Need - min(a.Need, a.m.Lease); i == 0 {
				lacks = all - m.idle()
			}
		}
		all -= m.idle()
		gives := o.Lease - r.Lease
		m.must(r.Lease >= o.Least && r.Lease < o.Lease && gives <= all && gives >= min(lacks, o.Lease-o.Least), "of %d, with %d lacking: %v", o.Lease, lacks, r)
		m.demanded(r, nil)
		delete(demands, id)
	}
}

// hard checks demands to those over their share, the most over it first, for no more than what lacks.
func (m *model) hard(demands map[broker.ID]broker.Action) {
	if len(demands) == 0 {
		return
	}
	m.must(len(m.waiting) > 0, "demands for no one")
	a, shares := m.waiting[0], m.shares()
	lacks := a.Need - a.m.Lease - m.idle()
	m.must(a.Need <= shares[a.m.ID], "hard demands for an ask above its share")
	var over []*modelMember
	for id, o := range m.members {
		m.must(o.demand == nil || !slices.Contains(a.waits, o.demand.Number), "hard demands before m%d has answered", id)
		if o != a.m && o.demand != nil && !o.demand.Soft {
			lacks -= min(lacks, o.Lease-min(o.Lease, o.demand.Lease))
		}
		_, asked := demands[id]
		_, refused := a.refused[id]
		m.must(!asked || !refused && o != a.m, "a hard demand to m%d again", id)
		if asked || o != a.m && !o.Silent && !o.Absent && o.demand == nil && !a.lacking[id] && o.Lease > shares[id] {
			over = append(over, o)
		}
	}
	slices.SortFunc(over, func(o, c *modelMember) int {
		return cmp.Or(cmp.Compare(c.Lease-min(c.Lease, shares[c.ID]), o.Lease-min(o.Lease, shares[o.ID])), cmp.Compare(o.ID, c.ID))
	})
	for _, o := range over[:len(demands)] {
		r, asked := demands[o.ID]
		gives := min(lacks, o.Lease-min(o.Lease, shares[o.ID]))
		m.must(asked && gives > 0 && r.Lease == o.Lease-gives, "m%d of %d, share %d, with %d lacking: %v", o.ID, o.Lease, shares[o.ID], lacks, r)
		lacks -= gives
		m.demanded(r, a)
		delete(demands, o.ID)
	}
}

// state compares what is shown with what the model knows.
func (m *model) state() {
	shares := m.shares()
	list := m.b.Members()
	m.must(len(list) == len(m.members), "%d members", len(list))
	m.must(m.b.Idle() == m.idle() && m.b.Budget() == m.budget, "idle %d, not %d", m.b.Idle(), m.idle())
	waits := false
	for _, got := range list {
		o := m.members[got.ID]
		want := o.Member
		want.Share, want.Demanded = shares[got.ID], 0
		if o.demand != nil {
			want.Demanded = o.Lease - min(o.Lease, o.demand.Lease)
			m.demands = max(m.demands, o.demand.Number)
			waits = waits || len(m.waiting) > 0 && o != m.waiting[0].m
		}
		m.must(got == want, "%+v, not %+v", got, want)
	}
	m.must(slices.IsSortedFunc(list, func(a, c broker.Member) int { return cmp.Compare(a.ID, c.ID) }), "not sorted")
	m.must(waits || len(m.waiting) == 0, "an ask waits for no one")
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
