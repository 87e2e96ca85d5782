// Package count counts the memory of devices and of their ranges. It knows neither.
package count

import (
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// Gauge is a number of bytes now and the most it has been.
type Gauge struct{ Now, Peak uint64 }

// Counters is what the Stats of a device and of its ranges are read from: one lock, so
// that all numbers are of one moment. While it is held, nothing but appended.mu is locked.
//
// What is appended in place is counted with its range's lock alone, so that ranges do not wait for
// each other. used is without it until settleLocked adds it, before anything else looks at used.
// Meanwhile used only rises, so its peak is right, too.
type Counters struct {
	mu lock.Mutex

	Reserved, Committed, Imported, Used, Cached, Retiring, Quarantined, Asleep, HostCopies Gauge
	Counts
	appended []*appended // of the ranges that have some

	FreedBytes uint64 // that went back to the driver, ever
	Threshold  uint64 // of the cache; changes with its lock held, too
}

// appended is bytes by which a range's Len has risen, and which its device's used lacks.
type appended struct {
	mu    sync.Mutex // nothing is locked while it is held
	bytes uint64     // more than 0 while it is in Counters.appended
}

// Range are the counters of one reservation, under its device's Counters.
// All gauges change with Reservation.mu held, too.
type Range struct {
	Committed, Retiring, Quarantined                        Gauge
	PeakUsed                                                uint64 // but for Len as it is now
	appended                                                appended
	Hits, Growths, GrowAheads, GrowAheadFailures, Reclaimed uint64
}

// Add adds n bytes to each of the gauges.
func (c *Counters) Add(n uint64, gauges ...*Gauge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range gauges {
		g.Now += n
		g.Peak = max(g.Peak, g.Now)
	}
}

// Sub takes n bytes from each of the gauges.
func (c *Counters) Sub(n uint64, gauges ...*Gauge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range gauges {
		g.Now -= n
	}
}

// Raised counts that Len has risen by n bytes, more than 0.
func (c *Counters) Raised(n uint64, of *Range) {
	a := &of.appended
	a.mu.Lock()
	if a.bytes > 0 {
		a.bytes += n
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bytes == 0 {
		c.appended = append(c.appended, a)
	}
	a.bytes += n
}

// Lowered counts that Len has fallen from from, and used by less.
func (c *Counters) Lowered(from, less uint64, of *Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	of.PeakUsed = max(of.PeakUsed, from)
	c.Used.Now -= less
}

// settleLocked adds to used what was appended. A range whose bytes it has added waits for c.mu with
// its next ones, so all that is added is of one moment, when it ends. It needs c.mu.
func (c *Counters) settleLocked() {
	invariants.Held(&c.mu)
	for _, a := range c.appended {
		a.mu.Lock()
		c.Used.Now += a.bytes
		a.bytes = 0
		a.mu.Unlock()
	}
	c.Used.Peak = max(c.Used.Peak, c.Used.Now)
	clear(c.appended) // a range that closes is not kept
	c.appended = c.appended[:0]
}

// Move moves n bytes from one Gauge to another.
func (c *Counters) Move(n uint64, from, to *Gauge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	from.Now -= n
	to.Now += n
	to.Peak = max(to.Peak, to.Now)
}

// Count adds n to each of the counts.
func (c *Counters) Count(n uint64, counts ...*uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range counts {
		*x += n
	}
}

// Mapped counts n chunks of size bytes as mapped in a range.
func (c *Counters) Mapped(n int, size uint64, of *Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Maps += uint64(n)
	of.Committed.Now += size
	of.Committed.Peak = max(of.Committed.Peak, of.Committed.Now)
}

// Unmapped undoes Mapped, for chunks of which so many bytes were retiring.
func (c *Counters) Unmapped(n int, size, retiring uint64, of *Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Unmaps += uint64(n)
	of.Committed.Now -= size
	of.Retiring.Now -= retiring
	c.Retiring.Now -= retiring
}

// Raise adds n bytes to a Gauge, Lower takes them from it, and both call then with the counters' lock
// held: what is sampled of memory begins and ends there, so both are of one moment.
func (c *Counters) Raise(g *Gauge, n uint64, then func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.Now += n
	g.Peak = max(g.Peak, g.Now)
	then()
}

// Lower is Raise the other way.
func (c *Counters) Lower(g *Gauge, n uint64, then func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.Now -= n
	then()
}

// Of is the Gauge of memory that was created here, or imported.
func (c *Counters) Of(created bool) *Gauge {
	if created {
		return &c.Committed
	}
	return &c.Imported
}

// Set sets a number.
func (c *Counters) Set(n *uint64, to uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n = to
}

// Moment calls read with all numbers of one moment. It may set peaks.
func (c *Counters) Moment(read func()) {
	c.Lock()
	defer c.Unlock()
	c.settleLocked()
	read()
}

// Lock keeps all numbers as they are until Unlock.
func (c *Counters) Lock() { c.mu.Lock() }

// Unlock ends Lock.
func (c *Counters) Unlock() { c.mu.Unlock() }

// At gives the lock its place in the order.
func (c *Counters) At(key uint64) { c.mu.At(lock.Counters, key) }

// Read reads a number.
func (c *Counters) Read(n *uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *n
}

// Counts are those of vmm.Counts, to which they are converted.
type Counts struct {
	Creates, Releases, Maps, Unmaps, Hits, Growths, GrowAheads, GrowAheadFailures, Reclaimed uint64
}
