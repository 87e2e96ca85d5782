package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Range is a span of device memory that grows at an address that never moves:
// what []byte is to Go memory. It reserves Max bytes of addresses once, commits
// memory chunk by chunk up to Cap, and shows the first Len bytes. All sizes are
// bytes. Safe for concurrent use; Append is atomic, while Grow and SetLen used
// together want one producer at a time. The caller must Close it.
type Range struct {
	r    *Reservation
	opts RangeOptions

	lenMu    sync.Mutex // orders changes of Len
	capMu    sync.Mutex // orders changes of Cap
	len, cap atomic.Uint64
	peak     atomic.Uint64 // the most that len has been before it fell

	noCache     bool                      // takes no kept memory
	aheadWanted atomic.Int32              // of the device's goroutine
	waitSlot    chan struct{}             // taken by the one WaitWritten that waits
	aheadPause  atomic.Pointer[time.Time] // no look-ahead before this

	hostCopy    *Range   // host memory for what sleeps, see Sleep; guarded by r.closer
	sleptChunks []uint64 // of the chunks that come back; guarded by r.closer
	asleep      bool     // guarded by r.mu
}

// RangeOptions is how a Range is made; its zero value is the default.
type RangeOptions struct {
	// Max is how many bytes of addresses to reserve, rounded up to the
	// granularity. 0 is the device's memory.
	Max uint64
	// Chunk is the size of every chunk, a multiple of the granularity. 0 is the
	// ladder: powers of two that grow with the range, up to MaxChunk.
	Chunk uint64
	// MaxChunk is the largest chunk of the ladder, a power of two. 0 is 2 GiB.
	MaxChunk uint64
	// GrowAhead is how many bytes of memory the device's goroutine keeps ready beyond
	// Len, so that growth finds them; never past Max or the device's limit. It
	// acts when half of them are used up, and leaves a sixteenth of the device's
	// memory, where its context is open and so can be asked what is free, and of the
	// limit. Clip gives them back. 0 is none.
	GrowAhead uint64
	// Share is how chunks can leave the process; fixed for all of them. 0 is private.
	Share Share
	// RDMA and Compress are as in Prop.
	RDMA, Compress bool
	// Align is the alignment of the first address, a power of two. 0 is the granularity.
	Align uint64
}

// defaultMaxChunk keeps the number of driver calls of a large growth small.
const defaultMaxChunk = 2 << 30

// NewRange reserves a range. It commits no memory yet. The caller must Close it.
func (d *Device) NewRange(o RangeOptions) (*Range, error) {
	g, err := d.newRange(o)
	return g, d.fail("make range", 0, o.Max, err)
}

func (d *Device) newRange(o RangeOptions) (*Range, error) {
	if err := d.live(); err != nil {
		return nil, err
	}
	gran, err := d.granularity(chunkProp(d, o))
	if err != nil {
		return nil, err
	}
	if o, err = d.resolveOptions(o, gran); err != nil {
		return nil, err
	}
	g := &Range{opts: o, waitSlot: make(chan struct{}, 1)}
	if g.r, err = d.reserve(o.Max, gran, ReserveOptions{Align: o.Align}, g); err != nil {
		return nil, err
	}
	g.lookAhead()
	return g, nil
}

// prop is what the chunks of a range are made of.
func chunkProp(d *Device, o RangeOptions) Prop {
	return Prop{Location: d.location(), Share: o.Share, RDMA: o.RDMA, Compress: o.Compress}
}

// settle checks the options and fills in what was left out.
func (d *Device) resolveOptions(o RangeOptions, gran uint64) (RangeOptions, error) {
	if o.Max == 0 {
		o.Max = d.info.Memory
	}
	if o.MaxChunk == 0 {
		o.MaxChunk = max(defaultMaxChunk, gran)
	}
	if bits.OnesCount64(o.MaxChunk) != 1 || o.MaxChunk < gran {
		return o, fmt.Errorf("%w: a largest chunk of %d bytes, which is no power of two from the granularity %d on", ErrInvalid, o.MaxChunk, gran)
	}
	if o.Chunk%gran != 0 {
		return o, fmt.Errorf("%w: chunks of %d bytes, which is no multiple of the granularity %d", ErrInvalid, o.Chunk, gran)
	}
	var ok bool
	if o.Max, ok = roundUp(o.Max, max(gran, o.Chunk)); !ok {
		return o, fmt.Errorf("%w: a maximum of %d bytes", ErrInvalid, o.Max)
	}
	if o.Align == 0 {
		o.Align = gran
	}
	return o, nil
}

