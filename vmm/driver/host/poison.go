//go:build linux

package host

import (
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// poison loses all devices if one of them has work, queued or running, on memory
// that is being taken away: as in a process with a card, one lost device is a
// lost process. It returns when none of that work runs any more, so that nobody
// touches the pages afterwards: on the card this would be an illegal address,
// here it would end the process. The wait is short: a copy looks at every piece
// whether its device is lost.
// The caller holds mem whole, so no new work can pass its check meanwhile.
func (d *Driver) poison(hit func(*unit, span) bool) {
	d.work.Lock()
	defer d.work.Unlock()
	var running []*op
	d.working(hit, func(_ *unit, o *op) {
		d.lost.Store(true)
		if o.started {
			running = append(running, o)
		}
	})
	if !d.lost.Load() {
		return
	}
	for _, u := range d.units {
		if u.context != nil {
			u.context.stop()
		}
	}
	for _, o := range running {
		o.wait(d)
	}
}

// working visits the ops, queued and running, that use memory which hit names.
// The caller holds work.
func (d *Driver) working(hit func(*unit, span) bool, visit func(*unit, *op)) {
	for _, u := range d.units {
		if u.context == nil {
			continue
		}
		for s := range u.context.busy {
			for _, o := range slices.Concat(s.inline, s.queue) {
				if slices.ContainsFunc(o.spans[:], func(x span) bool { return x.need != driver.AccessNone && hit(u, x) }) {
					visit(u, o)
				}
			}
		}
	}
}

// within says whether an op's span has bytes in [from, to), on any device.
func within(from, to uint64) func(*unit, span) bool {
	return func(_ *unit, s span) bool { return s.from < to && from < s.to }
}
