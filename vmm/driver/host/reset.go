//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

// ResetContext does to the context of a device what another library does with
// cuDevicePrimaryCtxReset: its streams, events, plain and pinned memory are gone,
// with what was queued, and every Device that is open on it answers
// driver.ErrContextReset. Mapped memory stays, and a Device opened anew works.
// Work of another device on memory that goes loses all of them. A slice of
// pinned memory must not be touched any more. It is for tests.
func (d *Driver) ResetContext(dev int) error {
	const verb = "ResetContext"
	u, err := d.unit(verb, dev)
	if err != nil {
		return err
	}
	d.mem.Lock()
	defer d.unlock()
	d.work.Lock()
	c := u.context
	if c == nil {
		d.work.Unlock()
		return nil
	}
	u.context = nil
	c.reset.Store(true)
	d.end(c)
	for _, other := range d.units {
		if other.context != nil {
			delete(other.context.peers, dev)
		}
	}
	d.work.Unlock()
	return d.freeBlocks(c)
}

// end stops a context and waits for what still runs in it. Captures of its
// streams end too. The caller holds mem and work.
func (d *Driver) end(c *context) {
	c.stop()
	_ = c.wait("end", c.work())
	for s := range c.all() {
		if s.capture != nil {
			s.capture.ended = true
			s.capture = nil
		}
	}
}

// wasReset is why a call of a Device finds its context gone.
func (c *context) wasReset(verb string) error {
	return rule(verb, driver.ErrContextReset, "host:%d: close this Device and open it anew", c.u.ordinal)
}
