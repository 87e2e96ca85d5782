package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/holds"
	"github.com/cuvmm/cuvmm/vmm/internal/hostcopy"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/rows"
	"github.com/cuvmm/cuvmm/vmm/internal/sizes"
	"github.com/cuvmm/cuvmm/vmm/internal/users"
)

// Range is a span of device memory that grows at an address that never moves: what []byte is to Go
// memory. It reserves Max bytes of addresses once, commits memory chunk by chunk up to Cap, and shows the
// first Len bytes. All sizes are bytes. Safe for concurrent use: Append is atomic. Only one producer at a
// time should use Grow and SetLen together. The caller must Close it.
type Range struct {
	// Immutable.
	r       *Reservation
	opts    RangeOptions
	prop    Prop   // of its chunks
	unit    uint64 // what Cap is a multiple of
	sizes   sizes.Ladder
	noCache bool // takes no cached memory

	growMu   lock.Mutex // orders changes of Cap: one growth at a time, for which Clip, Sleep and Close wait
	lenMu    lock.Mutex // orders changes of Len
	len, cap atomic.Uint64
	lows     users.Lows // of reads that are under way

	supply *supply // nil without RangeOptions.Supplier

	// Of growth ahead: what RangeOptions.GrowAhead has the device's goroutine do.
	aheadWanted atomic.Bool               // the device's goroutine is to grow it
	aheadPause  atomic.Pointer[time.Time] // not before this

	waitSlot chan struct{} // taken by the one WaitWritten that waits

	// Of Sleep; guarded by r.closeMu.
	hostCopy    hostcopy.Buffer // host memory for the contents
	copySample  *memsample.Sample
	sleptChunks []uint64  // sizes of the chunks that come back
	sleptMem    []*memory // instead, memory with the contents, after a Sleep that could not be undone

	asleep bool // counted as asleep; guarded by r.mu
}

// RangeOptions is how a Range is made; its zero value is the default.
type RangeOptions struct {
	// Name identifies the range in errors, Report, History, and packages memmap, memtrace and memprof,
	// for example by the sequence that it belongs to. Several ranges may have the same. It is at most 64
	// bytes. Any bytes are allowed, because texts quote it as strconv.Quote does.
	Name string
	// Max is how many bytes the range can grow to. Its addresses are reserved at once, in whole chunks. 0
	// is the size of the device's memory.
	Max uint64
	// Chunk is the size of every chunk, a multiple of the granularity. With 0 the range chooses powers of
	// two that grow with it, up to 2 GiB. With Share, each growth is one chunk of 15 % of the range or
	// more, up to 2 GiB, because a reader imports each chunk by itself.
	Chunk uint64
	// GrowAhead is how many bytes the device's goroutine keeps mapped beyond Len, so that growth finds
	// memory there. This is growth ahead. 0 is none. With 64 MiB, for example, the goroutine maps more
	// once 32 MiB or less are left beyond Len. It never maps past Max or the device's limit. It leaves a
	// sixteenth of the limit free. It also leaves a sixteenth of the device's memory free, if the context
	// is open and reports free memory. Clip unmaps memory mapped ahead.
	GrowAhead uint64
	// Zero fills memory with zeros when it enters Cap. Without it, cached memory keeps what an earlier
	// range wrote. SetLen fills nothing: lowering and raising Len shows the old bytes again, as in a
	// slice. Growth fills memory that was used before; on CUDA, it fills all memory. Clip waits until the
	// memory is unmapped, even after UsedBy. Growth during a Clip waits for it, and so returns
	// ErrCapturing during a capture; growth ahead does not wait. The range's device needs write access.
	Zero bool
	// Share is how chunks can leave the process; fixed for all of them. 0 is private.
	Share Share
	// KeepHostMemory makes Wake keep the host memory of the contents for the next Sleep, until Clip or
	// Close. The next Sleep then takes little more than half the time. Stats.HostCopies counts that
	// memory. Without KeepHostMemory, Wake frees it.
	KeepHostMemory bool
	// RDMA and Compress are as in Prop.
	RDMA, Compress bool
	// Supplier provides the range's memory; if nil, the device creates it. NewRange returns ErrInvalid
	// for Chunk, GrowAhead, Zero, Share, RDMA and Compress with a Supplier, because that decides what its
	// chunks are and hold. See Supplier.
	Supplier Supplier
}

