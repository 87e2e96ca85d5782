package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
)

// captured is what the work of a capture, or of the graph made of it, uses.
type captured struct {
	memory      used[capturedSpan]
	allocations used[*allocation]
	modules     used[*Module]
	around      []func(*Stream) (func(), error) // of OnGraphLaunch
}

// used is what work uses, each once, in the order of the first use.
type used[T comparable] struct {
	all  []T
	seen map[T]struct{} // those in all, as long as more come
}

func (u *used[T]) add(x T) {
	if _, seen := u.seen[x]; seen {
		return
	}
	if u.seen == nil {
		u.seen = map[T]struct{}{}
	}
	u.seen[x] = struct{}{}
	u.all = append(u.all, x)
}

// loaded is nil while the modules are open.
func (c *captured) loaded() error {
	if slices.ContainsFunc(c.modules.all, func(m *Module) bool { return m.closed.Load() }) {
		return errModuleClosed
	}
	return nil
}

// capturedSpan is memory in a reservation that captured work uses.
type capturedSpan struct {
	r    *Reservation
	span Span
}

// BeginCapture begins to capture the stream into a graph: work that is queued on it from now on does not
// run, but becomes part of the graph that EndCapture returns. A stream that waits for an event of the
// capture joins it; this stream must wait for that one before the end. Only streams of the same device
// can do work in it. The mode is CUDA's relaxed one, the only one that does not bind a capture to a
// thread: goroutines change threads.
//
// Meanwhile copies between pageable host memory and the device return ErrCapturing, and so do calls that
// would have to wait for the stream. Growth goes on. BeginCapture returns ErrBusy while the stream is
// held (Hold).
func (s *Stream) BeginCapture() error {
	return s.wrap("begin capture", 0, 0, s.withAlone(func(o *openDevice) error {
		err := o.EndLeft(&s.order)
		if err == nil {
			if !s.order.Began() {
				s.uses = captured{} // of a capture that has ended without EndCapture
			}
			err = o.Begin(&s.order)
		}
		return busyIfHeld(err)
	}))
}

