//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

var (
	_ driver.PeerInfo    = (*Driver)(nil)
	_ driver.LegacyPeers = (*device)(nil)
)

// Peering is the same for all pairs except those of Config.NoPeer: one memory, one
// path to it, and the processor's own atomic operations.
func (d *Driver) Peering(from, to int) (driver.Peering, error) {
	err := d.checkDevices("Peering", from, to)
	switch {
	case err != nil:
		return driver.Peering{}, err
	case from == to:
		return driver.Peering{Access: true, Link: "self", Atomics: true}, nil
	case !d.canReach(from, to):
		return driver.Peering{Link: "none", Rank: -1}, nil
	}
	return driver.Peering{Access: true, Link: "host", Atomics: true}, nil
}

// EnablePeer records the access. As on the card, copies of plain memory work with
// and without it; nothing else here could need it.
func (v *device) EnablePeer(to int) error {
	const verb = "EnablePeer"
	return v.onContext(verb, func(c *context) error {
		if _, err := c.d.state(verb, to); err != nil {
			return err
		}
		switch from := c.state.ordinal; {
		case to == from:
			return refuse(verb, driver.ErrInvalid, "host:%d is no peer of its own", to)
		case !c.d.canReach(from, to):
			return refuse(verb, driver.ErrNotSupported, "host:%d cannot reach memory of host:%d", from, to)
		case c.peers[to]:
			return refuse(verb, driver.ErrPeerEnabled, "host:%d to host:%d", from, to)
		}
		c.peers[to] = true
		return nil
	})
}

// DisablePeer removes the record, also on and for a lost device.
func (v *device) DisablePeer(to int) error {
	const verb = "DisablePeer"
	return v.onContextEvenLost(verb, func(c *context) error {
		switch {
		case to < 0 || to >= len(c.d.states):
			return refuse(verb, driver.ErrNoDevice, "host:%d", to)
		case !c.peers[to]:
			return refuse(verb, driver.ErrInvalid, "host:%d to host:%d is not enabled", c.state.ordinal, to)
		}
		delete(c.peers, to)
		return nil
	})
}