// maxChunk is the largest chunk of the ladder. It keeps the number of driver calls of a large
// growth small.
const maxChunk = 2 << 30

// NewRange reserves a range. It commits no memory yet. The caller must Close it.
func (d *Device) NewRange(o RangeOptions) (*Range, error) {
	name, err := copyName(o.Name)
	if err != nil {
		return nil, d.wrap("make range", 0, o.Max, err)
	}
	o.Name = name
	g, err := d.newRange(o)
	return g, d.wrapNamed("make range", name, 0, o.Max, err)
}

func (d *Device) newRange(o RangeOptions) (*Range, error) {
	if err := d.checkOpen(); err != nil {
		return nil, err
	}
	if err := o.checkSupplier(); err != nil {
		return nil, err
	}
	prop := Prop{Location: d.location, Share: o.Share, RDMA: o.RDMA, Compress: o.Compress}
	gran, err := d.drv.Granularity(prop)
	if err != nil {
		return nil, err
	}
	if o, err = d.resolveOptions(o, gran); err != nil {
		return nil, err
	}
	zeroed := zeroNone
	if o.Zero {
		zeroed = zeroRecycled
		err := d.drv.Supports(d.state.n, FeatureZeroFilled)
		if errors.Is(err, ErrNotSupported) {
			zeroed = zeroAll
		} else if err != nil {
			return nil, err
		}
	}
	// The addresses last: all that can be wrong with the options is known by now.
	g := &Range{opts: o, prop: prop, unit: max(gran, o.Chunk), waitSlot: make(chan struct{}, 1)}
	g.sizes = sizes.Ladder{Gran: gran, Most: max(maxChunk, gran), Fixed: o.Chunk, Few: o.Share != 0}
	g.supply = newSupply(o.Supplier)
	g.countHostCopy(d)
	size, _ := roundUp(o.Max, g.unit) // as resolveOptions found possible
	if g.r, err = d.reserve(size, gran, ReserveOptions{Name: o.Name}, g); err != nil {
		return nil, err
	}
	g.r.zeroed = zeroed
	g.lenMu.At(lock.Len, g.r.id)
	g.growMu.At(lock.Growth, g.r.id)
	g.r.mu.Lock()
	g.r.owner = g
	g.r.mu.Unlock()
	g.requestGrowAhead()
	return g, nil
}

// resolveOptions checks the options and fills in what was left out.
func (d *Device) resolveOptions(o RangeOptions, gran uint64) (RangeOptions, error) {
	if o.Max == 0 {
		o.Max = d.info.Memory
	}
	if o.Chunk%gran != 0 {
		return o, fmt.Errorf("%w: chunks of %d bytes, which is no multiple of the granularity %d", ErrInvalid, o.Chunk, gran)
	}
	if _, ok := roundUp(o.Max, max(gran, o.Chunk)); !ok {
		return o, fmt.Errorf("%w: a maximum of %d bytes", ErrInvalid, o.Max)
	}
	return o, nil
}

// Alloc makes a zero-filled Range of size bytes: its Len and Max are size. It uses no cached memory. If a
// step fails, it gives everything back. The caller must Close the Range.
func (d *Device) Alloc(size uint64) (*Range, error) {
	var g *Range
	need := func(err error) error { return d.opError("allocate", "", 0, size, err) }
	err := withMemory(need, func() (short *bank.Bank, err error) {
		if err = d.checkOpen(); err != nil {
			return nil, err
		}
		g, err = d.alloc(size)
		return d.state.bank, err
	})
	return g, d.wrap("allocate", 0, size, err)
}

func (d *Device) alloc(size uint64) (*Range, error) {
	if size == 0 {
		return nil, fmt.Errorf("%w: a size of 0", ErrInvalid)
	}
	g, err := d.newRange(RangeOptions{Max: size, Zero: true})
	if err != nil {
		return nil, err
	}
	g.noCache = true
	if err = g.growOnce(size); err == nil {
		err = g.moveLen(size, nil)
	}
	if err == nil {
		return g, nil
	}
	// The caller gets no Range, so what cannot be given back now is the device's.
	d.rename(g.r, "what a failed Alloc could not give back")
	return nil, d.discard(err, g.close)
}

// Ptr is the first address. It stays the same until Close.
func (g *Range) Ptr() Ptr { return g.res().Ptr() }