// busyIfHeld is the error of this package for one of package order.
func busyIfHeld(err error) error {
	if errors.Is(err, order.ErrHeld) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// ofCapture calls f with the stream on which BeginCapture has begun the capture with that number,
// whose uses f can change; false if there is none, as of another library's capture. f locks nothing.
func (s *driverState) ofCapture(id uint64, f func(origin *Stream)) bool {
	return id != 0 && s.world.Any(func(of uint64, owner any) bool {
		if of != id {
			return false
		}
		origin, _ := owner.(*Stream)
		f(origin)
		return true
	})
}

// remember notes what work uses that is about to be queued on the stream, if the stream is
// being captured by BeginCapture.
func (s *Stream) remember(o *openDevice, m *Module, spans ...Span) error {
	if !s.dev.state.parent.world.Capturing() {
		return nil
	}
	id, err := o.CaptureID(&s.order)
	if err != nil || id == 0 {
		return err
	}
	// The reservations first: finding them takes process.mu, which comes before World.mu.
	uses := make([]capturedSpan, 0, len(spans))
	var others []*allocation
	for _, x := range spans {
		if r := s.dev.state.parent.find(x.Addr); r != nil {
			uses = append(uses, capturedSpan{r, x})
		} else if a := s.dev.state.parent.allocations.find(x.Addr); a != nil {
			others = append(others, a)
		}
	}
	s.dev.state.parent.ofCapture(id, func(origin *Stream) {
		// A wait for a device covers the graphs that run on its streams, and no others.
		if on := origin.dev.state; on != s.dev.state {
			err = fmt.Errorf("%w: the capture is of device %d, and takes no work of another one", ErrInvalid, on.n)
			return
		}
		c := &origin.uses
		for _, u := range uses {
			c.memory.add(u)
		}
		for _, a := range others {
			c.allocations.add(a)
		}
		if m != nil {
			c.modules.add(m)
		}
	})
	return err
}

// onGraphLaunch is door.VMM.OnGraphLaunch.
func (s *Stream) onGraphLaunch(f func(on *Stream) (launched func(), err error)) error {
	return s.wrap("watch graph", 0, 0, s.with(func(o *openDevice) error {
		id, err := o.CaptureID(&s.order)
		if err != nil {
			return err
		}
		if !s.dev.state.parent.ofCapture(id, func(origin *Stream) { origin.uses.around = append(origin.uses.around, f) }) {
			return fmt.Errorf("%w: BeginCapture has begun no capture of the stream", ErrInvalid)
		}
		return nil
	}))
}

// EndCapture ends the capture that BeginCapture began on this stream, and returns the graph of its work.
// It returns ErrInvalid, and the capture has ended, if a wait has destroyed the capture or a stream that
// joined it was not waited for. It returns ErrBusy, and the capture goes on, while the stream or one that
// has joined it is held (Hold). The caller must Close the Graph.
func (s *Stream) EndCapture() (*Graph, error) {
	var graph *Graph
	err := s.withAlone(func(o *openDevice) (err error) {
		graph, err = s.endCapture(o)
		return err
	})
	return graph, s.wrap("end capture", 0, 0, err)
}

func (s *Stream) endCapture(o *openDevice) (graph *Graph, err error) {
	if !s.order.Began() {
		return nil, fmt.Errorf("%w: BeginCapture has not begun a capture on this stream", ErrInvalid)
	}
	raw, _ := order.As[graphs](o.Device)
	graph = &Graph{graphHandle[driver.Graph]{dev: s.dev, raw: raw}}
	graph.mu.At(lock.Graph, graphKey)
	if err := s.dev.track(graph, "graph"); err != nil { // first, so that the device does not close meanwhile
		return nil, err
	}
	graph.handle, _, err = o.End(&s.order)
	if err != nil {
		s.dev.untrack(graph)
		return nil, busyIfHeld(err)
	}
	graph.uses, s.uses = s.uses, captured{}
	graph.uses.memory.seen, graph.uses.allocations.seen, graph.uses.modules.seen = nil, nil, nil
	return graph, nil
}

// Graph is work that a stream captured. It remembers which memory of this package's
// reservations the work uses, which memory of the driver's that packages pool and ipc have
// allocated, and which modules. It can be instantiated several times.
// Safe for concurrent use. The caller must Close it.
type Graph struct {
	graphHandle[driver.Graph] // its uses are immutable
}

// graphHandle is what a Graph and a GraphExec are: the driver's graph, and what its work uses.
type graphHandle[H driver.Graph | driver.GraphExec] struct {
	dev *Device
	raw graphs

	mu     lock.Mutex // held across driver calls: CUDA locks no graph itself
	handle H
	uses   captured
	closed bool
}

// The mutex of a Graph comes before that of a GraphExec.
const graphKey, graphExecKey = 0, 1

// close frees it by a call of the driver. thing is the Graph or the GraphExec.
func (h *graphHandle[H]) close(thing any, free func(graphs, H) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	if err := free(h.raw, h.handle); err != nil && !lost(err) {
		return h.dev.wrap("close graph", 0, 0, err)
	}
	h.closed = true
	h.dev.untrack(thing)
	return nil
}

// graphs is what a driver's device does with graphs.
type graphs interface {
	FreeGraph(driver.Graph) error
	Instantiate(driver.Graph) (driver.GraphExec, error)
	FreeGraphExec(driver.GraphExec) error
	UpdateGraphExec(driver.GraphExec, driver.Graph) error
	LaunchGraph(driver.GraphExec, driver.Stream) error
}

// captured reports whether the work of a capture that BeginCapture has begun uses memory of r.
func (r *Reservation) captured() bool {
	return r.dev.state.parent.world.Any(func(_ uint64, owner any) bool {
		origin, _ := owner.(*Stream)
		return slices.ContainsFunc(origin.uses.memory.all, func(x capturedSpan) bool { return x.r == r })
	})
}

// Instantiate makes the graph executable. The caller must Close the GraphExec.
func (g *Graph) Instantiate() (*GraphExec, error) {
	if g == nil || g.dev == nil {
		return nil, (*Device)(nil).wrap("instantiate graph", 0, 0, fmt.Errorf("%w: no graph", ErrInvalid))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	x := &GraphExec{graphHandle: graphHandle[driver.GraphExec]{dev: g.dev, raw: g.raw, uses: g.uses}}
	x.mu.At(lock.Graph, graphExecKey)
	if err := g.uses.loaded(); g.closed || err != nil {
		return nil, g.dev.wrap("instantiate graph", 0, 0, cmp.Or(err, errGraphClosed))
	}
	err := g.dev.track(x, "executable graph")
	if err == nil {
		if x.handle, err = g.raw.Instantiate(g.handle); err != nil {
			g.dev.untrack(x)
		}
	}
	if err != nil {
		return nil, g.dev.wrap("instantiate graph", 0, 0, err)
	}
	return x, nil
}

var errGraphClosed = fmt.Errorf("%w: graph", ErrClosed)

// Close frees the graph. Each GraphExec made from it stays. Twice is fine, and so is a nil Graph. After
// an error it can be called again.
func (g *Graph) Close() error {
	if g == nil || g.dev == nil {
		return nil
	}
	return g.close(g, graphs.FreeGraph)
}

// GraphExec is a Graph that can be launched, again and again; launches run one after the
// other. Safe for concurrent use. The caller must Close it.
type GraphExec struct {
	graphHandle[driver.GraphExec]

	locked []lockedSpan // of the launch under way; kept, to be used again
}

// Launch queues the graph's work on the stream. It checks and keeps memory of this package's reservations
// that the work uses, as Function.Launch does. It queues nothing if some of that memory is not mapped, or
// sleeps, or if UsedBy has named other streams than s. Once the memory is mapped again, at the same
// address, the graph can be launched again. Launch returns ErrClosed for good once a reservation or a
// module was closed, or a block of a pool.DriverPool, memory of package ipc, or a Pinned was freed. Calls
// that free those wait for a launch under way; the program must wait for the work.
//
// While the stream is being captured it returns ErrCapturing. Work that other libraries
// queued while the stream was captured is not known here.
func (x *GraphExec) Launch(s *Stream) error {
	if x == nil || x.dev == nil {
		return s.wrap("launch graph", 0, 0, fmt.Errorf("%w: no graph", ErrInvalid))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	launched, err := x.announce(s)
	defer launched()
	if err != nil {
		return s.wrap("launch graph", 0, 0, err)
	}
	return s.wrap("launch graph", 0, 0, s.with(func(o *openDevice) error {
		switch {
		case x.closed:
			return errGraphClosed
		case o.state != x.dev.state:
			return fmt.Errorf("%w: the graph is of %v, the stream of %v", ErrInvalid, x.dev, s.dev)
		}
		// Captured, this graph would become part of another one, which does not know its memory.
		if err := s.runsWork(o); err != nil {
			return err
		}
		unlock, err := x.lockUses(s)
		if err != nil {
			return err
		}
		defer unlock()
		return x.raw.LaunchGraph(x.handle, s.queued())
	}))
}

// announce calls the functions of onGraphLaunch before a launch on s, and what it returns calls
// what they return. It needs x.mu.
func (x *GraphExec) announce(s *Stream) (launched func(), err error) {
	var all []func()
	for _, around := range x.uses.around {
		f, failed := around(s)
		if err = failed; err != nil {
			break
		}
		all = append(all, f)
	}
	return func() {
		for _, f := range all {
			f()
		}
	}, err
}

// lockUses locks the memory that the graph uses, for a launch on s, whose lock is held.
// After an error nothing is locked. It needs x.mu.
func (x *GraphExec) lockUses(s *Stream) (unlock func(), err error) {
	others := x.uses.allocations.all
	locked := 0 // of them
	unlock = func() {
		unlockAll(x.locked)
		x.locked = x.locked[:0]
		for _, a := range others[:locked] {
			a.unlock()
		}
	}
	if err := x.uses.loaded(); err != nil {
		return nil, err
	}
	for _, u := range x.uses.memory.all {
		span := Span{Addr: u.span.Addr, Size: max(u.span.Size, 1), Access: u.span.Access}
		l, err := s.dev.lockReservation(s, u.r, span)
		if err != nil {
			unlock()
			return nil, fmt.Errorf("memory that the graph uses: %w", err)
		}
		x.locked = append(x.locked, l)
	}
	for _, a := range others {
		if err := a.lock(); err != nil {
			unlock()
			return nil, fmt.Errorf("memory that the graph uses: %w", err)
		}
		locked++
	}
	return unlock, nil
}

// Update gives the executable graph the arguments and addresses of another one, which must have the same
// work in the same order; else Update returns ErrInvalid and changes nothing. Queued launches are not
// affected.
func (x *GraphExec) Update(g *Graph) error {
	const op = "update graph"
	if x == nil || x.dev == nil || g == nil || g.dev == nil {
		return (*Device)(nil).wrap(op, 0, 0, fmt.Errorf("%w: no graph", ErrInvalid))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed || g.closed:
		return x.dev.wrap(op, 0, 0, errGraphClosed)
	case x.dev.state.parent != g.dev.state.parent:
		return x.dev.wrap(op, 0, 0, fmt.Errorf("%w: the graph is of another driver", ErrInvalid))
	}
	err := g.uses.loaded()
	if err == nil {
		err = x.raw.UpdateGraphExec(x.handle, g.handle)
	}
	if err != nil {
		return x.dev.wrap(op, 0, 0, err)
	}
	x.uses = g.uses
	return nil
}

// Close frees the executable graph; launches that are queued still run. Twice is fine, and
// so is a nil GraphExec. After an error it can be called again.
func (x *GraphExec) Close() error {
	if x == nil || x.dev == nil {
		return nil
	}
	return x.close(x, graphs.FreeGraphExec)
}
