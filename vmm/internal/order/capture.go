package order

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// capture is one that Begin has begun.
type capture struct {
	id      uint64 // 0 if the driver could not name it
	origin  *Stream
	gates   []*Gate   // of the devices of its streams, sorted; grows with World.mu held
	streams []*Stream // that are in it, the origin first; changes with their gates alone
}

// ErrHeld is of a stream whose captures must not begin or end now.
var ErrHeld = errors.New("the stream is held")

// errNoGraphs is for drivers without.
var errNoGraphs = fmt.Errorf("%w: graphs", driver.ErrNotSupported)

// Begin begins a capture of the stream, in CUDA's relaxed mode. If the driver can neither name the capture
// nor end it, the capture goes on, and the error says so, until End, EndLeft or the next Begin ends it.
// While the stream is held it returns ErrHeld. The caller keeps other calls off the stream.
func (d *Device) Begin(s *Stream) error {
	raw, ok := d.raw.(driver.Grapher)
	if !ok {
		return errNoGraphs
	}
	if err := d.EndLeft(s); err != nil {
		return err
	}
	d.gate.await(func() bool { return d.gate.holders == 0 }) // for those in Quiet
	unlock := alone([]*Gate{d.gate})
	defer unlock()
	switch {
	case s.held.Load() > 0:
		return ErrHeld
	case s.in.Load() != nil: // the driver would be asked without the gates of all of that capture
		return fmt.Errorf("%w: the stream is being captured", driver.ErrInvalid)
	}
	if err := raw.BeginCapture(s.Queue, driver.CaptureRelaxed); err != nil {
		return err
	}
	id, err := raw.CaptureID(s.Queue)
	if err != nil {
		graph, undo := raw.EndCapture(s.Queue)
		if undo == nil {
			d.freeGraph(raw, graph)
			return err
		}
		err = errors.Join(err, fmt.Errorf("and ending the capture: %w", undo))
	}
	d.gate.world.add(&capture{id: id, origin: s, gates: []*Gate{d.gate}})
	return err
}

func (w *World) add(c *capture) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.captures = append(w.captures, c)
	c.origin.in.Store(c)
	c.streams = append(c.streams, c.origin)
	c.gates[0].open.Add(1)
	w.open.Add(1)
}

// join notes that the stream is in the capture with that number; 0 if the driver did not say. Then
// it may be in any. The gates of all captures are held alone.
func (w *World) join(id uint64, s *Stream, g *Gate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.captures {
		if id != 0 && c.id != id || slices.Contains(c.streams, s) {
			continue
		}
		c.streams = append(c.streams, s)
		if id != 0 {
			s.in.Store(c)
		}
		if !slices.Contains(c.gates, g) {
			c.gates = sorted(append(slices.Clone(c.gates), g)...)
			g.open.Add(1)
		}
	}
}

// aloneWithCaptures has the gates alone, and those of all captures, until unlock.
func (w *World) aloneWithCaptures(gates ...*Gate) (unlock func()) {
	all := func() []*Gate {
		w.mu.Lock()
		defer w.mu.Unlock()
		found := slices.Clone(gates)
		for _, c := range w.captures {
			found = append(found, c.gates...)
		}
		return sorted(found...)
	}
	for have := all(); ; {
		unlock := alone(have)
		now := all()
		if !slices.ContainsFunc(now, func(g *Gate) bool { return !slices.Contains(have, g) }) {
			return unlock
		}
		unlock() // a capture has begun on another device, or was joined by one
		have = now
	}
}

// allGates has all gates of the capture that Begin has begun on the stream until unlock; nil
// if there is none.
func (d *Device) allGates(s *Stream) (c *capture, unlock func()) {
	w := d.gate.world
	of := func() (*capture, []*Gate) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if c := s.in.Load(); c != nil && c.origin == s {
			return c, c.gates
		}
		return nil, nil
	}
	c, gates := of()
	for c != nil {
		unlock := alone(gates)
		now, more := of()
		if now == c && len(more) == len(gates) {
			return c, unlock
		}
		unlock() // a stream of another device has joined it
		c, gates = now, more
	}
	return nil, nil
}

// Any reports whether f is true for a capture that Begin has begun: for its number, and the Owner
// of the stream on which it was begun. None is added or removed meanwhile, and f locks nothing.
func (w *World) Any(f func(id uint64, owner any) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.captures, func(c *capture) bool { return f(c.id, c.origin.Owner) })
}

// Began reports whether Begin has begun a capture on the stream that has not ended.
func (s *Stream) Began() bool {
	c := s.in.Load()
	return c != nil && c.origin == s
}

// CaptureID is the driver's number of the capture that the stream is in; 0 if it is in none.
func (d *Device) CaptureID(s *Stream) (uint64, error) {
	if raw, ok := d.raw.(driver.Grapher); ok {
		return raw.CaptureID(s.Queue)
	}
	return 0, nil
}

// End ends the capture that Begin has begun on the stream. goesOn says that the error has left
// the capture as it is: ErrHeld while one of its streams is held, for one. The caller keeps other
// calls off the stream.
func (d *Device) End(s *Stream) (graph driver.Graph, goesOn bool, err error) {
	raw, ok := d.raw.(driver.Grapher)
	if !ok {
		return 0, false, errNoGraphs
	}
	c, unlock := d.allGates(s)
	if c == nil {
		return 0, false, fmt.Errorf("%w: BeginCapture has not begun a capture on this stream", driver.ErrInvalid)
	}
	defer unlock()
	if slices.ContainsFunc(c.streams, func(x *Stream) bool { return x.held.Load() > 0 }) {
		return 0, true, ErrHeld
	}
	graph, err = raw.EndCapture(s.Queue)
	if err != nil {
		capturing, again := d.raw.Capturing(s.Queue)
		if capturing || again != nil && !lost(again) {
			return 0, true, err
		}
	}
	d.gate.world.remove(c)
	return graph, false, err
}