// Max is how many bytes the range can grow to.
func (g *Range) Max() uint64 { return g.Options().Max }

// Device is the device that made the range, its owner.
func (g *Range) Device() *Device { return g.res().Device() }

// res is the reservation: nil for a nil Range, and the methods of both can be called
// on nil.
func (g *Range) res() *Reservation {
	if g == nil || g.r == nil {
		return nil
	}
	return g.r
}

// Len is how many bytes have been written.
func (g *Range) Len() uint64 { return nonnil.Of(g).len.Load() }

// Cap is how many bytes are backed by memory, up to Max. Len can reach it without growth.
func (g *Range) Cap() uint64 {
	g = nonnil.Of(g)
	return min(g.cap.Load(), g.opts.Max)
}

// Options returns the options with everything filled in.
func (g *Range) Options() RangeOptions { return nonnil.Of(g).opts }

// String is the range's device, addresses and sizes.
func (g *Range) String() string {
	if g == nil || g.r == nil {
		return "no range"
	}
	return fmt.Sprintf("%s on %v [%v, %v): %d of %d bytes", withName("range", g.r.name), g.r.dev, g.r.ptr, g.r.ptr+Ptr(g.r.size), g.Len(), g.Cap())
}

// wrap wraps err for op at offset off.
func (g *Range) wrap(op string, off, size uint64, err error) error {
	if err == nil {
		return nil
	}
	return g.res().wrap(op, off, size, err)
}

// checkOpen is nil while the range is open.
func (g *Range) checkOpen() error {
	if g == nil || g.r == nil {
		return fmt.Errorf("%w: no range", ErrInvalid)
	}
	return g.r.checkOpen()
}

// Append writes p after the last byte and moves Len. The copy has finished when Append returns: p may be
// reused, and later readers see the data. A failed Append leaves Len and contents as they were, but Cap
// may have grown. Beyond Max it returns ErrFull. With RangeOptions.Zero it may wait for an unlock; see
// LockSpans.
func (g *Range) Append(p []byte) error { return g.appendRows("append", p, uint64(len(p)), 1, 1) }

// appendRows is Append of rows that take size bytes with their padding.
func (g *Range) appendRows(op string, p []byte, size, width, pitch uint64) error {
	if g == nil || g.r == nil {
		return g.wrap(op, 0, size, g.checkOpen())
	}
	at, lacks, err := g.append(p, size, width, pitch)
	if lacks > 0 {
		at, err = g.growFor(op, size, lacks, func() (at, lacks uint64, err error) { return g.append(p, size, width, pitch) })
	}
	if g.opts.GrowAhead > 0 {
		g.requestGrowAhead() // lenMu is free by now: no append waits for this
	}
	return g.wrap(op, at, size, err)
}

// append appends what fits into Cap; if it does not fit, lacks is the Cap that it needs. at is where the bytes go.
func (g *Range) append(p []byte, size, width, pitch uint64) (at, lacks uint64, err error) {
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	at = g.len.Load()
	end, err := g.endWithin(at, size)
	if err == nil {
		err = g.r.checkOpen()
	}
	if err != nil || size == 0 {
		return at, 0, err
	}
	if end > g.cap.Load() {
		return at, end, nil
	}
	o, epoch, err := g.beginCopy()
	if err != nil {
		return at, 0, err
	}
	defer g.r.copies.End(epoch)
	if err := g.checkWritable(at, size); err != nil {
		return at, 0, err
	}
	if err := o.stage.CopyIn(rows.Rows{Ptr: g.r.ptr + Ptr(at), Width: width, Pitch: pitch}, p); err != nil {
		return at, 0, g.refusedWrite(at, size, err)
	}
	// Len last: whoever sees it may read the bytes.
	g.publishLenLocked(end)
	return at, 0, nil
}

// beginCopy opens the device and counts a copy: whatever takes the range's memory away
// from now on waits for it. The range is open, and stays so until the caller ends the
// copy.
func (g *Range) beginCopy() (o *openDevice, epoch uint64, err error) {
	if o, err = g.r.dev.state.ensureOpen(); err != nil {
		return nil, 0, err
	}
	epoch = g.r.copies.Begin()
	if err = g.r.checkOpen(); err != nil { // it has closed, or sleeps; Len may be 0 by now
		g.r.copies.End(epoch)
	}
	return o, epoch, err
}

