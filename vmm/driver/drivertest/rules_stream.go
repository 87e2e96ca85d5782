package drivertest

import (
	"bytes"
	"errors"
	"runtime"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func streamRules() []Rule {
	gated := []driver.Feature{driver.FeatureStreamMemOps}
	return []Rule{
		{Name: "stream-order", Says: "work of one stream runs in the order in which it was queued", Source: guide, run: onStream(3, streamOrder)},
		{Name: "stream-late", Says: "queued work runs later: after a closed gate nothing has run", Source: guide, needs: gated, run: onStream(1, streamLate)},
		{Name: "stream-apart", Says: "a stream that waits delays no other stream, nor the CopyStream", Source: guide, needs: gated, run: onChunks(2, streamApart)},
		{Name: "stream-sync", Says: "SyncStream waits for all work of the stream", Source: manual, needs: gated, run: onDevice(streamSync)},
		{Name: "stream-done", Says: "StreamDone reports whether a stream has work left, and waits for nothing", Source: manual, needs: gated, run: onChunks(1, streamDone)},
		{Name: "stream-free", Says: "the queued work of a freed stream still runs", Source: manual, needs: gated, run: onChunks(1, streamFree)},
		{Name: "stream-unknown", Says: "freeing a stream twice, the legacy default stream or the CopyStream is ErrInvalid", Source: seam, run: onDevice(streamUnknown)},
		{Name: "copy-stream", Says: "CopyStream is one stream that works like any other", Source: seam, run: onDevice(copyStreamOnly)},
		{Name: "stream-legacy", Says: "stream 0, the legacy default stream, takes work", Source: seam, run: onChunks(1, streamLegacy)},
		{Name: "stream-thread", Says: "stream 2 is the calling thread's; 0 and 1 are one stream, ordered with every thread's stream 2 and with no other", Source: measured, needs: gated, run: onChunks(3, streamThread)},
		{Name: "stream-defaults", Says: "streams 1 and 2 take work and waits, and cannot be freed", Source: seam, run: onChunks(1, streamDefaults)},
		{Name: "stream-concurrent", Says: "copies on many streams from many goroutines do not disturb each other", Source: contract(9), run: streamConcurrent},
		{Name: "sync-all", Says: "Sync and SyncIfActive wait for every stream of the context, whichever Device made it", Source: seam, needs: gated, run: onDevice(syncAll)},
		{Name: "sync-closing", Says: "SyncIfActive is no error when the last Device closes meanwhile: a context that has ended is not active", Source: seam, run: syncClosing},
		{Name: "sync-one-device", Says: "a wait for one device does not wait for another", Source: measured, devices: 2, needs: gated, run: onPair(syncOneDevice)},
	}
}

// fillAll queues a fill of one whole granule.
func (c *check) fillAll(d driver.Device, p driver.Ptr, b byte, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("queue a fill", func() error { return d.Fill(p, uint32(b), 1, c.gran, s) }), "queue a fill")
}

// copyAll queues a copy of one whole granule.
func (c *check) copyAll(d driver.Device, dst, src driver.Ptr, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("queue a copy", func() error { return d.Copy(dst, src, c.gran, s) }), "queue a copy")
}

func (c *check) record(d driver.Device, e driver.Event, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("record", func() error { return d.Record(e, s) }), "record")
}

// waitFor makes a stream wait for an event.
func (c *check) waitFor(d driver.Device, s driver.Stream, e driver.Event) {
	c.Helper()
	c.must(c.prompt("make a stream wait", func() error { return d.Wait(s, e) }), "make a stream wait")
}

// sync waits for a stream.
func (c *check) sync(d driver.Device, s driver.Stream) {
	c.Helper()
	c.must(c.returns("sync a stream", func() error { return d.SyncStream(s) }), "sync a stream")
}

// done checks whether an event is reached.
func (c *check) done(d driver.Device, e driver.Event, want bool) {
	c.Helper()
	got := prompted(c, "ask for an event", func() (bool, error) { return d.Done(e) }).must(c, "ask for an event")
	equal(c, got, want, "the event is done")
}

func streamOrder(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	for i := range 20 {
		c.fillAll(d, p, byte(i), s)
		c.copyAll(d, c.chunk(p, 1), p, s)
		c.fillAll(d, p, 0xff, s)
		c.copyAll(d, c.chunk(p, 2), c.chunk(p, 1), s)
		c.sync(d, s)
		c.reads(d, c.chunk(p, 2), c.gran, byte(i))
	}
}

func streamLate(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	e := c.event(d, 0)
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	c.record(d, e, s)
	c.done(d, e, false)
	c.reads(d, p, c.gran, 0)
	c.done(d, e, false)
	c.openAndSync(g, d, s)
	c.done(d, e, true)
	c.reads(d, p, c.gran, 1)
}

func streamApart(c *check, d driver.Device, p driver.Ptr) {
	slow, fast := c.stream(d), c.stream(d)
	c.hold(d, slow)
	c.fillAll(d, p, 1, slow)
	c.fillAll(d, c.chunk(p, 1), 2, fast)
	c.sync(d, fast)
	c.sync(d, d.CopyStream())
	c.reads(d, c.chunk(p, 1), c.gran, 2)
	c.write(d, c.chunk(p, 1), c.gran, 3)
	c.reads(d, p, c.gran, 0)
}