// Alloc makes a Range of size bytes at once, zero-filled, with Len = size and
// room for no more than its last chunk holds. Its memory is never one that was
// kept from before. Whatever step fails, everything is given back. The caller
// must Close it.
func (d *Device) Alloc(size uint64) (*Range, error) {
	g, err := d.alloc(size)
	return g, d.fail("allocate", 0, size, err)
}

func (d *Device) alloc(size uint64) (*Range, error) {
	if size == 0 {
		return nil, fmt.Errorf("%w: a size of 0", ErrInvalid)
	}
	g, err := d.newRange(RangeOptions{Max: size})
	if err != nil {
		return nil, err
	}
	g.noCache = true
	if err = g.ensure(size); err == nil {
		err = g.zero(size)
	}
	if err == nil {
		err = g.setLen(size)
	}
	if err != nil {
		if undo := g.close(); undo != nil {
			err = also(err, "and giving it back", undo)
			d.rename(g.r, "what a failed Alloc could not give back")
			d.deferRelease(g.close)
		}
		return nil, err
	}
	return g, nil
}

// zero fills the first n bytes, without a promise by the driver that fresh
// memory reads zero.
func (g *Range) zero(n uint64) error {
	raw, err := g.r.dev.state.ensureOpen()
	if err != nil {
		return err
	}
	s := raw.CopyStream()
	if err := raw.Fill(g.r.ptr, 0, 1, n, s); err != nil {
		return err
	}
	return raw.SyncStream(s)
}

// Ptr is the first address. It stays the same until Close.
func (g *Range) Ptr() Ptr { return g.res().Ptr() }

// Max is how many bytes the range can grow to.
func (g *Range) Max() uint64 { return g.res().Size() }

// Device is the device that made the range, its owner.
func (g *Range) Device() *Device { return g.res().Device() }

// res is the reservation, nil for a nil Range, whose methods answer for it.
func (g *Range) res() *Reservation {
	if g == nil {
		return nil
	}
	return g.r
}

// Len is how many bytes have been written.
func (g *Range) Len() uint64 {
	if g == nil {
		return 0
	}
	return g.len.Load()
}

// Cap is how many bytes have memory behind them.
func (g *Range) Cap() uint64 {
	if g == nil {
		return 0
	}
	return g.cap.Load()
}

// Options gives the options with everything filled in.
func (g *Range) Options() RangeOptions {
	if g == nil {
		return RangeOptions{}
	}
	return g.opts
}

// String is the range's device, addresses and sizes.
func (g *Range) String() string {
	if g == nil {
		return "no range"
	}
	return fmt.Sprintf("range on %v [%v, %v): %d of %d bytes", g.r.dev, g.r.ptr, g.r.ptr+Ptr(g.r.size), g.Len(), g.Cap())
}

// fail wraps err for op at offset off.
func (g *Range) fail(op string, off, size uint64, err error) error {
	return g.res().fail(op, off, size, err)
}

// live is nil while the range is open.
func (g *Range) live() error {
	if g == nil {
		return fmt.Errorf("%w: no range", ErrInvalid)
	}
	return g.r.live()
}

// Grow makes room for n more bytes beyond Len. It completes or changes nothing,
// except that what was retiring may be back in Cap; beyond Max it answers
// ErrFull. A kernel may then write between Len and Cap, and SetLen shows what it
// wrote.
func (g *Range) Grow(n uint64) error {
	if err := g.live(); err != nil {
		return g.fail("grow", 0, n, err)
	}
	need, err := g.endWithin(g.len.Load(), n)
	if err == nil {
		err = g.ensure(need)
	}
	g.lookAhead()
	return g.fail("grow", 0, n, err)
}

// sum is a+n if that is within Max.
func (g *Range) endWithin(a, n uint64) (uint64, error) {
	if end := a + n; end >= a && end <= g.r.size {
		return end, nil
	}
	return 0, fmt.Errorf("%w: %d bytes beyond %d, of at most %d", ErrFull, n, a, g.r.size)
}

// room brings Cap to at least need.
func (g *Range) ensure(need uint64) error {
	if need <= g.cap.Load() {
		return nil
	}
	g.capMu.Lock()
	defer g.capMu.Unlock()
	if need <= g.cap.Load() {
		return nil // the device's goroutine was faster
	}
	if err := g.live(); err != nil {
		return err // so that it takes no memory behind Close's back
	}
	m := &g.r.dev.counters
	m.count(&m.counts.Growths, 1)
	g.r.count(&g.r.stats.Growths, 1)
	return g.grow(need, true)
}

