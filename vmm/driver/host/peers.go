//go:build linux

package host

import "github.com/cuvmm/cuvmm/vmm/driver"

var (
	_ driver.PeerInfo    = (*Driver)(nil)
	_ driver.LegacyPeers = (*device)(nil)
)

// Peering is the same for all pairs but those of Config.NoPeer: one memory, one
// path to it, and the processor's own atomic operations.
func (d *Driver) Peering(from, to int) (driver.Peering, error) {
	const verb = "Peering"
	for _, dev := range []int{from, to} {
		if _, err := d.unit(verb, dev); err != nil {
			return driver.Peering{}, err
		}
	}
	switch {
	case from == to:
		return driver.Peering{Access: true, Link: "self", Atomics: true}, nil
	case !d.reaches(from, to):
		return driver.Peering{Link: "none", Rank: -1}, nil
	}
	return driver.Peering{Access: true, Link: "host", Atomics: true}, nil
}

// EnablePeer writes it down. As on the card, copies of plain memory work with
// and without it; here nothing else could need it.
func (v *device) EnablePeer(to int) error {
	const verb = "EnablePeer"
	c, err := v.pair(verb, to)
	if err != nil {
		return err
	}
	from := c.u.ordinal
	if !c.d.reaches(from, to) {
		return rule(verb, driver.ErrNotSupported, "host:%d cannot reach memory of host:%d", from, to)
	}
	c.d.work.Lock()
	defer c.d.work.Unlock()
	if c.peers[to] {
		return rule(verb, driver.ErrPeerEnabled, "host:%d to host:%d", from, to)
	}
	c.peers[to] = true
	return nil
}

// DisablePeer strikes it out, on a lost device and for one, too.
func (v *device) DisablePeer(to int) error {
	const verb = "DisablePeer"
	if v.closed.Load() {
		return v.isClosed(verb)
	}
	c := v.context
	if to < 0 || to >= len(c.d.units) {
		return rule(verb, driver.ErrNoDevice, "host:%d", to)
	}
	c.d.work.Lock()
	defer c.d.work.Unlock()
	if !c.peers[to] {
		return rule(verb, driver.ErrInvalid, "host:%d to host:%d is not enabled", c.u.ordinal, to)
	}
	delete(c.peers, to)
	return nil
}

// pair checks that both devices are there and not one.
func (v *device) pair(verb string, to int) (*context, error) {
	if err := v.enter(verb); err != nil {
		return nil, err
	}
	c := v.context
	if _, err := c.d.unit(verb, to); err != nil {
		return nil, err
	}
	if to == c.u.ordinal {
		return nil, rule(verb, driver.ErrInvalid, "host:%d is no peer of its own", to)
	}
	return c, nil
}