// waits checks that wait returns only when a stream has done its work.
func (c *check) waits(doing string, d driver.Device, wait func(driver.Stream, driver.Event) error) {
	c.Helper()
	s := c.stream(d)
	e := c.event(d, 0)
	p, _ := c.chunks(1)
	g := c.hold(d, s)
	c.fillAll(d, p, 9, s)
	c.record(d, e, s)
	c.staysBehind(g, doing, func() error { return wait(s, e) })
	c.done(d, e, true)
	c.reads(d, p, c.gran, 9)
}

func streamSync(c *check, d driver.Device) {
	c.waits("sync a stream", d, func(s driver.Stream, _ driver.Event) error { return d.SyncStream(s) })
}

func streamDone(c *check, d driver.Device, p driver.Ptr) {
	s, other := c.stream(d), c.stream(d)
	is := func(s driver.Stream, want bool) {
		c.Helper()
		got := prompted(c, "ask for a stream", func() (bool, error) { return d.StreamDone(s) }).must(c, "ask for a stream")
		equal(c, got, want, "the stream is done")
	}
	is(s, true)
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	is(s, false)
	is(other, true)
	is(0, true)
	c.openAndSync(g, d, s)
	is(s, true)
}

func syncAll(c *check, d driver.Device) {
	c.waits("sync the device", d, func(driver.Stream, driver.Event) error { return d.Sync() })
	c.waits("sync by ordinal", d, func(driver.Stream, driver.Event) error { return c.d.SyncIfActive(0) })
	other := c.openDevice(0)
	defer func() { c.must(other.Close(), "close it") }()
	c.waits("sync through another Device", d, func(driver.Stream, driver.Event) error { return other.Sync() })
}

// syncClosing cannot order the two calls with a gate, whose word is freed with the
// last Device. Enough work and enough rounds make them meet.
func syncClosing(c *check) {
	const rounds, fills = 20, 20
	p, _ := c.chunks(1)
	for range rounds {
		d := c.openDevice(0)
		for range fills {
			c.fillAll(d, p, 1, d.CopyStream())
		}
		synced := make(chan error, 1)
		go func() { synced <- c.d.SyncIfActive(0) }()
		runtime.Gosched()
		c.must(c.returns("close", d.Close), "close")
		c.must(c.returns("sync", func() error { return <-synced }), "sync a device that closes")
	}
}

func syncOneDevice(c *check, mine, theirs driver.Device) {
	s := c.stream(theirs)
	e := c.event(theirs, 0)
	c.hold(theirs, s)
	c.record(theirs, e, s)
	c.must(c.returns("sync device 0", mine.Sync), "sync device 0")
	c.must(c.returns("sync device 0", func() error { return c.d.SyncIfActive(0) }), "sync device 0 by ordinal")
	c.done(theirs, e, false)
}

func streamFree(c *check, d driver.Device, p driver.Ptr) {
	s := c.newStream(d)
	e := c.event(d, 0)
	g := c.hold(d, s)
	c.fillAll(d, p, 4, s)
	c.record(d, e, s)
	c.must(c.prompt("free the stream", func() error { return d.FreeStream(s) }), "free the stream")
	c.done(d, e, false)
	g.open()
	c.must(c.returns("sync the event", func() error { return d.SyncEvent(e) }), "sync the event")
	c.reads(d, p, c.gran, 4)
}

func streamUnknown(c *check, d driver.Device) {
	s := c.newStream(d)
	c.must(d.FreeStream(s), "free it")
	c.want(d.FreeStream(s), "free it again", driver.ErrInvalid)
	c.want(d.FreeStream(0), "free the legacy default stream", driver.ErrInvalid)
	c.want(d.FreeStream(d.CopyStream()), "free the library's own stream", driver.ErrInvalid)
	c.sync(d, d.CopyStream())
}

func copyStreamOnly(c *check, d driver.Device) {
	own := d.CopyStream()
	if own == 0 || own != d.CopyStream() {
		c.Fatalf("own stream is %d, then %d", own, d.CopyStream())
	}
	if s := c.stream(d); s == own {
		c.Errorf("a new stream is the library's own, %d", s)
	}
	p, _ := c.chunks(1)
	c.fillAll(d, p, 1, own)
	c.sync(d, own)
	c.reads(d, p, c.gran, 1)
}

func streamLegacy(c *check, d driver.Device, p driver.Ptr) {
	c.fillAll(d, p, 1, 0)
	c.sync(d, 0)
	c.reads(d, p, c.gran, 1)
}

func streamConcurrent(c *check) {
	const goroutines, rounds = 6, 10
	d := c.dev(0)
	p, _ := c.chunks(2 * goroutines)
	streams := make([]driver.Stream, goroutines)
	for i := range streams {
		streams[i] = c.stream(d)
	}
	// Each goroutine has chunks, a stream and a pattern of its own.
	work := func(i, round int) error {
		a, b := c.chunk(p, 2*i), c.chunk(p, 2*i+1)
		want := pattern(c.gran, byte(i*rounds+round))
		got := make([]byte, c.gran)
		err := errors.Join(d.CopyIn(a, want), d.Copy(b, a, c.gran, streams[i]), d.SyncStream(streams[i]), d.CopyOut(got, b))
		if err == nil && !bytes.Equal(got, want) {
			err = errors.New("read other bytes than it wrote")
		}
		return err
	}
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for round := range rounds {
				if err := work(i, round); err != nil {
					c.Errorf("goroutine %d round %d: %v", i, round, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