// EndLeft ends what is left of a capture of the stream: one that a Begin which failed has left, or
// one that has ended without End. The caller keeps other calls off the stream.
func (d *Device) EndLeft(s *Stream) error {
	c, unlock := d.allGates(s)
	switch {
	case c == nil:
		return nil
	case c.id != 0:
		defer unlock()
		capturing, err := d.raw.Capturing(s.Queue)
		if err == nil && !capturing {
			d.gate.world.remove(c)
		}
		return err
	}
	unlock()
	graph, goesOn, err := d.End(s)
	if goesOn || err != nil && lost(err) {
		return err
	}
	if err == nil {
		raw, _ := d.raw.(driver.Grapher)
		d.freeGraph(raw, graph)
	}
	return nil
}

// freeGraph frees the graph of a capture that no one wants, now or when the driver lets it.
func (d *Device) freeGraph(raw driver.Grapher, graph driver.Graph) {
	if free := func() error { return raw.FreeGraph(graph) }; free() != nil {
		d.refused(free)
	}
}

// forget notes that the stream ends, whose capture, if it is in one, was lost with its context.
func (d *Device) forget(s *Stream) {
	c, unlock := d.allGates(s)
	if c == nil {
		return
	}
	defer unlock()
	d.gate.world.remove(c)
}

// remove undoes add and join, and gives the fences that wait for the capture's end their
// events. The capture's gates are held alone.
func (w *World) remove(c *capture) {
	w.mu.Lock()
	w.captures = slices.DeleteFunc(w.captures, func(x *capture) bool { return x == c })
	for _, g := range c.gates {
		g.open.Add(-1)
	}
	w.open.Add(-1)
	for _, s := range c.streams {
		s.in.Store(nil)
	}
	w.mu.Unlock()
	for _, s := range c.streams {
		s.recordLate()
	}
	for _, g := range c.gates {
		g.wake()
	}
}

// Wait makes later work of the stream wait for an event of the device that from is the Gate of.
// stands says where the event stands, and is called at any time. A stream that waits for an
// event of a capture joins it. If that may be, and the caller does not keep other calls off
// the stream, which isAlone says, again is true, and nothing was done; and if the stream is held,
// it returns ErrHeld.
func (d *Device) Wait(s *Stream, e driver.Event, from *Gate, stands func() Point, isAlone bool) (again bool, err error) {
	if at := stands(); at.of != nil {
		both := d.with(from)
		both.share()
		// To be recorded in a capture, an event loses its Point first and needs the gate alone.
		if stands() == at {
			defer both.unshare()
			return false, d.waitAt(s, e, at, stands)
		}
		both.unshare()
	}
	if !isAlone {
		return true, nil
	}
	world := d.gate.world
	unlock := world.aloneWithCaptures(d.gate, from)
	defer unlock()
	if s.held.Load() > 0 && world.Capturing() {
		return false, ErrHeld
	}
	at := stands()
	if err := d.raw.Wait(s.Queue, e); err != nil {
		return false, err
	}
	if !d.noteJoin(s) && stands() == at {
		s.waited(at)
	}
	return false, nil
}

// waitAt makes later work of the stream wait for an event that is of no capture, and which the
// driver therefore refuses to a stream that is being captured. It stood there when the caller
// looked. The gates are shared.
func (d *Device) waitAt(s *Stream, e driver.Event, at Point, stands func() Point) error {
	if err := d.raw.Wait(s.Queue, e); err != nil {
		return err
	}
	if stands() == at { // else it has been recorded anew meanwhile
		s.waited(at)
	}
	return nil
}

// noteJoin notes the capture that the stream may have joined by a wait, and reports whether it has.
// The gates of all captures are held alone.
func (d *Device) noteJoin(s *Stream) bool {
	if !s.captured(d) {
		return false
	}
	s.joined.Store(true)
	s.Show()
	if raw, ok := d.raw.(driver.Grapher); ok {
		id, err := raw.CaptureID(s.Queue)
		if err != nil {
			id = 0
		}
		d.gate.world.join(id, s, d.gate)
	}
	return true
}

// WaitFence makes later work of the stream wait for the fence.
func (d *Device) WaitFence(s *Stream, f Fence) error {
	switch {
	case f.on == nil:
		return nil
	case f.on.gate.world != d.gate.world:
		return fmt.Errorf("%w: the fence is of another driver", driver.ErrInvalid)
	}
	both := d.with(f.on.gate)
	both.share()
	defer both.unshare()
	return d.waitAt(s, f.e, f.at, f.Point)
}

// gates are one or two, the lower one first.
type gates struct{ low, high *Gate }

// with is the device's gate and another one.
func (d *Device) with(other *Gate) gates {
	switch {
	case d.gate == other:
		return gates{low: other}
	case d.gate.n < other.n:
		return gates{d.gate, other}
	}
	return gates{other, d.gate}
}

func (g gates) share() {
	g.low.share()
	if g.high != nil {
		g.high.share()
	}
}

func (g gates) unshare() {
	if g.high != nil {
		g.high.unshare()
	}
	g.low.unshare()
}
