//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

// How many mappings the kernel has in a reservation: one, and one more for each border
// between a mapping and a gap, or between two mappings that it does not join. It joins
// neighbouring parts of an arena while the page table allows the same for both.

// seen is a mapping as the kernel sees it: without one, an end of the reservation.
type seen struct {
	*mapping
	allowed driver.Access
}

// seen is r.maps[k], or an end of r for an index outside.
func (r *region) seen(k int) seen {
	if k < 0 || k >= len(r.maps) {
		return seen{}
	}
	return seen{r.maps[k], r.maps[k].allowed}
}

// border is how many borders there are between two neighbours, with nothing or a gap
// between them.
func (r *region) border(left, right seen) int {
	from, to := r.base, r.end()
	n := 0
	if left.mapping != nil {
		from = left.end()
		n++
	}
	if right.mapping != nil {
		to = right.base
		n++
	}
	switch {
	case from < to: // one at either side of the gap, except at an end
		return n
	case n < 2 || joined(left, right):
		return 0
	}
	return 1
}

// joined reports whether two mappings without a gap between them are one for the kernel.
func joined(left, right seen) bool {
	a, b := left.memory.part, right.memory.part
	return a.arena != nil && a.arena == b.arena && a.end() == b.off && left.allowed == right.allowed
}

// borders is how many borders r.maps[i:j] has, at both its ends and inside.
func (r *region) borders(i, j int) int {
	n := 0
	for k := i; k <= j; k++ {
		n += r.border(r.seen(k-1), r.seen(k))
	}
	return n
}

// stretches splits mappings where what the page table allows differs, now or then. The
// kernel is asked to change each stretch by one call.
func stretches(now []*mapping, then []driver.Access, visit func(from, to int) error) error {
	for i := 0; i < len(now); {
		j := i + 1
		for j < len(now) && then[j] == then[i] && now[j].allowed == now[i].allowed {
			j++
		}
		if err := visit(i, j); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// bordersOfAccess is how many more borders there are once the page table allows then
// for r.maps[i:], and at most on the way there, stretch by stretch.
func (r *region) bordersOfAccess(i int, then []driver.Access) (peak, more int) {
	changed := r.seen(i - 1) // the left neighbour, which the change has reached
	_ = stretches(r.maps[i:i+len(then)], then, func(from, to int) error {
		for k := i + from; k < i+to; k++ {
			old, right := r.seen(k), r.seen(k+1)
			next := seen{old.mapping, then[k-i]}
			more += r.border(changed, next) + r.border(next, right) - r.border(changed, old) - r.border(old, right)
			changed = next
		}
		peak = max(peak, more)
		return nil
	})
	return peak, more
}

// changeMappings runs change, after which the kernel has more mappings than before, and
// at most peak more on the way. They are counted before, so that the kernel does not
// refuse: at its limit no undo works either.
func (d *Driver) changeMappings(verb string, peak, more int, why purpose, change func() error) error {
	if err := d.takeMappings(verb, peak, why); err != nil {
		return err
	}
	if err := change(); err != nil {
		d.returnMappings(peak)
		return err
	}
	d.returnMappings(peak - more)
	return nil
}
