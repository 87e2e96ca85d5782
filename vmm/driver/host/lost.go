//go:build linux

package host

import (
	"cmp"
	"slices"
)

// loseIfUsed marks all devices as lost if one of them has work, queued or running, on
// memory that is about to be unmapped or narrowed. As in a process with a card, one
// lost device is a lost process. It returns when none of that work runs any more, so
// that nothing touches the pages afterwards: on the card that would be an illegal
// address, here it would end the process. The wait for a copy is short, because it checks
// after every piece whether it was stopped. A kernel runs to its end. The caller holds
// memMu for writing, so no new work can pass its check meanwhile.
func (d *Driver) loseIfUsed(hit func(*deviceState, span) bool) {
	d.workMu.Lock()
	defer d.workMu.Unlock()
	var running []*op
	used := false
	d.visitOps(hit, func(o *op) {
		used = true
		if o.started {
			running = append(running, o)
		}
	})
	if used {
		d.lose("memory was taken away from queued work, of this device or of another")
	}
	for _, o := range running {
		o.wait(d)
	}
}

// lose marks all devices as lost and stops their work. The first reason is the one that
// errors say. The caller holds workMu.
func (d *Driver) lose(why string) {
	d.lostWhy.CompareAndSwap(nil, &why)
	d.lost.Store(true)
	for _, u := range d.states {
		if u.context != nil {
			u.context.stop()
		}
	}
}

// visitOps visits the ops, queued and running, that use a span for which hit is true.
// The caller holds workMu.
func (d *Driver) visitOps(hit func(*deviceState, span) bool, visit func(*op)) {
	for _, u := range d.states {
		if u.context == nil {
			continue
		}
		for s := range u.context.busy {
			for _, o := range slices.Concat(s.inline, s.queue) {
				if slices.ContainsFunc(o.spans, func(x span) bool { return hit(cmp.Or(x.owner, o.context.state), x) }) {
					o.seen = true
					visit(o)
				}
			}
		}
	}
}

// within reports whether an op's span has bytes in [from, to), on any device.
func within(from, to uint64) func(*deviceState, span) bool {
	return func(_ *deviceState, s span) bool { return s.from < to && from < s.to }
}
