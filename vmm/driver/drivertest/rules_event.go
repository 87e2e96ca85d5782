package drivertest

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func eventRules() []Rule {
	gated := []driver.Feature{driver.FeatureStreamMemOps}
	return []Rule{
		{Name: "event-fresh", Says: "an event that was never recorded is done, and a wait for it returns at once", Source: manual, run: onDevice(eventFresh)},
		{Name: "event-sync", Says: "SyncEvent waits for the work before the record, spinning or not", Source: manual, needs: gated, run: onDevice(eventSync)},
		{Name: "event-last", Says: "an event stands for its last record", Source: manual, needs: gated, run: onDevice(eventLast)},
		{Name: "event-wait", Says: "a stream that waits for an event runs after the work before it", Source: manual, needs: gated, run: eventWait},
		{Name: "event-wait-then", Says: "a wait is for the record made before it, not for a later one", Source: manual, needs: gated, run: onDevice(eventWaitThen)},
		{Name: "event-across", Says: "a stream of one device can wait for an event of another", Source: manual, devices: 2, needs: gated, run: eventAcross},
		{Name: "event-elapsed", Says: "Elapsed is the time between two events; without EventTiming, or before both are reached, it is ErrInvalid", Source: manual, needs: gated, run: onStream(1, eventElapsed)},
		{Name: "event-flags", Says: "EventTiming with EventInterprocess, and unknown flags, are ErrInvalid", Source: manual, run: onDevice(eventFlags)},
		{Name: "event-unknown", Says: "an event that was freed or never made is ErrInvalid", Source: seam, run: onDevice(eventUnknown)},
		{Name: "event-free", Says: "an event that is recorded and not reached can be freed", Source: manual, needs: gated, run: onChunks(2, eventFree)},
	}
}

func eventFresh(c *check, d driver.Device) {
	e := c.event(d, 0)
	s := c.stream(d)
	c.done(d, e, true)
	c.must(c.returns("sync the event", func() error { return d.SyncEvent(e) }), "sync the event")
	c.waitFor(d, s, e)
	c.sync(d, s)
}

func eventSync(c *check, d driver.Device) {
	c.waits("sync an event", d, func(_ driver.Stream, e driver.Event) error { return d.SyncEvent(e) })
	blocking := c.event(d, driver.EventBlocking)
	c.waits("sync a blocking event", d, func(s driver.Stream, _ driver.Event) error {
		return errors.Join(d.Record(blocking, s), d.SyncEvent(blocking))
	})
}

func eventLast(c *check, d driver.Device) {
	s := c.stream(d)
	e := c.event(d, 0)
	c.record(d, e, s)
	c.sync(d, s)
	c.done(d, e, true)
	g := c.hold(d, s)
	c.record(d, e, s)
	c.done(d, e, false)
	g.open()
	c.must(c.returns("sync the event", func() error { return d.SyncEvent(e) }), "sync the event")
	c.done(d, e, true)
}

// eventOrders makes a stream of device b wait for an event that is recorded after a
// gate in a stream of device a, and checks that b's work comes after it.
func (c *check) eventOrders(a, b int) {
	c.Helper()
	first, second := c.dev(a), c.dev(b)
	s1, s2 := c.stream(first), c.stream(second)
	e, last := c.event(first, 0), c.event(second, 0)
	p, _ := c.chunks(2)
	c.access(p, 2*c.gran, grant(a, driver.AccessReadWrite))
	c.access(p, 2*c.gran, grant(b, driver.AccessReadWrite))
	g := c.hold(first, s1)
	c.fillAll(first, p, 1, s1)
	c.record(first, e, s1)
	c.waitFor(second, s2, e)
	c.copyAll(second, c.chunk(p, 1), p, s2)
	c.record(second, last, s2)
	// All is queued, and the gate is closed: neither stream may be done.
	returned := make(chan error, 1)
	go func() { returned <- second.SyncStream(s2) }()
	c.stays(returned, "sync a stream that waits for an event")
	c.done(second, last, false)
	g.open()
	c.must(c.returns("sync", func() error { return <-returned }), "sync the stream that waits")
	c.done(first, e, true)
	c.reads(first, c.chunk(p, 1), c.gran, 1)
}

func eventWait(c *check) { c.eventOrders(0, 0) }

func eventAcross(c *check) {
	c.eventOrders(0, 1)
	c.eventOrders(1, 0)
}

func eventWaitThen(c *check, d driver.Device) {
	s1, s2 := c.stream(d), c.stream(d)
	e := c.event(d, 0)
	c.record(d, e, s1)
	c.waitFor(d, s2, e)
	c.hold(d, s1)
	c.record(d, e, s1)
	c.sync(d, s2)
	c.done(d, e, false)
}

func eventElapsed(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	from, to := c.event(d, driver.EventTiming), c.event(d, driver.EventTiming)
	untimed := c.event(d, 0)
	c.want(errOf(d.Elapsed(from, to)), "time between events never recorded", driver.ErrInvalid)
	c.record(d, from, s)
	// Recorded and not reached: the gate keeps the second event from being reached.
	g := c.hold(d, s)
	c.fillAll(d, p, 1, s)
	c.record(d, to, s)
	c.record(d, untimed, s)
	err := c.prompt("time events", func() error { return errOf(d.Elapsed(from, to)) })
	c.want(err, "time to an event not yet reached", driver.ErrInvalid)
	c.openAndSync(g, d, s)
	t := valueOf(d.Elapsed(from, to)).must(c, "time between events")
	if t <= 0 {
		c.Errorf("a fill of %d bytes after a gate took %v", c.gran, t)
	}
	equal(c, valueOf(d.Elapsed(from, from)).must(c, "time from an event to itself"), 0, "time from an event to itself")
	c.want(errOf(d.Elapsed(from, untimed)), "time to an event without timing", driver.ErrInvalid)
}

func eventFlags(c *check, d driver.Device) {
	for _, f := range []driver.EventFlags{driver.EventInterprocess | driver.EventTiming, 1 << 7} {
		c.want(errOf(d.NewEvent(f)), "make an event", driver.ErrInvalid)
	}
	c.event(d, driver.EventTiming|driver.EventBlocking)
}

func eventUnknown(c *check, d driver.Device) {
	s := c.stream(d)
	freed := c.newEvent(d, 0)
	c.must(d.FreeEvent(freed), "free it")
	for _, e := range []driver.Event{freed, 0} {
		c.want(d.FreeEvent(e), "free an unknown event", driver.ErrInvalid)
		c.want(d.SyncEvent(e), "sync it", driver.ErrInvalid)
		c.want(d.Record(e, s), "record it", driver.ErrInvalid)
		c.want(d.Wait(s, e), "wait for it", driver.ErrInvalid)
		c.want(errOf(d.Done(e)), "ask for it", driver.ErrInvalid)
		c.want(errOf(d.Elapsed(e, e)), "time it", driver.ErrInvalid)
	}
}

func eventFree(c *check, d driver.Device, p driver.Ptr) {
	s1, s2 := c.stream(d), c.stream(d)
	e := c.newEvent(d, 0)
	g := c.hold(d, s1)
	c.fillAll(d, p, 1, s1)
	c.record(d, e, s1)
	c.waitFor(d, s2, e)
	c.copyAll(d, c.chunk(p, 1), p, s2)
	c.must(c.prompt("free the event", func() error { return d.FreeEvent(e) }), "free the event")
	c.openAndSync(g, d, s2)
	c.reads(d, c.chunk(p, 1), c.gran, 1)
}
