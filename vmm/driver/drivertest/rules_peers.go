package drivertest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// What a driver knows of pairs of devices, and access to plain memory.
func legacyPeerRules() []Rule {
	return []Rule{
		{Name: "peering", Says: "Peering agrees with CanAccessPeer in both directions; a pair without access has no link", Source: seam, run: peeringPairs},
		{Name: "peering-self", Says: "a device and itself are a pair with access, whose link is self", Source: seam, run: peeringSelf},
		{Name: "peering-unknown", Says: "a pair with a device that does not exist is ErrNoDevice", Source: seam, run: peeringUnknown},
		{Name: "peer-enable", Says: "access to plain memory can be enabled once and disabled once, and has one direction", Source: manual, devices: 2, run: peerEnable},
		{Name: "peer-enable-refused", Says: "access to itself, or to a device that does not exist, cannot be enabled", Source: manual, run: peerEnableRefused},
		{Name: "peer-enable-close", Says: "closing either device undoes what was enabled, and the other one works on", Source: seam, devices: 2, run: peerEnableClose},
		{Name: "peer-no-path", Says: "enabling access where there is no path is ErrNotSupported", Source: manual, run: peerNoPath},
		{Name: "peer-plain", Says: "copies of plain memory between devices are right before, while and after access is enabled", Source: manual, devices: 2, run: peerPlain},
		{Name: "peer-plain-only", Says: "enabling access to plain memory gives no access to mapped memory", Source: guide, devices: 2, run: onPair(peerPlainOnly)},
	}
}

// peering skips the case where the driver does not report pairs.
func (c *check) peering(from, to int) driver.Peering {
	c.Helper()
	return valueOf(c.d.Peering(from, to)).optional(c, "PeerInfo")
}

// several skips the case where there is only one device.
func (c *check) several() {
	c.Helper()
	if len(c.info) < 2 {
		c.skip("2 devices needed, %d here", len(c.info))
	}
}

func peeringPairs(c *check) {
	c.several()
	links := []string{"nvlink", "pcie", "host", ""}
	for from := range c.info {
		for to := range c.info {
			can := valueOf(c.d.CanAccessPeer(from, to)).must(c, "ask for access from %d to %d", from, to)
			p := c.peering(from, to)
			switch {
			case p.Access != can:
				c.Errorf("%d to %d: %+v, and CanAccessPeer says %v", from, to, p, can)
			case !can && (p.Link != "none" || p.Atomics):
				c.Errorf("%d to %d: %+v without access", from, to, p)
			case can && from != to && !slices.Contains(links, p.Link):
				c.Errorf("%d to %d: %+v, whose link is none of %q", from, to, p, links)
			case p.Rank < -1:
				c.Errorf("%d to %d: %+v", from, to, p)
			}
		}
	}
}

func peeringSelf(c *check) {
	for dev := range c.info {
		if p := c.peering(dev, dev); !p.Access || p.Link != "self" {
			c.Errorf("device %d to itself: %+v", dev, p)
		}
	}
}

func peeringUnknown(c *check) {
	c.peering(0, 0)
	for _, n := range []int{-1, len(c.info), 1 << 20} {
		for _, pair := range [][2]int{{0, n}, {n, 0}, {n, n}} {
			c.want(errOf(c.d.Peering(pair[0], pair[1])), fmt.Sprintf("ask for the pair %v", pair), driver.ErrNoDevice)
		}
	}
}

// enable enables access of a device to plain memory of another. It skips the case
// where the driver cannot.
func (c *check) enable(from, to int) driver.LegacyPeers {
	c.Helper()
	i := as[driver.LegacyPeers](c, c.dev(from))
	c.optional(i.EnablePeer(to), "LegacyPeers")
	return i
}

