//go:build linux

package host

// poison loses every device that has work, queued or running, on memory that
// is being taken away. It returns when none of that work runs any more, so
// that nobody touches the pages afterwards: on the card this would be an
// illegal address, here it would end the process. The wait is short: a copy
// looks at every piece whether its device is lost.
// The caller holds mem whole, so no new work can pass its check meanwhile.
func (d *Driver) poison(hit func(*unit, span) bool) {
	d.work.Lock()
	defer d.work.Unlock()
	var running []*op
	for _, u := range d.units {
		if u.context == nil {
			continue
		}
		lost := false
		for s := range u.context.busy {
			s.all(func(o *op) {
				for _, sp := range o.spans {
					if sp.to > sp.from && hit(u, sp) {
						lost = true
						if o.started {
							running = append(running, o)
						}
						break
					}
				}
			})
		}
		if lost {
			u.lost.Store(true)
			u.context.stop()
		}
	}
	for _, o := range running {
		o.wait(d)
	}
}
