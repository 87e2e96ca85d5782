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
	u       *unit
	refs    int
	streams map[driver.Stream]*stream
	busy    map[*stream]struct{} // streams with work, freed ones too
	legacy  *stream              // streams 0 and 1
	threads map[int]*stream      // stream 2 of each thread that has used it and has work or a capture there
	peers   map[int]bool         // enabled for plain memory; see EnablePeer
	over    chan struct{}        // closed when nothing more may run: lost, reset or ended
	reset   atomic.Bool          // see ResetContext
}

// stream is a queue. A goroutine empties it and exists only while there is
// something in it.
type stream struct {
	context *context
	owner   *device // whose CopyStream stream it is; nil for others
	thread  int     // whose stream 2 it is; 0 for others
	queue   []*op   // in order; the first may be running
	inline  []*op   // synchronous copies that run in their callers
	capture *capture
}

// op is one piece of work. What changes in it is guarded by Driver.work.
type op struct {
	spans   [2]span
	run     func(*context) bool // false: it was cut short
	started bool
	ended   bool
	dropped bool          // it did not run to its end
	err     error         // why a synchronous copy failed, for its caller
	done    chan struct{} // closed when it ends; made for the first who waits
}

// span is memory that an op uses, and the access it needs.
type span struct {
	from, to uint64
	need     driver.Access
}

func newContext(d *Driver, u *unit) *context {
	c := &context{
		d: d, u: u,
		streams: make(map[driver.Stream]*stream),
		busy:    make(map[*stream]struct{}),
		peers:   make(map[int]bool),
		threads: make(map[int]*stream),
		over:    make(chan struct{}),
	}
	c.legacy = &stream{context: c}
	return c
}

// stopped says whether the context is over.
func (c *context) stopped() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// stop lets nothing more start and cuts short what runs. The caller holds work.
func (c *context) stop() {
	if !c.stopped() {
		close(c.over)
	}
}

// gone is why a call finds the context over.
func (c *context) gone(verb string) error {
	if c.d.lost.Load() {
		return c.u.isLost(verb)
	}
	if c.reset.Load() {
		return c.wasReset(verb)
	}
	return rule(verb, driver.ErrClosed, "host:%d", c.u.ordinal)
}

// queue adds an op to a stream, or throws it away if the stream is being
// captured. The caller holds mem at least shared where the op uses memory.
func (c *context) queue(verb string, s driver.Stream, o *op) error {
	c.d.work.Lock()
	defer c.d.work.Unlock()
	x, err := c.stream(verb, s)
	if err != nil {
		return err
	}
	if x.capture != nil {
		return x.capture.add(verb)
	}
	if err := x.mayWork(verb); err != nil {
		return err
	}
	x.order()
	x.push(o)
	return nil
}

// stream finds a stream of c. The caller holds work.
func (c *context) stream(verb string, s driver.Stream) (*stream, error) {
	if c.stopped() {
		return nil, c.gone(verb)
	}
	x := c.streams[s]
	if x == nil {
		x = c.byDefault(s)
	}
	if x == nil {
		return nil, rule(verb, driver.ErrInvalid, "host:%d has no stream %d", c.u.ordinal, s)
	}
	return x, nil
}

// push adds an op to the queue. The caller holds work.
func (s *stream) push(o *op) {
	s.context.keepThread(s)
	s.queue = append(s.queue, o)
	if len(s.queue) == 1 {
		s.context.busy[s] = struct{}{}
		go s.drain()
	}
}

