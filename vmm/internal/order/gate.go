package order

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// holdTime bounds how long a call that needs a context without captures keeps new ones from
// beginning, and how long it waits.
const holdTime = 10 * time.Millisecond

// Gate is a device's. What has it alone: the begin and the end of a capture, and a wait by
// which a stream may join one. What shares it: a record, a query or the end of a stream, and
// a record of the context.
type Gate struct {
	world *World
	n     int // the device's ordinal: of several gates the lower one is taken first
	mu    lock.RWMutex
	open  atomic.Int32 // captures with streams of this device

	streamsMu lock.RWMutex // shared while the driver is asked about them, so that none is freed
	streams   []*Stream    // of the device, from Init until they are freed

	holdMu  sync.Mutex // nothing is locked while it is held
	holders int        // of Quiet
	changed chan struct{}
}

// World is the captures of one driver. Its zero value is not ready.
type World struct {
	// Off turns the gates off, in tests alone: before the first use.
	Off bool

	open atomic.Int32

	mu       lock.Mutex // nothing is locked while it is held
	captures []*capture // that Begin has begun
}

// NewWorld is the World of a driver.
func NewWorld() *World {
	w := &World{}
	w.mu.At(lock.Captures, 0)
	return w
}

// Capturing reports whether a capture that Begin has begun is open on any device.
func (w *World) Capturing() bool { return w.open.Load() > 0 }

// NewGate is the Gate of device n.
func (w *World) NewGate(n int) *Gate {
	g := &Gate{world: w, n: n, changed: make(chan struct{})}
	g.mu.At(lock.Gate, uint64(n))           //nolint:gosec // an ordinal
	g.streamsMu.At(lock.Streams, uint64(n)) //nolint:gosec // an ordinal
	return g
}

func (g *Gate) share() {
	if !g.world.Off {
		g.mu.RLock()
	}
}

func (g *Gate) unshare() {
	if !g.world.Off {
		g.mu.RUnlock()
	}
}

// Streams returns the device's streams.
func (g *Gate) Streams() []*Stream {
	g.streamsMu.RLock()
	defer g.streamsMu.RUnlock()
	return slices.Clone(g.streams)
}

func (g *Gate) add(s *Stream) {
	g.streamsMu.Lock()
	defer g.streamsMu.Unlock()
	g.streams = append(g.streams, s)
}

// remove undoes add: the driver is not asked about the stream any more.
func (g *Gate) remove(s *Stream) {
	g.streamsMu.Lock()
	defer g.streamsMu.Unlock()
	g.streams = slices.DeleteFunc(g.streams, func(x *Stream) bool { return x == s })
}

// Shared runs f, which may look at the ends of streams, while no capture begins, is joined or
// ends.
func (g *Gate) Shared(f func() error) error {
	g.share()
	defer g.unshare()
	return f()
}

// alone has all of the gates until unlock. They are sorted.
func alone(gates []*Gate) (unlock func()) {
	if gates[0].world.Off {
		return func() {}
	}
	for _, g := range gates {
		g.mu.Lock()
	}
	return func() {
		for _, g := range slices.Backward(gates) {
			g.mu.Unlock()
		}
	}
}

// sorted is each of the gates once, in their order.
func sorted(gates ...*Gate) []*Gate {
	slices.SortFunc(gates, func(a, b *Gate) int { return cmp.Compare(a.n, b.n) })
	return slices.Compact(gates)
}

// Quiet waits until no capture is open on the device, for holdTime at most, and keeps new ones
// from beginning until release, but each of them no longer than that.
func (g *Gate) Quiet() (release func()) {
	if g.open.Load() == 0 {
		return func() {}
	}
	g.holdMu.Lock()
	g.holders++
	g.holdMu.Unlock()
	g.await(func() bool { return g.open.Load() == 0 })
	return func() {
		g.holdMu.Lock()
		g.holders--
		g.holdMu.Unlock()
		g.wake()
	}
}

// await waits until f, which is called with holdMu held, is true, but no longer than holdTime.
func (g *Gate) await(f func() bool) {
	var late <-chan time.Time
	for {
		g.holdMu.Lock()
		done, changed := f(), g.changed
		g.holdMu.Unlock()
		if done {
			return
		}
		if late == nil {
			late = time.After(holdTime)
		}
		select {
		case <-changed:
		case <-late:
			return
		}
	}
}

// wake has those that await look again.
func (g *Gate) wake() {
	g.holdMu.Lock()
	defer g.holdMu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
}
