//go:build linux

package host

import (
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// stream is a queue. While it is not empty a goroutine runs what is in it.
type stream struct {
	context   *context
	owner     *device // whose CopyStream it is; nil for others
	thread    int     // whose stream 2 it is; 0 for others
	queue     []*op   // in order; the first may be running
	inline    []*op   // synchronous copies that run in their callers' goroutines
	capture   *capture
	after     []int  // the captured work that its next captured work comes after
	freeCount uint64 // how often memory of pools was freed in it; 0 also once it is removed
	follows   frees  // of other streams

	meetings meetings
}

// work is what an op does. A graph keeps it, and each launch makes ops of it.
type work struct {
	kind    kind
	context *context // of the device that does it
	memory  []span
	two     [2]span             // what memory begins as, so that a copy allocates none
	run     func(*context) bool // returns false if it was cut short; nil: the op's copy
}

// kind is the kind of work, for comparing graphs.
type kind uint8

const (
	waiting kind = iota // for what is queued elsewhere; never captured
	copying
	copyingRows
	copyingPeer
	filling
	writingValue
	waitingValue
	launching
)

func (k kind) String() string {
	return [...]string{"wait", "Copy", "Copy2D", "CopyPeer", "Fill", "WriteValue", "WaitValue", "Launch"}[k]
}

// op is one piece of queued work. Driver.workMu guards the fields that change.
type op struct {
	work
	spans   []span // its memory, as it was when the op was queued
	started bool
	ended   bool
	dropped bool          // it did not run to its end
	err     error         // of a synchronous copy, for its caller
	done    chan struct{} // closed when it ends; made by the first wait
	atEnd   func()        // called under workMu when it ends, whether it has run or not

	dst, src []byte // of a copy without run
	seen     bool   // others than its caller may know it, also once it has ended
}

// spareOps are those of copies that ended in their callers unseen, so that the next allocates none.
var spareOps = sync.Pool{New: func() any { return new(op) }}

func newCopy() *op { return spareOps.Get().(*op) } //nolint:forcetypeassert // it has no others

// do runs the op, and returns false if it was cut short.
func (o *op) do(c *context) bool {
	if o.run == nil {
		return c.move(o.dst, o.src)
	}
	return o.run(c)
}

// span is memory that an op uses, and the access it needs.
type span struct {
	from, to uint64
	need     driver.Access
	open     bool         // beyond to it goes on as far as there is memory
	owner    *deviceState // whose memory it is, and whose access counts; nil: the op's device's counts
}

// use adds n bytes at p to the memory of the work.
func (w *work) use(p driver.Ptr, n uint64, need driver.Access) {
	if n == 0 {
		return
	}
	if w.memory == nil {
		w.memory = w.two[:0]
	}
	w.memory = append(w.memory, span{from: uint64(p), to: uint64(p) + n, need: need})
}

// waitFor is an op that waits for what is queued elsewhere.
func waitFor(reached ...<-chan struct{}) *op {
	return &op{work: work{run: func(c *context) bool {
		for _, ch := range reached {
			select {
			case <-ch:
			case <-c.stopCh:
				return false
			}
		}
		return true
	}}}
}

// stream finds a stream of c. The caller holds workMu.
func (c *context) stream(verb string, s driver.Stream) (*stream, error) {
	if c.stopped() {
		return nil, c.stoppedError(verb)
	}
	x := c.streams[s]
	if x == nil {
		x = c.defaultStream(s)
	}
	if x == nil {
		return nil, refuse(verb, driver.ErrInvalid, "host:%d has no stream %d", c.state.ordinal, s)
	}
	return x, nil
}

// push adds an op to the queue. The caller holds workMu.
func (s *stream) push(o *op) {
	s.context.keepThreadStream(s)
	s.queue = append(s.queue, o)
	if len(s.queue) == 1 {
		s.context.busy[s] = struct{}{}
		go s.drain()
	}
}

// drain runs the queue and ends when it is empty.
func (s *stream) drain() {
	c := s.context
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	// Synchronous copies that run already come first. No new ones start while
	// something is queued.
	for len(s.inline) > 0 {
		s.inline[0].wait(c.d)
	}
	for len(s.queue) > 0 {
		o := s.queue[0]
		if o.started = !c.stopped(); o.started {
			c.d.workMu.Unlock()
			whole := o.do(c)
			c.d.workMu.Lock()
			o.dropped = !whole
		} else {
			o.dropped = true
		}
		o.end()
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
	s.queue = nil
	s.dropIfIdle()
}

// dropIfIdle removes a stream without work from the busy ones.
func (s *stream) dropIfIdle() {
	if len(s.queue) == 0 && len(s.inline) == 0 {
		delete(s.context.busy, s)
		s.context.dropThreadStream(s)
	}
}

func (o *op) end() {
	o.ended = true
	if o.done != nil {
		close(o.done)
	}
	if o.atEnd != nil {
		o.atEnd()
	}
}

// pending is a channel that is closed when the op ends, or nil if it has ended.
func (o *op) pending() <-chan struct{} {
	if o.ended {
		return nil
	}
	if o.done == nil {
		o.done = make(chan struct{})
	}
	return o.done
}

// wait releases workMu until the op has ended.
func (o *op) wait(d *Driver) {
	if done := o.pending(); done != nil {
		d.workMu.Unlock()
		<-done
		d.workMu.Lock()
	}
}

// lastOps is the ops after whose end all work that s has now has ended.
func (s *stream) lastOps() []*op {
	if n := len(s.queue); n > 0 {
		return s.queue[n-1:]
	}
	for _, o := range s.inline {
		o.seen = true
	}
	return s.inline
}

// NewStream makes a stream.
func (v *device) NewStream() (driver.Stream, error) {
	var s driver.Stream
	err := v.onContext("NewStream", func(c *context) error {
		s = c.newStream(nil)
		return nil
	})
	return s, err
}

func (c *context) newStream(owner *device) driver.Stream {
	c.d.lastID++
	s := driver.Stream(c.d.lastID)
	c.streams[s] = &stream{context: c, owner: owner}
	return s
}

// FreeStream removes a stream; its queued work still runs.
func (v *device) FreeStream(s driver.Stream) error {
	const verb = "FreeStream"
	if v.closed.Load() {
		return v.closedError(verb)
	}
	end := v.looks(verb, s)
	defer end()
	c := v.context
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	x := c.streams[s]
	if x == nil || x.owner != nil {
		return refuse(verb, driver.ErrInvalid, "host:%d has no stream %d to free", c.state.ordinal, s)
	}
	c.removeStream(s)
	return nil
}

// removeStream removes a stream and ends its capture.
func (c *context) removeStream(s driver.Stream) {
	if x := c.streams[s]; x.capture != nil {
		x.capture.removeStream(x)
	}
	c.streams[s].forgetFrees()
	delete(c.streams, s)
}

// SyncStream waits for the work that the stream has now.
func (v *device) SyncStream(s driver.Stream) error {
	const verb = "SyncStream"
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	if err := v.syncStream(verb, s); err != nil {
		return err
	}
	v.context.d.afterWait(v.context.state)
	return nil
}

func (v *device) syncStream(verb string, s driver.Stream) error {
	c := v.context
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	x, err := c.stream(verb, s)
	if err != nil {
		return err
	}
	if x.capture != nil {
		return x.capture.destroy(verb)
	}
	if err := x.checkWork(verb); err != nil {
		return err
	}
	// The legacy stream waits for all threads' streams, so that wait is queued first.
	if x == c.legacy {
		x.orderDefaults()
	}
	return c.wait(verb, x.lastOps())
}

// Priorities is 0 for both: no stream is more urgent than another here.
func (v *device) Priorities() (least, greatest int, err error) {
	return 0, 0, v.checkOpen("Priorities")
}

// NewStreamPriority is NewStream.
func (v *device) NewStreamPriority(int) (driver.Stream, error) { return v.NewStream() }
