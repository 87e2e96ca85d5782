package drivertest

import (
	"bytes"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func peerRules() []Rule {
	return []Rule{
		{Name: "peer-grant", Says: "a peer without a grant is refused harmlessly; with one it reads and writes", Source: seam, devices: 2, run: onPair(peerGrant)},
		{Name: "peer-new-mapping", Says: "a new mapping starts without access for peers too, also that of a kept handle", Source: measured, devices: 2, run: peerNewMapping},
		{Name: "peer-others-keep", Says: "a grant or a revocation changes no other device's access", Source: seam, devices: 2, run: peerOthersKeep},
		{Name: "peer-read-only", Says: "a peer may have read-only access", Source: seam, devices: 2, needs: []driver.Feature{driver.FeatureReadOnlyMap}, run: onPair(peerReadOnly)},
		{Name: "peer-alone", Says: "memory need not be accessible to the device it lives on", Source: guide, devices: 2, run: peerAlone},
	}
}

func peerGrant(c *check, owner, peer driver.Device) {
	p, _ := c.chunks(2)
	c.write(owner, p, 2*c.gran, 1)
	c.peerRefused(p)
	c.access(p, 2*c.gran, grant(1, driver.AccessReadWrite))
	c.has(p, 1, driver.AccessReadWrite)
	c.reads(peer, p, 2*c.gran, 1)
	c.write(peer, c.chunk(p, 1), c.gran, 2)
	c.reads(owner, c.chunk(p, 1), c.gran, 2)
	c.must(peer.Copy(p, c.chunk(p, 1), c.gran, peer.CopyStream()), "copy on the peer")
	c.must(peer.Sync(), "sync the peer")
	c.reads(owner, p, c.gran, 2)
}

// peerRefused checks that all work of device 1 at p is refused harmlessly.
func (c *check) peerRefused(p driver.Ptr) {
	c.Helper()
	peer := c.dev(1)
	c.has(p, 1, driver.AccessNone)
	buf := make([]byte, 64)
	c.want(peer.CopyOut(buf, p), "read by a peer without a grant", driver.ErrInvalid)
	c.want(peer.CopyIn(p, buf), "write by a peer without a grant", driver.ErrInvalid)
	c.want(peer.Fill(p, 1, 1, 64, peer.CopyStream()), "fill by a peer without a grant", driver.ErrInvalid)
	c.must(peer.Sync(), "sync the peer afterwards")
}

func peerNewMapping(c *check) {
	both := []driver.Grant{grant(0, driver.AccessReadWrite), grant(1, driver.AccessReadWrite)}
	p, hs := c.chunks(1)
	q := c.reserve(2 * c.gran)
	c.access(p, c.gran, both...)
	c.unmap(p, c.gran)
	c.mapHandle(q, c.gran, hs[0])
	c.peerRefused(q)
	c.access(q, c.gran, both...)
	c.reads(c.dev(1), q, c.gran, 0)
	c.mapHandle(c.chunk(q, 1), c.gran, c.create(c.gran))
	c.peerRefused(c.chunk(q, 1))
}

func peerOthersKeep(c *check) {
	owner := c.dev(0)
	p, _ := c.chunks(1)
	c.write(owner, p, c.gran, 1)
	c.access(p, c.gran, grant(1, driver.AccessReadWrite))
	c.has(p, 0, driver.AccessReadWrite)
	c.access(p, c.gran, grant(1, driver.AccessNone))
	c.peerRefused(p)
	c.reads(owner, p, c.gran, 1)
	c.access(p, c.gran, grant(1, driver.AccessReadWrite))
	c.access(p, c.gran, grant(0, driver.AccessNone))
	c.has(p, 1, driver.AccessReadWrite)
	c.reads(c.dev(1), p, c.gran, 1)
	c.noAccess(owner, p)
}

func peerReadOnly(c *check, owner, peer driver.Device) {
	p, _ := c.chunks(1)
	c.access(p, c.gran, grant(1, driver.AccessRead))
	c.write(owner, p, c.gran, 1)
	c.reads(peer, p, c.gran, 1)
	c.refusesWrites(peer, p)
	c.write(owner, p, c.gran, 2)
	c.reads(peer, p, c.gran, 2)
}

func peerAlone(c *check) {
	p := c.mapped(c.createAs(c.gran, private(1)), driver.AccessReadWrite)
	c.peerRefused(p)
	want := bytes.Repeat([]byte{1, 2, 3, 4}, 16)
	c.must(c.dev(0).CopyIn(p, want), "write to the other device's memory")
	c.holds(c.dev(0), p, want, "the other device's memory")
}
