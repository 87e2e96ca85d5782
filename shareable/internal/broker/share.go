package broker

import "math"

// within is what is left of limit below an amount of each member, and whether all amounts fit.
func within(limit uint64, members []*member, amount func(*member) uint64) (left uint64, fits bool) {
	for _, m := range members {
		a := amount(m)
		if a > limit {
			return 0, false
		}
		limit -= a
	}
	return limit, true
}

// lease is a member's lease.
func lease(m *member) uint64 { return m.lease }

// plus is the sum of both, or the largest number where that overflows.
func plus(a, b uint64) uint64 { return a + min(b, math.MaxUint64-a) }

// minus is what is left of a without b, or 0.
func minus(a, b uint64) uint64 { return a - min(a, b) }

// limit is what all leases together may be raised to.
func (b *Broker) limit() uint64 { return min(b.budget, b.physical) }

// Idle is how many bytes no member has.
func (b *Broker) Idle() uint64 {
	left, _ := within(b.limit(), b.sorted(), lease)
	return left
}

// shares is what each member can have whatever others do. A member claims its lease, or what it
// urgently needs if that is more. Its share is its least and a part s of the rest, up to its claim.
// s is the same for all, and the largest with which the shares fit.
func (b *Broker) shares() map[*member]uint64 {
	claims, members := map[*member]uint64{}, b.sorted()
	for _, m := range members {
		claims[m] = m.lease
	}
	for _, w := range b.waiting {
		claims[w.m] = max(w.m.lease, w.Need)
	}
	share := func(s uint64) func(*member) uint64 {
		return func(m *member) uint64 { return min(claims[m], plus(m.Least, s)) }
	}
	s := largest(func(s uint64) bool {
		_, fits := within(b.limit(), members, share(s))
		return fits
	})
	shares := map[*member]uint64{}
	for _, m := range members {
		shares[m] = share(s)(m)
	}
	return shares
}

// largest is the largest number for which ok is true, or 0. If ok is false for a number, it is
// false for all larger ones.
func largest(ok func(uint64) bool) uint64 {
	var n uint64
	for bit := uint64(1) << 63; bit > 0; bit >>= 1 {
		if ok(n | bit) {
			n |= bit
		}
	}
	return n
}