// bring is what room and the device's goroutine do to bring Cap to need. What is
// retiring comes back first; kept and new memory is added behind it. Only for
// somebody who waits does kept memory go where memory runs out. The caller holds
// g.grow.
func (g *Range) grow(need uint64, awaited bool) error {
	for {
		have := g.r.reclaim(g.cap.Load(), need)
		g.cap.Store(have)
		if need <= have {
			return nil
		}
		err := g.add(have, need, awaited)
		// What was being unmapped is there again if the driver said no.
		if have = g.cap.Load(); err == nil || g.r.reclaim(have, need) == have {
			return err
		}
	}
}

// add is the part of bring that needs memory.
func (g *Range) add(have, need uint64, awaited bool) error {
	if err := g.r.quarantinedBelow(have); err != nil {
		return err
	}
	need, _ = roundUp(need, g.unit()) // need <= Max, a multiple of it
	want := need - have
	if awaited { // look-ahead takes what is affordable and no more
		want = wish(want, have, g.r.size-have, g.r.gran, g.opts.Chunk)
	}
	got, err := g.extend(have, want, awaited)
	if errors.Is(err, ErrOutOfMemory) && got == 0 && want > need-have {
		// What is left may still do for the need alone.
		got, err = g.extend(have, need-have, awaited)
	}
	g.cap.Store(have + got)
	return err
}

// unit is what Cap is a multiple of.
func (g *Range) unit() uint64 { return max(g.r.gran, g.opts.Chunk) }

// extend maps want bytes of memory at off: kept chunks first, new ones for the
// rest. It is all or nothing if somebody waits for it; look-ahead keeps what it
// got. What could not be mapped goes back.
func (g *Range) extend(off, want uint64, awaited bool) (got uint64, err error) {
	var memBuf [64]*memory
	ms := memBuf[:0]
	defer func() {
		for _, m := range ms {
			m.release() //nolint:errcheck // mapped by now, or kept, or stuck and counted so
		}
	}()
	d, p := g.r.dev, chunkProp(g.r.dev, g.opts)
	left := want
	for left > 0 && !g.noCache {
		m := d.takeCached(p, worthwhile(left, g.opts.Chunk), min(left, cmp.Or(g.opts.Chunk, g.opts.MaxChunk)))
		if m == nil {
			break
		}
		ms = append(ms, m)
		left -= m.size
	}
	hits := uint64(len(ms))
	var short error
	for size := range ladder(left, g.opts.MaxChunk, g.opts.Chunk) {
		var m *memory
		if m, short = d.create(size, p, awaited); short != nil {
			break
		}
		ms = append(ms, m)
		left -= min(left, size)
	}
	if short != nil && (awaited || len(ms) == 0) {
		return 0, short
	}
	if err := g.r.mapNew(off, ms, awaited); err != nil {
		return 0, err
	}
	if hits > 0 {
		d.counters.count(&d.counters.counts.Hits, hits)
		g.r.count(&g.r.stats.Hits, hits)
	}
	return want - left, short
}

// SetLen moves Len to n, which must lie within Cap: ErrBounds beyond it,
// ErrBusy below a Hold. Moved up it shows bytes that a kernel wrote, or that
// nobody did; moved down it drops bytes and keeps the memory (see Clip).
func (g *Range) SetLen(n uint64) error {
	if g == nil {
		return g.fail("set length", 0, n, g.live())
	}
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	return g.fail("set length", 0, n, g.setLen(n))
}

// setLen is SetLen with g.write held.
func (g *Range) setLen(n uint64) error {
	r := g.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return err
	}
	if c := g.cap.Load(); n > c {
		return fmt.Errorf("%w: a length of %d in a capacity of %d", ErrBounds, n, c)
	}
	if h := r.heldLocked(); n < h {
		return fmt.Errorf("%w: bytes below %d are held", ErrBusy, h)
	}
	g.publishLen(n)
	g.lookAhead()
	return nil
}

// show publishes a new Len. The caller holds g.write.
func (g *Range) publishLen(n uint64) {
	old := g.len.Swap(n)
	if old == n {
		return
	}
	if n > old {
		g.r.dev.counters.used.add(n - old)
	} else {
		g.r.dev.counters.used.sub(old - n)
		g.peak.Store(max(g.peak.Load(), old))
	}
	g.r.notify()
}