func peerEnable(c *check) {
	i := c.enable(0, 1)
	c.want(i.EnablePeer(1), "enable again", driver.ErrPeerEnabled)
	back := as[driver.LegacyPeers](c, c.dev(1))
	c.want(back.DisablePeer(0), "disable the other direction", driver.ErrInvalid)
	c.must(back.EnablePeer(0), "enable the other direction")
	c.must(i.DisablePeer(1), "disable")
	c.want(i.DisablePeer(1), "disable again", driver.ErrInvalid)
	c.want(back.EnablePeer(0), "enable the other direction again", driver.ErrPeerEnabled)
	c.must(i.EnablePeer(1), "enable after it was disabled")
	c.must(i.DisablePeer(1), "disable")
	c.must(back.DisablePeer(0), "disable the other direction")
}

func peerEnableRefused(c *check) {
	i := as[driver.LegacyPeers](c, c.dev(0))
	if err := i.EnablePeer(0); errors.Is(err, driver.ErrNotSupported) {
		c.skip("no LegacyPeers")
	} else {
		c.want(err, "enable access of a device to itself", driver.ErrInvalid)
	}
	c.want(i.DisablePeer(0), "disable access of a device to itself", driver.ErrInvalid)
	for _, n := range []int{-1, len(c.info), 1 << 20} {
		c.want(i.EnablePeer(n), fmt.Sprintf("enable access to device %d", n), driver.ErrNoDevice)
		c.want(i.DisablePeer(n), fmt.Sprintf("disable access to device %d", n), driver.ErrNoDevice)
	}
}

// peerEnableClose opens its devices on the wrapped driver. The wrapper would count
// what closing undoes as not given back.
func peerEnableClose(c *check) {
	open := func(n int) driver.Device {
		return valueOf(c.d.inner.Open(n)).must(c, "open device %d", n)
	}
	for _, first := range []int{0, 1} {
		d := []driver.Device{open(0), open(1)}
		i, ok := d[0].(driver.LegacyPeers)
		if !ok {
			c.must(d[0].Close(), "close device 0")
			c.must(d[1].Close(), "close device 1")
			c.skip("no LegacyPeers")
		}
		c.must(i.EnablePeer(1), "enable")
		c.must(d[first].Close(), "close device %d first", first)
		c.must(d[1-first].Sync(), "sync device %d after it", 1-first)
		// The peer's Close does not end what device 0 has enabled.
		if first == 1 {
			c.want(i.EnablePeer(1), "enable again, the peer closed", driver.ErrPeerEnabled)
		}
		c.must(d[1-first].Close(), "close device %d then", 1-first)
		c.want(i.EnablePeer(1), "enable on a closed device", driver.ErrClosed)
		c.want(i.DisablePeer(1), "disable on a closed device", driver.ErrClosed)
	}
	// Nothing is left enabled, so a device opened later can enable it.
	c.must(c.enable(0, 1).DisablePeer(1), "disable what a device opened later enabled")
}

// noPaths calls f for each pair of devices without a path, and skips the case where there is none.
func (c *check) noPaths(f func(from, to int)) {
	c.Helper()
	c.several()
	tried := false
	for from := range c.info {
		for to := range c.info {
			if !valueOf(c.d.CanAccessPeer(from, to)).must(c, "ask for access from %d to %d", from, to) {
				tried = true
				f(from, to)
			}
		}
	}
	if !tried {
		c.skip("there is a path between all devices")
	}
}

func peerNoPath(c *check) {
	c.noPaths(func(from, to int) {
		// A driver without LegacyPeers returns the same error, so only DisablePeer tells the
		// two apart.
		i := as[driver.LegacyPeers](c, c.dev(from))
		c.want(i.EnablePeer(to), fmt.Sprintf("enable access from %d to %d", from, to), driver.ErrNotSupported)
		err := i.DisablePeer(to)
		if errors.Is(err, driver.ErrNotSupported) {
			c.skip("no LegacyPeers")
		}
		c.want(err, fmt.Sprintf("disable access from %d to %d", from, to), driver.ErrInvalid)
	})
}

