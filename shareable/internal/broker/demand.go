package broker

import (
	"cmp"
	"slices"
)

// demand is a request to a member that it has not answered.
type demand struct {
	n    Number
	m    *member
	to   uint64 // the lease to come down to
	soft bool
}

// amount is what the member has to give for it.
func (d *demand) amount() uint64 { return minus(d.m.lease, d.to) }

// demand sends a demand to a member that has none.
func (b *Broker) demand(m *member, to uint64, soft bool) *demand {
	b.last++
	m.demand = &demand{n: b.last, m: m, to: to, soft: soft}
	b.demands[b.last] = m.demand
	b.actions = append(b.actions, Action{Kind: Demand, To: m.id, Number: b.last, Lease: to, Soft: soft})
	return m.demand
}

// end forgets a demand. No ask waits for it any more.
func (b *Broker) end(d *demand) {
	d.m.demand = nil
	delete(b.demands, d.n)
	for _, w := range b.waiting {
		delete(w.waits, d)
	}
}

// Gave is the reply of a member to a demand: its lease, what it has created, and why that is not
// less. A late one, to a demand that has expired, lowers the lease too. A lease is never raised.
func (b *Broker) Gave(id ID, n Number, lease, created uint64, why string) []Action {
	m := b.members[id]
	if m == nil {
		return nil
	}
	m.says(created)
	m.lease = min(m.lease, lease)
	if d := m.demand; d != nil && d.n == n {
		b.short(d, why)
		b.end(d)
	}
	return b.settle()
}

// Expire says that the deadline of a demand has passed. Its member is silent until it says
// something. Expire does nothing if the demand was answered.
func (b *Broker) Expire(n Number) []Action {
	d := b.demands[n]
	if d == nil {
		return nil
	}
	d.m.silent = true
	d.m.reduce = d.m.reduce || !d.soft // what was lowered still is when the member says something
	b.short(d, "")
	b.end(d)
	return b.settle()
}

// short tells all asks when a member has given less than was demanded: it has no more in its
// caches, or does not give what it uses.
func (b *Broker) short(d *demand, why string) {
	if d.amount() == 0 {
		return
	}
	for _, w := range b.waiting {
		w.softened[d.m.id] = true
		if w.waits[d] && !d.soft {
			w.lacking[d.m.id] = lacking{amount: d.amount(), why: why}
		}
	}
}

// reduce sends the demands that are due because the terms or the budget were lowered.
func (b *Broker) reduce() {
	_, fits := within(b.limit(), b.sorted(), lease)
	shares := b.shares()
	for _, m := range b.sorted() {
		if !m.reduce || !m.askable() || m.demand != nil {
			continue
		}
		m.reduce = false
		to := min(m.lease, m.most())
		if !fits {
			to = min(to, shares[m])
		}
		if to < m.lease {
			b.demand(m, to, false)
		}
	}
}

// askable reports whether a demand would reach the member.
func (m *member) askable() bool { return !m.silent && !m.absent }

// soften sends the soft demands of an ask, to all that have had none of it. For a member that has
// another demand, the ask waits for that one.
func (b *Broker) soften(w *waiter) {
	for _, m := range b.sorted() {
		switch {
		case m == w.m || !m.askable() || m.lease <= m.Least || w.softened[m.id]:
		case m.demand != nil:
			w.waits[m.demand] = true
		default:
			w.softened[m.id] = true
			w.waits[b.demand(m, max(m.Least, minus(m.lease, b.lacks(w))), true)] = true
		}
	}
}

// harden sends hard demands to members that are over their share, the one that is most over it
// first. They are for what lacks beyond the hard demands that are not answered. For a member that
// has another demand, the ask waits for that one.
func (b *Broker) harden(w *waiter) {
	shares := b.shares()
	if w.Need > shares[w.m] {
		return
	}
	over := slices.DeleteFunc(b.sorted(), func(m *member) bool {
		_, less := w.lacking[m.id]
		return m == w.m || !m.askable() || m.lease <= shares[m] || less
	})
	lacks := b.lacks(w)
	for _, d := range b.demands {
		if d.m != w.m && (!d.soft || slices.Contains(over, d.m)) {
			w.waits[d] = true
		}
		if d.m != w.m && !d.soft {
			lacks = minus(lacks, d.amount())
		}
	}
	slices.SortStableFunc(over, func(m, o *member) int { return cmp.Compare(o.lease-shares[o], m.lease-shares[m]) })
	for _, m := range over {
		if m.demand == nil && lacks > 0 {
			d := b.demand(m, max(shares[m], minus(m.lease, lacks)), false)
			w.waits[d] = true
			lacks -= d.amount()
		}
	}
}