// Clip gives back the chunks that lie wholly beyond Len. It completes or changes
// nothing. After UsedBy it does not wait: what is given up retires until the named
// streams have done what they were told so far, and goes back then (see
// Stats.Retiring). Else it waits as Unmap does. A growth that needs the memory
// before it has gone back takes it without a driver call and without a wait:
// what those streams were told to write there is then still to come, and comes
// over what is appended meanwhile, just as after a SetLen alone.
func (g *Range) Clip() error {
	if err := g.live(); err != nil {
		return g.fail("clip", 0, 0, err)
	}
	g.r.closeMu.Lock() // not g.write: nobody who appends waits for a Clip
	defer g.r.closeMu.Unlock()
	return g.fail("clip", g.len.Load(), 0, g.clip())
}

func (g *Range) clip() error {
	err := g.clipTail()
	if err == nil {
		_ = g.freeHostCopy() // what will not go now does so with the next Clip, or Close
	}
	return err
}

// giveUp is Clip with g.r.closer held.
func (g *Range) clipTail() error {
	g.lenMu.Lock()
	turn, off, size, err := g.retireTail()
	g.lenMu.Unlock()
	if err != nil || size == 0 {
		return err
	}
	g.r.copies.wait()
	marks, ok, err := g.r.fenceEvents()
	if err == nil && ok {
		g.r.unmapLater(&retirement{seq: turn, off: off, size: size, fences: marks})
		return nil
	}
	if err == nil {
		err = g.r.fenceAndUnmap(turn, off, size)
	} else {
		g.r.unretire(turn, off, size)
	}
	if err != nil {
		g.recountCap()
	}
	return err
}

// give marks the chunks beyond Len as retiring and takes them off Cap. The caller
// holds g.write and then waits for copies.
func (g *Range) retireTail() (turn, off, size uint64, err error) {
	g.capMu.Lock()
	defer g.capMu.Unlock()
	was := g.cap.Load()
	g.r.mu.Lock()
	off = was
	for i := len(g.r.slots) - 1; i >= 0 && g.r.slots[i].off >= g.len.Load(); i-- {
		off = min(off, g.r.slots[i].off)
	}
	g.r.mu.Unlock()
	if size = was - off; size == 0 {
		return 0, 0, 0, g.live()
	}
	// Cap first: a Grow that finds room then finds it for good, or waits here.
	g.cap.Store(off)
	if turn, err = g.r.markRetiring(off, size); err != nil {
		g.cap.Store(was)
		return 0, 0, 0, err
	}
	return turn, off, size, nil
}

// recount sets Cap to what is accessible.
func (g *Range) recountCap() {
	g.capMu.Lock()
	defer g.capMu.Unlock()
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if g.r.live() == nil {
		g.cap.Store(g.r.accessiblePrefixLocked())
	}
}

// Hold makes the bytes below n, which must be within Len, stay: until release
// is called, SetLen below n and Close answer ErrBusy. Calling release again
// does nothing.
func (g *Range) Hold(n uint64) (release func(), err error) {
	if g == nil {
		return nil, g.fail("hold", 0, n, g.live())
	}
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	if l := g.len.Load(); n > l && g.live() == nil {
		return nil, g.fail("hold", 0, n, fmt.Errorf("%w: the length is %d", ErrBounds, l))
	}
	release, err = g.r.hold(n)
	return release, g.fail("hold", 0, n, err)
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

// Changed is Reservation.Changed.
func (g *Range) Changed() <-chan struct{} { return g.res().Changed() }

// Generation is Reservation.Generation.
func (g *Range) Generation() uint64 { return g.res().Generation() }

// Close is Reservation.Close.
func (g *Range) Close() error { return g.CloseContext(context.Background()) }

// CloseContext is Reservation.CloseContext.
func (g *Range) CloseContext(ctx context.Context) error {
	if g == nil {
		return nil
	}
	if ctx != nil {
		g.r.closesRunning.Add(1)
	}
	return g.fail("close", 0, g.r.size, g.r.dev.until(ctx, func() error {
		defer g.r.closesRunning.Add(-1)
		return g.close()
	}))
}

func (g *Range) close() error {
	err := g.r.close(&g.lenMu)
	g.r.closeMu.Lock()
	defer g.r.closeMu.Unlock()
	if g.forget() {
		err = also(err, "and giving host memory back", g.freeHostCopy())
	}
	return err
}

// strike takes a range that is closed out of the books; false if it is not.
func (g *Range) forget() bool {
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	g.capMu.Lock()
	defer g.capMu.Unlock()
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if g.r.phase.Load() != isClosed {
		return false
	}
	if g.asleep {
		g.bookAwakeLocked()
	}
	g.publishLen(0)
	g.cap.Store(0)
	return true
}
