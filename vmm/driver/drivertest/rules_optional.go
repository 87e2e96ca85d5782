package drivertest

import (
	"bytes"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func optionalRules() []Rule {
	return []Rule{
		{Name: "host-bytes", Says: "HostBytes shows what a device copies, over several mappings, and refuses what is not mapped", Source: seam, run: onChunks(3, hostBytes)},
		{Name: "pinned", Says: "pinned memory has the same bytes as a slice and as an address, from every device", Source: manual, run: onDevice(pinned)},
		{Name: "pinned-bounds", Says: "pinned memory of 0 bytes is ErrInvalid, and so are a copy past its end and a second free", Source: manual, run: onChunks(1, pinnedBounds)},
		{Name: "plain", Says: "plain memory can be written, read, and freed once", Source: manual, run: onInterface(plain)},
		{Name: "plain-async", Says: "stream-ordered memory is usable in its stream and freed once", Source: manual, run: onInterface(plainAsync)},
		{Name: "value-wait", Says: "streams write words of 4 and 8 bytes, and do not wait for a value that is already there", Source: manual, needs: []driver.Feature{driver.FeatureStreamMemOps}, run: onStream(1, valueWait)},
	}
}

func hostBytes(c *check, d driver.Device, p driver.Ptr) {
	b := valueOf(c.d.HostBytes(p, 3*c.gran)).optional(c, "HostViewer")
	if uint64(len(b)) != 3*c.gran {
		c.Fatalf("%d bytes seen of %d", len(b), 3*c.gran)
	}
	want := pattern(3*c.gran, 1)
	c.must(d.CopyIn(p, want), "write through the device")
	if !bytes.Equal(b, want) {
		c.Error("the host does not see what the device wrote")
	}
	// The other direction.
	for i := range b {
		b[i] ^= 0xff
		want[i] ^= 0xff
	}
	c.holds(d, p, want, "what the host wrote, through the device")
	if tail, err := c.d.HostBytes(c.chunk(p, 3)-5, 5); err != nil || !bytes.Equal(tail, want[len(want)-5:]) {
		c.Errorf("the last five bytes are %v (%v)", tail, err)
	}
	// With a hole in the middle, and at both ends of the range.
	c.unmap(c.chunk(p, 1), c.gran)
	hole := c.chunk(p, 1)
	if b, err := c.d.HostBytes(hole, 0); err != nil || fmt.Sprintf("%p", b) != fmt.Sprintf("%#x", uint64(hole)) {
		c.Errorf("no bytes at %v are at %p (%v)", hole, b, err)
	}
	for _, bad := range []struct {
		p driver.Ptr
		n uint64
	}{
		{hole, 1}, {p, c.gran + 1}, {p, 3 * c.gran}, {c.chunk(p, 2), c.gran + 1},
		{p, 1 << 63}, {p, 1<<64 - 1}, {0, 1}, {1<<64 - 1, 2},
	} {
		c.want(errOf(c.d.HostBytes(bad.p, bad.n)), fmt.Sprintf("see %d bytes at %v", bad.n, bad.p), driver.ErrInvalid)
	}
}

func pinned(c *check, d driver.Device) {
	host, b := c.pin(d, 2*4096+10)
	if len(b) != 2*4096+10 {
		c.Fatalf("%d bytes pinned of %d", len(b), 2*4096+10)
	}
	n := uint64(len(b))
	p, _ := c.chunks(3) // enough with any granularity
	want := pattern(n, 3)
	copy(b, want)
	c.must(d.Copy(p, host, n, d.CopyStream()), "copy from pinned memory")
	c.must(d.SyncStream(d.CopyStream()), "sync")
	clear(b)
	c.must(d.Copy(host, p, n, d.CopyStream()), "copy to pinned memory")
	c.must(d.SyncStream(d.CopyStream()), "sync")
	if !bytes.Equal(b, want) {
		c.Error("pinned memory came back different")
	}
	// Memory that one device allocated is pinned for all of them.
	for i := range c.info[1:] {
		q := c.reserve(3 * c.gran)
		other := c.dev(i + 1)
		c.mapHandle(q, 3*c.gran, c.createAs(3*c.gran, private(i+1)))
		c.access(q, 3*c.gran, grant(i+1, driver.AccessReadWrite))
		c.must(other.Copy(q, host, n, other.CopyStream()), "copy on device %d from memory pinned by device 0", i+1)
		c.must(other.Sync(), "sync")
	}
}

func pinnedBounds(c *check, d driver.Device, p driver.Ptr) {
	host, _ := c.pin(d, 4096)
	pinner := as[driver.HostAllocator](c, d)
	_, _, err := pinner.AllocHost(0)
	c.want(err, "pin nothing", driver.ErrInvalid)
	_, _, err = pinner.AllocHost(1 << 62)
	c.want(err, "pin 2^62 bytes", driver.ErrOutOfMemory, driver.ErrInvalid)
	c.want(d.Copy(p, host-1, 16, d.CopyStream()), "copy from before pinned memory", driver.ErrInvalid)

	again, _, err := pinner.AllocHost(4096)
	c.must(err, "pin")
	c.want(pinner.FreeHost(again+1), "free inside", driver.ErrInvalid)
	c.must(pinner.FreeHost(again), "free")
	c.want(pinner.FreeHost(again), "free again", driver.ErrInvalid)
	c.want(pinner.FreeHost(p), "free what is not pinned", driver.ErrInvalid)
}

func plain(c *check, d driver.Device, i driver.Allocator) {
	p := valueOf(i.AllocPlain(c.gran+3)).optional(c, "Plain")
	c.write(d, p, c.gran+3, 1)
	c.reads(d, p, c.gran+3, 1)
	q, _ := c.chunks(1)
	c.must(d.Copy(q, p, c.gran, d.CopyStream()), "copy to mapped memory")
	c.must(d.Sync(), "sync")
	c.reads(d, q, c.gran, 1)
	c.want(i.FreePlain(q), "free what is not plain", driver.ErrInvalid)
	c.must(i.FreePlain(p), "free")
	c.want(i.FreePlain(p), "free again", driver.ErrInvalid)
	c.want(errOf(i.AllocPlain(0)), "allocate nothing", driver.ErrInvalid)
	c.want(errOf(i.AllocPlain(1<<50)), "allocate 2^50 bytes", driver.ErrOutOfMemory)
}

func plainAsync(c *check, d driver.Device, i driver.Allocator) {
	s := c.stream(d)
	p := valueOf(i.AllocAsync(4096, s)).optional(c, "AllocAsync")
	c.must(d.Fill(p, 5, 1, 4096, s), "fill it in its stream")
	q, _ := c.chunks(1)
	c.must(d.Copy(q, p, 4096, s), "copy it in its stream")
	c.must(i.FreeAsync(p, s), "free it in its stream")
	c.must(d.SyncStream(s), "sync")
	c.reads(d, q, 4096, 5)
	c.want(i.FreeAsync(p, s), "free again", driver.ErrInvalid)
}

func valueWait(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	w := as[driver.StreamMemOps](c, d)
	c.optional(w.WriteValue(s, p, 0x11223344, 4), "StreamMemOps")
	c.must(w.WaitValue(s, p, 0x11223344, 4), "wait for what is written")
	c.must(w.WaitValue(s, p, 0x11223340, 4), "wait for less than is written")
	c.must(w.WriteValue(s, p+8, 1<<40, 8), "write 8 bytes")
	c.must(w.WaitValue(s, p+8, 1<<40, 8), "wait for 8 bytes")
	// The comparison is of the signed difference, so it works across the sign.
	c.must(w.WriteValue(s, p+16, 1<<31, 4), "write a word past the sign")
	c.must(w.WaitValue(s, p+16, 1<<31-5, 4), "wait across the sign")
	c.must(c.returns("sync", func() error { return d.SyncStream(s) }), "sync")
	c.holds(d, p, []byte{0x44, 0x33, 0x22, 0x11}, "the word")
	c.want(w.WriteValue(s, p, 1, 2), "write a word of 2 bytes", driver.ErrInvalid)
	c.want(w.WriteValue(s, p+2, 1, 4), "write at an odd address", driver.ErrInvalid)
	c.want(w.WaitValue(s, p+12, 1, 8), "wait at an odd address", driver.ErrInvalid)
	c.want(w.WaitValue(s, 0, 1, 4), "wait for a word that is not mapped", driver.ErrInvalid)
	c.must(d.SyncStream(s), "sync afterwards")
}