// plainOn allocates plain memory on a device. The caller frees it with free.
func (c *check) plainOn(dev int, n uint64) (p driver.Ptr, free func()) {
	c.Helper()
	i := as[driver.Allocator](c, c.dev(dev))
	p = valueOf(i.AllocPlain(n)).optional(c, "Plain")
	return p, func() { c.must(i.FreePlain(p), "free plain memory of device %d", dev) }
}

func peerPlain(c *check) {
	n := c.gran + 3
	first, freeFirst := c.plainOn(0, n)
	defer freeFirst()
	second, freeSecond := c.plainOn(1, n)
	defer freeSecond()
	p := [2]driver.Ptr{first, second}
	seed := byte(0)
	copies := func(when string) {
		c.Helper()
		for by := range p {
			for from := range p {
				seed++
				want := pattern(n, seed)
				c.must(c.dev(from).CopyIn(p[from], want), "write on device %d", from)
				d, to := c.dev(by), 1-from
				c.must(d.Copy(p[to], p[from], n, d.CopyStream()), "%s, copy from %d to %d by %d", when, from, to, by)
				c.must(d.SyncStream(d.CopyStream()), "sync")
				c.holds(c.dev(to), p[to], want, "%s, a copy from %d to %d by %d", when, from, to, by)
			}
		}
	}
	// Access never decides whether copies of plain memory work, in any state of it.
	copies("before")
	one := c.enable(0, 1)
	copies("with one direction enabled")
	other := c.enable(1, 0)
	copies("with both enabled")
	c.must(one.DisablePeer(1), "disable")
	copies("with the other direction enabled")
	c.must(other.DisablePeer(0), "disable the other direction")
	copies("after")
}

func peerPlainOnly(c *check, owner, peer driver.Device) {
	p, _ := c.chunks(1)
	c.write(owner, p, c.gran, 1)
	q, _ := c.chunkOn(1)
	c.write(peer, q, c.gran, 2)
	refused := func(when string) {
		c.Helper()
		c.peerRefused(p)
		c.want(peer.Copy(p, q, 64, peer.CopyStream()), when+", copy by the peer into memory without a grant", driver.ErrInvalid)
		c.want(peer.Copy(q, p, 64, peer.CopyStream()), when+", copy by the peer out of memory without a grant", driver.ErrInvalid)
		c.must(peer.Sync(), "sync the peer afterwards")
		c.reads(owner, p, c.gran, 1)
	}
	one, other := c.enable(0, 1), c.enable(1, 0)
	refused("while peers are enabled")
	c.access(p, c.gran, grant(1, driver.AccessReadWrite))
	c.must(peer.Copy(p, q, c.gran, peer.CopyStream()), "copy with a grant")
	c.must(peer.Sync(), "sync the peer")
	c.reads(owner, p, c.gran, 2)
	c.must(other.DisablePeer(0), "disable")
	c.reads(peer, p, c.gran, 2) // the grant is independent of it
	c.access(p, c.gran, grant(1, driver.AccessNone))
	c.write(owner, p, c.gran, 1)
	refused("after the grant was revoked")
	c.must(one.DisablePeer(1), "disable the other direction")
}

func lostPeerDisable(c *check) {
	c.peering(0, 1)
	i, back := c.enable(0, 1), c.enable(1, 0)
	p, _ := c.chunks(1)
	c.lose(c.dev(0), p, func() { c.unmap(p, c.gran) })
	c.want(i.EnablePeer(1), "enable on a lost device", driver.ErrDeviceLost)
	c.want(back.EnablePeer(0), "enable access to a lost device", driver.ErrDeviceLost)
	for _, pair := range [][2]int{{0, 1}, {1, 0}} {
		c.want(errOf(c.d.Peering(pair[0], pair[1])), fmt.Sprintf("ask for the pair %v", pair), driver.ErrDeviceLost)
	}
	c.must(i.DisablePeer(1), "disable on a lost device")
	c.want(i.DisablePeer(1), "disable on it again", driver.ErrInvalid)
	c.must(back.DisablePeer(0), "disable access to a lost device")
	c.want(back.DisablePeer(0), "disable it again", driver.ErrInvalid)
}
