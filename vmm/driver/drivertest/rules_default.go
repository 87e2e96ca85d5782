package drivertest

import (
	"runtime"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// The default streams of other libraries, by CUDA's numbers. Stream 0 is legacy.
const (
	legacy    driver.Stream = 1
	perThread driver.Stream = 2
)

// thread is a thread of its own. It runs one function at a time.
type thread struct {
	c    *check
	work chan func()
}

func (c *check) thread() *thread {
	t := &thread{c, make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		for f := range t.work {
			f()
		}
	}()
	c.Cleanup(func() { close(t.work) })
	return t
}

// must runs f on the thread.
func (t *thread) must(doing string, f func() error) {
	t.c.Helper()
	result := make(chan error, 1)
	t.c.must(t.c.returns(doing, func() error {
		t.work <- func() { result <- f() }
		return <-result
	}), "%s", doing)
}

func streamDefaults(c *check, d driver.Device, p driver.Ptr) {
	e := c.event(d, 0)
	t := c.thread()
	for i, s := range []driver.Stream{0, legacy, perThread} {
		t.must("fill", func() error { return d.Fill(p, uint32(i+1), 1, c.gran, s) })
		t.must("record", func() error { return d.Record(e, s) })
		t.must("wait", func() error { return d.Wait(s, e) })
		t.must("sync", func() error { return d.SyncStream(s) })
		c.done(d, e, true)
		c.reads(d, p, c.gran, byte(i+1))
		c.want(d.FreeStream(s), "free a default stream", driver.ErrInvalid)
	}
}

// streamThread holds back the stream of one thread and checks what waits for it.
func streamThread(c *check, d driver.Device, p driver.Ptr) {
	one, two := c.thread(), c.thread()
	aside := c.stream(d)
	var e [6]driver.Event
	for i := range e {
		e[i] = c.event(d, 0)
	}
	at, word := c.pin(d, 4)
	storeWord(word, 0)
	g := &gate{word: word}
	c.held.gates = append(c.held.gates, g)
	one.must("close a gate", func() error { return as[driver.StreamMemOps](c, d).WaitValue(perThread, at, 1, 4) })
	one.must("fill", func() error { return d.Fill(p, 1, 1, c.gran, perThread) })
	one.must("record", func() error { return d.Record(e[0], perThread) })
	two.must("record on another thread", func() error { return d.Record(e[1], perThread) })
	two.must("sync its event", func() error { return d.SyncEvent(e[1]) })
	two.must("sync its stream", func() error { return d.SyncStream(perThread) })
	two.must("copy on the legacy stream", func() error { return d.Copy(c.chunk(p, 1), p, c.gran, 0) })
	two.must("record on 0", func() error { return d.Record(e[2], 0) })
	two.must("record on 1", func() error { return d.Record(e[3], legacy) })
	two.must("copy after the legacy stream", func() error { return d.Copy(c.chunk(p, 2), c.chunk(p, 1), c.gran, perThread) })
	two.must("record after it", func() error { return d.Record(e[4], perThread) })
	two.must("record aside", func() error { return d.Record(e[5], aside) })
	two.must("sync the event aside", func() error { return d.SyncEvent(e[5]) })
	for i, want := range []bool{false, true, false, false, false, true} {
		c.done(d, e[i], want)
	}
	c.reads(d, c.chunk(p, 2), c.gran, 0)
	c.staysBehind(g, "sync the legacy stream", func() error { return d.SyncStream(0) })
	two.must("sync the thread's stream", func() error { return d.SyncStream(perThread) })
	for i := range e {
		c.done(d, e[i], true)
	}
	c.reads(d, c.chunk(p, 2), c.gran, 1)

	// A stream of NewStream delays nothing.
	c.hold(d, aside)
	two.must("record on 0", func() error { return d.Record(e[0], 0) })
	two.must("sync the event", func() error { return d.SyncEvent(e[0]) })
	two.must("sync the legacy stream", func() error { return d.SyncStream(0) })
}
