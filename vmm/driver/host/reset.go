//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

// ResetContext does to the context of a device what another library does with
// cuDevicePrimaryCtxReset: its queued work, streams, events, plain and pinned memory
// are gone, and every Device that is open on it returns driver.ErrContextReset.
// Mapped memory stays, and a Device opened anew works. If another device has work on
// memory that goes, all devices are lost. A slice of pinned memory must not be
// touched any more. It is for tests.
func (d *Driver) ResetContext(dev int) error {
	const verb = "ResetContext"
	u, err := d.state(verb, dev)
	if err != nil {
		return err
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	d.workMu.Lock()
	c := u.context
	if c == nil {
		d.workMu.Unlock()
		return nil
	}
	// First the context goes, so that no new call finds it while its work ends.
	u.context = nil
	c.reset.Store(true)
	d.endContext(c)
	for _, other := range d.states {
		if other.context != nil {
			delete(other.context.peers, dev)
		}
	}
	d.workMu.Unlock()
	return d.freeBlocks(c)
}

// endContext stops a context and waits for what still runs in it. Captures of its
// streams end too. The caller holds memMu and workMu.
func (d *Driver) endContext(c *context) {
	c.stop()
	_ = c.wait("end", c.pendingOps())
	for s := range c.allStreams() {
		if s.capture != nil {
			s.capture.removeStream(s)
		}
	}
}

// resetError is the error of a call of a Device whose context was reset.
func (c *context) resetError(verb string) error {
	return refuse(verb, driver.ErrContextReset, "host:%d: close this Device and open it anew", c.state.ordinal)
}