// checkWritable is nil if [at, at+n) can be written, and stays so until the copy that
// the caller has begun ends: whatever takes memory of a range away lowers Cap before
// it waits for copies.
func (g *Range) checkWritable(at, n uint64) error {
	if !g.r.grants.Refuses() && at+n <= g.cap.Load() {
		return nil
	}
	return g.checkSpan(at, n)
}

func (g *Range) checkSpan(at, n uint64) error {
	return g.r.checkSpan(Span{Addr: g.r.ptr + Ptr(at), Size: n, Access: AccessReadWrite}, g.r.dev.state, nil)
}

// refusedWrite is err of a driver that has refused to write [at, at+n), or ErrPermission if that is since
// the device may only read it: for drivers this is an ErrInvalid as any other.
func (g *Range) refusedWrite(at, n uint64, err error) error {
	if errors.Is(err, ErrInvalid) {
		return cmp.Or(g.checkSpan(at, n), err)
	}
	return err
}

// endWithin is a+n if that is within Max.
func (g *Range) endWithin(a, n uint64) (uint64, error) {
	if end := a + n; end >= a && end <= g.opts.Max {
		return end, nil
	}
	return 0, fmt.Errorf("%w: %d bytes beyond %d, of at most %d", ErrFull, n, a, g.opts.Max)
}

// SetLen sets Len to n. It returns ErrBounds if n is above Cap, and ErrBusy if it would drop held bytes.
// Raising Len shows what the memory contains: bytes from before Len was lowered, or what a kernel wrote.
// Any other bytes are zeros with RangeOptions.Zero, and undefined without. Lowering Len keeps the memory
// (see Clip).
func (g *Range) SetLen(n uint64) error {
	if g == nil || g.r == nil {
		return g.wrap("set length", 0, n, g.checkOpen())
	}
	return g.setLenExcept(n, nil)
}

// moveLen moves Len; except does not hold it.
func (g *Range) moveLen(n uint64, except *holds.Hold) error {
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	r := g.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkOpen(); err != nil {
		return err
	}
	if c := g.Cap(); n > c {
		return fmt.Errorf("%w: a length of %d in a capacity of %d", ErrBounds, n, c)
	}
	if n < g.len.Load() { // moved up it takes nothing away
		if err := r.checkHoldsLocked(n, math.MaxUint64, except); err != nil {
			return err
		}
	}
	g.publishLenLocked(n)
	return nil
}

// publishLenLocked shows a new Len. It needs g.lenMu.
func (g *Range) publishLenLocked(n uint64) {
	invariants.Held(&g.lenMu)
	r := g.r
	c := &r.dev.counters
	switch old := g.len.Swap(n); {
	case n > old:
		if g.supply == nil { // else it is memory of others, which the device does not count as used
			c.Raised(n-old, &r.counters)
		}
		r.notifyRaised(n)
	case n < old:
		g.lows.Lower(n) // before anything is appended: that needs g.lenMu
		less := old - n
		if g.supply != nil {
			less = 0
		}
		c.Lowered(old, less, &r.counters)
		r.notify()
	}
}

// Hold keeps the n bytes from off on, which must be within Cap, until release is called. Calls that would
// drop or unmap any of them return ErrBusy: lowering Len below their end, Clip, Sleep and Close. The
// error says where Hold was called. Calling release again does nothing.
func (g *Range) Hold(off, n uint64) (release func(), err error) {
	return g.hold(off, n, heldHere("a hold"))
}

// holdFor is Reservation.holdFor, with the bounds of Hold.
func (g *Range) holdFor(what string, off, n uint64) (release func(), err error) {
	return g.hold(off, n, &holds.Hold{What: what})
}

func (g *Range) hold(off, n uint64, h *holds.Hold) (release func(), err error) {
	if g == nil || g.r == nil {
		return nil, g.wrap("hold", off, n, g.checkOpen())
	}
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	if have := g.cap.Load(); (off+n < n || off+n > have) && g.checkOpen() == nil {
		return nil, g.wrap("hold", off, n, fmt.Errorf("%w: the capacity is %d", ErrBounds, have))
	}
	release, err = g.r.addHold(off, n, h)
	return release, g.wrap("hold", off, n, err)
}

// Grant is Reservation.Grant.
func (g *Range) Grant(a Access, devs ...*Device) error { return g.res().Grant(a, devs...) }

// Revoke is Reservation.Revoke.
func (g *Range) Revoke(devs ...*Device) error { return g.res().Revoke(devs...) }

