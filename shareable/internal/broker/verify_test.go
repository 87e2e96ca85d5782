package broker_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cuvmm/cuvmm/shareable/internal/broker"
	"github.com/cuvmm/cuvmm/vmm"
)

func (m *model) must(ok bool, format string, args ...any) {
	if !ok {
		m.Fatalf(format, args...)
	}
}

// call makes a call of both brokers, which must do the same.
func (m *model) call(f func(b *broker.Broker) []broker.Action) []broker.Action {
	actions, twin := f(m.b), f(m.twin)
	m.must(fmt.Sprint(actions) == fmt.Sprint(twin), "%v and %v: not deterministic", actions, twin)
	m.must(slices.IsSortedFunc(actions, func(a, c broker.Action) int {
		return cmp.Or(cmp.Compare(a.To, c.To), cmp.Compare(a.Kind, c.Kind))
	}), "not sorted: %s", show(actions))
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
	m.waiting = slices.DeleteFunc(m.waiting, func(a *modelAsk) bool {
		r := replies[a]
		gives := a != m.waiting[0] && (a.m.gives() || demands[a.m.ID].Number > 0 && !demands[a.m.ID].Soft)
		m.must(gives == (r.Kind == broker.Refused && r.Number > 0), "m%d has to give: %v", a.m.ID, r)
		if gives {
			n--
		}
		return gives
	})
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
	if a.m.gives() {
		return
	}
	shares, someone := m.shares(), false
	for id, o := range m.members {
		m.must(o == a.m || o.demand == nil || a.Need > shares[a.m.ID] || o.demand.Soft, "refused before m%d has answered", id)
		m.must(o.demand == nil || !slices.Contains(a.waits, o.demand.Number), "refused before m%d has answered", id)
		named, over := strings.Contains(r.Err.Error(), fmt.Sprintf("%q", o.Name)), o != a.m && o.Lease > shares[id]
		someone = someone || named
		faulty := o.Silent || o.Absent || a.lacking[id]
		m.must(!named || over && faulty, "m%d is named: %v", id, r.Err)
		m.must(named || !over || a.Need > shares[a.m.ID], "m%d is over its share, and not named: %v", id, r.Err)
		m.must(named || !over || !o.Silent && !o.Absent, "m%d does not answer, and is not named: %v", id, r.Err)
	}
	fits := uint64(0)
	for _, share := range shares {
		fits += share
	}
	m.must(someone || a.Need > shares[a.m.ID] || fits > m.limit(), "refused within its share, and no one is named: %v", r.Err)
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
		m.must(got == want && m.b.Lease(got.ID) == want.Lease, "%+v, not %+v", got, want)
	}
	m.must(slices.IsSortedFunc(list, func(a, c broker.Member) int { return cmp.Compare(a.ID, c.ID) }), "not sorted")
	for _, a := range m.waiting {
		m.must(!a.m.gives(), "m%d has to give, and waits", a.m.ID)
	}
	m.must(waits || len(m.waiting) == 0, "an ask waits for no one")
}
