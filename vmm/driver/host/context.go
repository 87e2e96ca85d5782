//go:build linux

package host

import (
	"slices"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// context is what the open Devices of one ordinal share, as a primary context
// is: streams, events, plain and pinned memory. It ends with the last Device.
type context struct {
	d       *Driver
	state   *deviceState
	refs    int
	streams map[driver.Stream]*stream
	busy    map[*stream]struct{} // streams with work; freed ones too
	legacy  *stream              // streams 0 and 1
	threads map[int]*stream      // by thread: its stream 2, while that has work or a capture
	peers   map[int]bool         // enabled for plain memory; see EnablePeer
	stopCh  chan struct{}        // closed when nothing may run any more: lost, reset or ended
	reset   atomic.Bool          // see ResetContext

	meetings meetings    // of calls for all of it
	captured atomic.Bool // a stream of it was, once; only with -tags invariants

	modules   map[driver.Module]*module
	functions map[driver.Function]*function
	graphs    map[driver.Graph][]node
	execs     map[driver.GraphExec]*graphExec

	plain  *sparse                      // of its plain memory; nil before the first; guarded by Driver.memMu
	opened map[driver.IPCHandle]*region // by OpenMem; guarded by Driver.memMu

	byDefault, current *pool // nil: not made, and the default one; guarded by Driver.memMu
}

func newContext(d *Driver, u *deviceState) *context {
	c := &context{
		d: d, state: u,
		streams: make(map[driver.Stream]*stream),
		busy:    make(map[*stream]struct{}),
		peers:   make(map[int]bool),
		opened:  make(map[driver.IPCHandle]*region),
		threads: make(map[int]*stream),

		modules:   make(map[driver.Module]*module),
		functions: make(map[driver.Function]*function),
		graphs:    make(map[driver.Graph][]node),
		execs:     make(map[driver.GraphExec]*graphExec),

		stopCh: make(chan struct{}),
	}
	c.legacy = &stream{context: c}
	return c
}

// stopped reports whether stop was called.
func (c *context) stopped() bool {
	select {
	case <-c.stopCh:
		return true
	default:
		return false
	}
}

// stop lets nothing start any more and cuts short what runs. The caller holds workMu.
func (c *context) stop() {
	if !c.stopped() {
		close(c.stopCh)
	}
}

// stoppedError is the error of a call that finds the context stopped.
func (c *context) stoppedError(verb string) error {
	if c.d.lost.Load() {
		return c.d.lostError(verb, c.state)
	}
	if c.reset.Load() {
		return c.resetError(verb)
	}
	return refuse(verb, driver.ErrClosed, "host:%d", c.state.ordinal)
}

// queue adds an op to a stream, or its work to the stream's capture. Where the op uses
// memory, the caller holds memMu at least for reading.
func (c *context) queue(verb string, s driver.Stream, o *op) error {
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	x, err := c.stream(verb, s)
	if err != nil {
		return err
	}
	if x.capture != nil {
		return x.captureWork(verb, o.work)
	}
	if err := x.checkWork(verb); err != nil {
		return err
	}
	x.orderDefaults()
	x.push(o)
	return nil
}

// wait waits for ops and releases workMu meanwhile. It returns an error if the
// devices are lost by then, or if the context stopped before the ops ran.
func (c *context) wait(verb string, ops []*op) error {
	dropped := false
	for _, o := range slices.Clone(ops) {
		o.wait(c.d)
		dropped = dropped || o.dropped
	}
	if dropped || c.d.lost.Load() {
		return c.stoppedError(verb)
	}
	return nil
}

// sync waits for all work of a device's context, if it has one.
func (d *Driver) sync(verb string, u *deviceState) error {
	d.workMu.Lock()
	c := u.context
	d.workMu.Unlock()
	if c != nil {
		end := c.looksAt(verb, &c.meetings)
		defer end()
	}
	if err := d.waitForAll(verb, u); err != nil {
		return err
	}
	d.afterWait(u)
	return nil
}

func (d *Driver) waitForAll(verb string, u *deviceState) error {
	d.workMu.Lock()
	defer d.workMu.Unlock()
	c := u.context
	if c == nil {
		return nil
	}
	if err := c.destroyCaptures(verb); err != nil {
		return err
	}
	return c.wait(verb, c.pendingOps())
}

// pendingOps is the last ops of every stream: when they have ended, so has all work
// that the context has now.
func (c *context) pendingOps() []*op {
	var ops []*op
	for s := range c.busy {
		ops = append(ops, s.lastOps()...)
	}
	return ops
}
