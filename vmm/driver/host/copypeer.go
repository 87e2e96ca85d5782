//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

var _ driver.PeerCopier = (*device)(nil)

// CopyPeer queues a copy for which each side's own device needs access to its side, and no
// other.
func (v *device) CopyPeer(dst driver.Ptr, to int, src driver.Ptr, from int, n uint64, s driver.Stream) error {
	const verb = "CopyPeer"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	if err := v.context.d.checkDevices(verb, to, from); err != nil {
		return err
	}
	o := copyOp(copyingPeer, dst, src, n)
	for i := range o.memory {
		o.memory[i].owner = [...]*deviceState{v.context.d.states[to], v.context.d.states[from]}[i]
	}
	return v.queue(verb, s, o)
}

// liesOn reports whether all of [p, p+n) is memory of a device. The caller holds memMu and
// has checked that the span has memory.
func (d *Driver) liesOn(u *deviceState, p, n uint64) bool {
	r := d.region(p)
	if r.block != nil {
		return r.block.on() == u
	}
	for _, m := range r.covering(p, n) {
		if m.memory.state != u {
			return false
		}
	}
	return true
}