// drain runs what is queued and ends when nothing is left.
func (s *stream) drain() {
	c := s.context
	c.d.work.Lock()
	defer c.d.work.Unlock()
	// Synchronous copies that were there first go first. No new ones start
	// inline while something is queued.
	for len(s.inline) > 0 {
		s.inline[0].wait(c.d)
	}
	for len(s.queue) > 0 {
		o := s.queue[0]
		if o.started = !c.stopped(); o.started {
			c.d.work.Unlock()
			whole := o.run(c)
			c.d.work.Lock()
			o.dropped = !whole
		} else {
			o.dropped = true
		}
		o.end()
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
	s.queue = nil
	s.rest()
}

// rest takes a stream without work off the busy ones.
func (s *stream) rest() {
	if len(s.queue) == 0 && len(s.inline) == 0 {
		delete(s.context.busy, s)
		s.context.dropThread(s)
	}
}

func (o *op) end() {
	o.ended = true
	if o.done != nil {
		close(o.done)
	}
}

// pending is the channel that is closed when the op has ended, nil if it has.
func (o *op) pending() <-chan struct{} {
	if o.ended {
		return nil
	}
	if o.done == nil {
		o.done = make(chan struct{})
	}
	return o.done
}

// wait lets go of work until the op has ended.
func (o *op) wait(d *Driver) {
	if done := o.pending(); done != nil {
		d.work.Unlock()
		<-done
		d.work.Lock()
	}
}

// last is the ops whose end is the end of all that s has now.
func (s *stream) last() []*op {
	if n := len(s.queue); n > 0 {
		return s.queue[n-1:]
	}
	return s.inline
}

// NewStream makes a stream.
func (v *device) NewStream() (driver.Stream, error) {
	const verb = "NewStream"
	if err := v.enter(verb); err != nil {
		return 0, err
	}
	d := v.context.d
	d.work.Lock()
	defer d.work.Unlock()
	if v.context.stopped() {
		return 0, v.context.gone(verb)
	}
	return v.context.newStream(nil), nil
}

func (c *context) newStream(owner *device) driver.Stream {
	c.d.lastID++
	s := driver.Stream(c.d.lastID)
	c.streams[s] = &stream{context: c, owner: owner}
	return s
}

// FreeStream forgets a stream; what is queued on it runs to its end.
func (v *device) FreeStream(s driver.Stream) error {
	const verb = "FreeStream"
	if v.closed.Load() {
		return v.isClosed(verb)
	}
	c := v.context
	c.d.work.Lock()
	defer c.d.work.Unlock()
	x := c.streams[s]
	if x == nil || x.owner != nil {
		return rule(verb, driver.ErrInvalid, "host:%d has no stream %d to free", c.u.ordinal, s)
	}
	c.forget(s)
	return nil
}

// forget takes a stream's name away. A capture of it ends with that.
func (c *context) forget(s driver.Stream) {
	if x := c.streams[s]; x.capture != nil {
		x.capture.ended = true
	}
	delete(c.streams, s)
}

// SyncStream waits for what is on the stream now.
func (v *device) SyncStream(s driver.Stream) error {
	const verb = "SyncStream"
	if err := v.enter(verb); err != nil {
		return err
	}
	c := v.context
	c.d.work.Lock()
	defer c.d.work.Unlock()
	x, err := c.stream(verb, s)
	if err != nil {
		return err
	}
	if x.capture != nil {
		return x.capture.destroy(verb)
	}
	if err := x.mayWork(verb); err != nil {
		return err
	}
	if x == c.legacy {
		x.order()
	}
	return c.wait(verb, x.last())
}

// wait waits for ops, letting go of work, and says if c was lost by then or
// ended before they ran.
func (c *context) wait(verb string, ops []*op) error {
	dropped := false
	for _, o := range slices.Clone(ops) {
		o.wait(c.d)
		dropped = dropped || o.dropped
	}
	if dropped || c.d.lost.Load() {
		return c.gone(verb)
	}
	return nil
}

// sync waits for all work of a unit's context, if it has one.
func (d *Driver) sync(verb string, u *unit) error {
	d.work.Lock()
	defer d.work.Unlock()
	c := u.context
	if c == nil {
		return nil
	}
	if err := c.destroyCaptures(verb, true); err != nil {
		return err
	}
	return c.wait(verb, c.work())
}

// work is the ops whose end is the end of all that the context has now.
func (c *context) work() []*op {
	var ops []*op
	for s := range c.busy {
		ops = append(ops, s.last()...)
	}
	return ops
}