// UsedBy is Reservation.UsedBy.
func (g *Range) UsedBy(streams ...*Stream) error { return g.res().UsedBy(streams...) }

// Access is Reservation.Access.
func (g *Range) Access(d *Device) Access { return g.res().Access(d) }

// Segments is Reservation.Segments.
func (g *Range) Segments() []Segment { return g.res().Segments() }

// AppendSegments is Reservation.AppendSegments.
func (g *Range) AppendSegments(dst []Segment) []Segment { return g.res().AppendSegments(dst) }

// Changed is Reservation.Changed.
func (g *Range) Changed() <-chan struct{} { return g.res().Changed() }

// Generation is Reservation.Generation.
func (g *Range) Generation() uint64 { return g.res().Generation() }

// Close waits for work that may use the memory, unmaps it and frees the addresses. Its errors are those
// of Reservation.Close.
func (g *Range) Close() error { return g.CloseContext(context.Background()) }

// CloseContext is Reservation.CloseContext.
func (g *Range) CloseContext(ctx context.Context) error {
	if g == nil || g.r == nil {
		return nil
	}
	return g.r.closeContext(ctx, g.close)
}

func (g *Range) close() error {
	err := g.r.close(&g.lenMu)
	if g.r.phase.Load() >= phaseClosing {
		g.supply.stop()
	}
	g.r.closeMu.Lock()
	defer g.r.closeMu.Unlock()
	if !g.countClosed() {
		return err
	}
	bank.ReleaseAll(g.sleptMem) //nolint:errcheck // counted as quarantined
	g.sleptMem = nil
	return errtext.Join(err, "and giving host memory back", g.hostCopy.Free())
}

// countClosed takes a range that is closed out of the counters; false if it is not.
func (g *Range) countClosed() bool {
	g.growMu.Lock()
	defer g.growMu.Unlock()
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if g.r.phase.Load() != phaseClosed {
		return false
	}
	g.countAwakeLocked()
	g.cap.Store(0)
	g.publishLenLocked(0)
	return true
}

// Stats reads the range's counters.
func (g *Range) Stats() RangeStats {
	if g == nil || g.r == nil {
		return RangeStats{}
	}
	r := g.r
	r.mu.Lock() // no chunk comes or goes meanwhile
	defer r.mu.Unlock()
	r.dev.counters.Lock()
	defer r.dev.counters.Unlock()
	c, used := &r.counters, g.len.Load()
	st := RangeStats{
		Committed:         c.Committed.Now,
		Used:              used,
		Retiring:          c.Retiring.Now,
		Quarantined:       c.Quarantined.Now,
		Chunks:            r.table.Len(),
		PeakCommitted:     c.Committed.Peak,
		PeakUsed:          max(c.PeakUsed, used),
		Hits:              c.Hits,
		Growths:           c.Growths,
		GrowAheads:        c.GrowAheads,
		GrowAheadFailures: c.GrowAheadFailures,
		Reclaimed:         c.Reclaimed,
		Asleep:            r.phase.Load() == phaseAsleep,
	}
	if r.phase.Load() != phaseClosed {
		st.Reserved = r.size
	}
	return st
}

// ResetPeaks sets the high-water marks to the current values.
func (g *Range) ResetPeaks() {
	if g == nil || g.r == nil {
		return
	}
	g.r.dev.counters.Lock()
	defer g.r.dev.counters.Unlock()
	c := &g.r.counters
	c.Committed.Peak, c.PeakUsed = c.Committed.Now, 0
}

// LookupRange is Lookup for a Range: it returns the Range that p lies in, or nil and false if p lies in
// none.
func (d *Device) LookupRange(p Ptr) (g *Range, off uint64, ok bool) {
	r, off, ok := d.Lookup(p)
	if !ok {
		return nil, 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g, ok = r.owner.(*Range)
	if !ok || !r.inRange { // a program's reservation may name a range of its own as its owner
		return nil, 0, false
	}
	return g, off, true
}

// countAwakeLocked undoes what finishSleep counted, if it did. It needs r.mu.
func (g *Range) countAwakeLocked() {
	invariants.Held(&g.r.mu)
	if !g.asleep {
		return
	}
	c := &g.r.dev.counters
	c.Move(g.len.Load(), &c.Asleep, &c.Used)
	g.asleep = false
}
