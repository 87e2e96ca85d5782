package broker

import (
	"cmp"
	"slices"
)

// Ask is what a member asks for. Leases are absolute, in bytes.
type Ask struct {
	Need    uint64 // the lease without which an urgent ask is refused
	Want    uint64 // the lease that it would have if that costs no one anything, Need or more
	Created uint64 // what the member has created
	Urgent  bool   // the ask waits until others have given up what lacks, or do not
}

// waiter is an urgent ask that waits.
type waiter struct {
	Ask
	m        *member
	n        Number
	waits    map[*demand]bool
	softened map[ID]bool    // members that have no more in their caches, or were asked for that
	hard     bool           // soft demands have not been enough
	lacking  map[ID]lacking // members that have given less than a hard demand
}

// Ask is a request of a member for a higher lease. One that is not urgent is granted at once, with
// what is idle, perhaps nothing. An urgent one is granted or refused, by this call or a later one.
// It takes the place of an urgent ask of the member that still waits: the member has given that up.
func (b *Broker) Ask(id ID, n Number, q Ask) []Action {
	m := b.members[id]
	if m == nil {
		return nil
	}
	m.says(q.Created)
	q.Want = max(q.Need, q.Want)
	w := &waiter{Ask: q, m: m, n: n, waits: map[*demand]bool{}, softened: map[ID]bool{}, lacking: map[ID]lacking{}}
	if q.Urgent {
		b.withdraw(m)
	}
	if q.Urgent && q.Need > m.lease {
		b.waiting = append(b.waiting, w)
	} else {
		b.grant(w)
	}
	return b.settle()
}

// Withdraw says that the member does not wait for its ask any more. Memory that others give for it is idle.
func (b *Broker) Withdraw(id ID) []Action {
	if m := b.members[id]; m != nil {
		b.withdraw(m)
	}
	return b.settle()
}

// withdraw forgets the urgent ask of a member.
func (b *Broker) withdraw(m *member) {
	b.waiting = slices.DeleteFunc(b.waiting, func(w *waiter) bool { return w.m == m })
}

// lacks is what has to become idle before an ask is granted, and those before it.
func (b *Broker) lacks(w *waiter) (n uint64) {
	for _, o := range b.waiting {
		n = plus(n, minus(o.Need, o.m.lease))
		if o == w {
			break
		}
	}
	return minus(n, b.Idle())
}

// grant replies to an ask. It raises the lease to what is wanted and idle, or to what is needed if
// another urgent ask waits.
func (b *Broker) grant(w *waiter) {
	old := w.m.lease
	switch others := slices.ContainsFunc(b.waiting, func(o *waiter) bool { return o != w }); {
	case !others:
		w.m.lease = max(old, min(w.Want, w.m.most(), plus(old, b.Idle())))
	case slices.Contains(b.waiting, w):
		w.m.lease = max(old, w.Need)
	}
	b.actions = append(b.actions, Action{Kind: Granted, To: w.m.id, Number: w.n, Lease: w.m.lease, Added: w.m.lease - old})
}

// refuse replies to an urgent ask. The lease stays.
func (b *Broker) refuse(w *waiter, err error) {
	b.actions = append(b.actions, Action{Kind: Refused, To: w.m.id, Number: w.n, Lease: w.m.lease, Err: err})
}

// settle does all that can be done now, and returns the actions of the call.
func (b *Broker) settle() []Action {
	b.waiting = slices.DeleteFunc(b.waiting, func(w *waiter) bool {
		err := b.tooMuch(w)
		if err != nil {
			b.refuse(w, err)
		}
		return err != nil
	})
	b.reduce()
	for i := 0; i < len(b.waiting); {
		if b.serve(b.waiting[i], i == 0) {
			b.waiting = slices.Delete(b.waiting, i, i+1)
		} else {
			i++
		}
	}
	actions := b.actions
	b.actions = nil
	slices.SortStableFunc(actions, func(a, c Action) int { // a member gives once its own ask has ended
		return cmp.Or(cmp.Compare(a.To, c.To), cmp.Compare(a.Kind, c.Kind))
	})
	return actions
}

// serve takes an urgent ask as far as it goes, and reports whether that was granted or refused. Only the first one is
// granted, and has hard demands sent. An ask of a member that has such a demand is refused: else two members could wait
// for each other.
func (b *Broker) serve(w *waiter, first bool) bool {
	switch d := w.m.demand; {
	case first && b.lacks(w) == 0:
		b.grant(w)
		return true
	case d != nil && !d.soft:
		b.refuse(w, b.notEnough(w))
		return true
	case !w.hard:
		b.soften(w)
	}
	if !first {
		return false
	}
	w.hard = w.hard || len(w.waits) == 0
	if w.hard {
		b.harden(w)
	}
	if len(w.waits) > 0 {
		return false
	}
	b.refuse(w, b.notEnough(w))
	return true
}
