// Package staging copies pageable host memory to and from a device through pinned memory, faster than
// the device's driver does. It takes the driver's device, and knows no reservation.
package staging

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/hostcopy"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/order"
	"github.com/cuvmm/cuvmm/vmm/internal/rows"
)

// Beside an H200, copiers with blocks of 4 MiB reach this much of a pinned copy's speed: 8 of them
// 0.92 to the device and 0.79 from it, 16 of them 0.91 and 0.92, 24 no more
// (docs/benchmarks/other-programs.md).
const (
	laneBlock = 4 << 20 // bytes of a block; a lane has two
	mostLanes = 16      // so at most 128 MiB are pinned for a device
)

const (
	// From is where staging begins. Below it the driver was faster on an
	// H200 (BenchmarkCopyIn, staging forced): host to device, 18 against 11 GB/s at
	// 16 MiB, 18 against 19 at 32 MiB, 19 against 31 at 64 MiB.
	From = 32 << 20
	// leastPiece keeps the calls for a piece small beside its copy.
	leastPiece = 1 << 20
	// Two copiers reach 21 GB/s from host to device on an H200; the driver's own pageable
	// copy 10, and 19 from device to host (docs/benchmarks/other-programs.md).
	fewestToDevice, fewestToHost = 2, 3
	// Memory that was never touched gets its pages on the way. That takes longer than the
	// copy, so it is worth a copier less; and pieces that stay in a processor's cache meanwhile:
	// 16 copiers reach 31 GB/s by 2 MiB, 25 by 4 MiB (docs/benchmarks/other-programs.md).
	fewestToFresh, freshPiece = 2, 2 << 20
	// On an H200 the driver's copy of pageable rows of an odd width is slow: 0.2 GB/s at 60
	// bytes, 1.5 at 508, 3.5 at 1,000. With a multiple of evenWidth it reaches 15, and from
	// wideRow on it does not matter. Staged rows of 500 bytes reach 6.
	stageRowsFrom      = 64 << 10
	evenWidth, wideRow = 16, 2 << 10
)

// Lanes is the pinned memory through which pageable host memory is copied. Safe for concurrent use.
type Lanes struct {
	device *order.Device
	viewer driver.HostViewer // nil: the CPU can address no memory of the device
	hooks  *Hooks

	mu        lock.Mutex
	idle      []*Lane
	unusable  []*Lane      // never lent again, freed by Close: half made, or once maybeBusy
	inUse     int          // lanes in use or being made
	maybeBusy atomic.Int32 // of unusable: those whose own streams were not waited for yet; and 1 for fillRuns
	fillRuns  bool         // a fill on the device's copy stream was not waited for yet
	noMore    error        // why no more lanes can be made; nil if they can
}

// ErrCopying is for a Close while a copy is under way.
var ErrCopying = errors.New("a copy is under way")

// Hooks are for tests.
type Hooks struct {
	Off      bool
	Forced   bool   // also where the CPU can address the memory
	Block    uint64 // bytes of a block; 0 is 4 MiB
	Lanes    int    // 0 is as many as there are processors
	Careless bool   // blocks are used again before they are free
}

// New makes the Lanes of a device. They pin no memory before it is needed.
func New(device *order.Device, drv driver.Driver, hooks *Hooks) *Lanes {
	st := &Lanes{device: device, hooks: hooks}
	st.viewer, _ = drv.(driver.HostViewer)
	st.mu.At(lock.Staging, 0)
	return st
}

// Pinned is how many bytes of host memory the lanes have.
func (st *Lanes) Pinned() (n uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, l := range append(st.idle[:len(st.idle):len(st.idle)], st.unusable...) {
		n += uint64(len(l.blocks[0].mem) + len(l.blocks[1].mem))
	}
	return n + uint64(st.inUse)*2*st.size()
}

// size is how many bytes a block has.
func (st *Lanes) size() uint64 {
	if n := st.hooks.Block; n > 0 {
		return n
	}
	return laneBlock
}

// limit is how many lanes there may be.
func (st *Lanes) limit() int {
	if n := st.hooks.Lanes; n > 0 {
		return n
	}
	return min(runtime.GOMAXPROCS(0), mostLanes)
}

// Transfer is a copy between host memory and rows of the device that has as many bytes.
type Transfer struct {
	At   rows.Rows
	Host []byte
}

// CopyIn copies host memory to rows of the device and has finished when it returns.
// The caller keeps the memory from being unmapped.
func (st *Lanes) CopyIn(dst rows.Rows, src []byte) error {
	if !dst.IsFlat() {
		dst = dst.First(uint64(len(src)))
	}
	if dst.IsFlat() && st.tooSmall(uint64(len(src))) {
		return st.device.CopyIn(dst.Ptr, src)
	}
	return st.CopyAllIn([]Transfer{{dst, src}})
}

// CopyAllIn is CopyIn of one or several, which the lanes share. Several are flat.
func (st *Lanes) CopyAllIn(all []Transfer) error {
	staged, err := st.run(all, fewestToDevice, st.size(), func(l *Lane, next nextPiece) error {
		for k := 0; ; k ^= 1 {
			piece := next()
			if piece == nil {
				return nil
			}
			// One block is filled while the copy out of the other runs.
			b := &l.blocks[k]
			if err := st.ready(b); err != nil {
				return err
			}
			n := copy(b.mem, piece.Host)
			if err := l.queueCopy(st.device, b, piece.At, rows.Flat(b.p), uint64(n)); err != nil {
				return err
			}
		}
	})
	for i := 0; i < len(all) && err == nil && !staged; i++ {
		err = st.copyInNow(all[i].At, all[i].Host)
	}
	return err
}

// CopyOut is CopyIn the other way.
func (st *Lanes) CopyOut(dst []byte, src rows.Rows) error {
	if !src.IsFlat() {
		src = src.First(uint64(len(dst)))
	}
	if src.IsFlat() && st.tooSmall(uint64(len(dst))) {
		return st.device.CopyOut(dst, src.Ptr)
	}
	return st.CopyAllOut([]Transfer{{src, dst}})
}

// CopyAllOut is CopyAllIn the other way.
func (st *Lanes) CopyAllOut(all []Transfer) error {
	fewest, most := fewestToHost, st.size()
	fresh := slices.ContainsFunc(all, func(t Transfer) bool { return hostcopy.IsFresh(t.Host) })
	if fresh {
		fewest, most = fewestToFresh, min(most, freshPiece)
	}
	staged, err := st.run(all, fewest, most, func(l *Lane, next nextPiece) error {
		return st.drain(l, 0, fresh, func(b *Block) ([]byte, error) {
			piece := next()
			if piece == nil {
				return nil, nil
			}
			return piece.Host, l.queueCopy(st.device, b, rows.Flat(b.p), piece.At, uint64(len(piece.Host)))
		})
	})
	for i := 0; i < len(all) && err == nil && !staged; i++ {
		err = st.copyOutNow(all[i].Host, all[i].At)
	}
	return err
}

// drain copies out of the lane's blocks in turn, beginning with block k. queueNext
// queues the next copy into a block and returns where its bytes go, nil if there is no more.
// So one copy runs while the bytes of the one before are copied out of the other block. fresh is
// that of where they go, by hostcopy.IsFresh.
func (st *Lanes) drain(l *Lane, k int, fresh bool, queueNext func(*Block) (dst []byte, err error)) error {
	var last []byte // where the bytes in the other block go
	for ; ; k ^= 1 {
		next, err := queueNext(&l.blocks[k])
		if err != nil {
			return err
		}
		if other := &l.blocks[k^1]; last != nil {
			if err := st.ready(other); err != nil {
				return err
			}
			if fresh {
				hostcopy.Copy(last, other.mem)
			} else {
				copy(last, other.mem)
			}
		}
		if next == nil {
			return nil
		}
		last = next
	}
}

// tooSmall says that a copy of n flat bytes goes the driver's way at once.
func (st *Lanes) tooSmall(n uint64) bool {
	return n < From && st.maybeBusy.Load() == 0 && !st.hooks.Forced
}

// nextPiece is the next piece of a copy that no lane has taken, or nil.
type nextPiece func() *Transfer

// run has lanes work through the pieces of transfers, of most bytes each, until none is
// left or one has failed, the first lane in the caller; false if the driver's own way is no slower.
// More lanes are made while the first copy. No lane has work left when it returns. It returns the
// first error.
func (st *Lanes) run(all []Transfer, fewest int, most uint64, work func(*Lane, nextPiece) error) (staged bool, err error) {
	if err := st.Sync(); err != nil {
		return false, err
	}
	lanes, want, piece := st.take(all, fewest, most)
	if len(lanes) == 0 {
		return false, nil
	}
	if err := st.device.CheckAlive(); err != nil {
		st.PutBack(lanes...)
		return false, err
	}
	pieces := Cut(all, piece)
	var taken atomic.Int64
	next := func() *Transfer {
		if i := taken.Add(1) - 1; i < int64(len(pieces)) {
			return &pieces[i]
		}
		return nil
	}
	// The first error ends the copy: the others find no piece left.
	var once sync.Once
	copier := func(l *Lane) {
		defer st.PutBack(l)
		failed := work(l, next)
		if syncErr := l.sync(st.device); failed == nil {
			failed = syncErr
		}
		if failed != nil {
			taken.Store(int64(len(pieces)))
			once.Do(func() { err = failed })
		}
	}
	var copiers sync.WaitGroup
	for _, l := range lanes[1:] {
		copiers.Go(func() { copier(l) })
	}
	if len(lanes) < want {
		copiers.Go(func() {
			for range want - len(lanes) {
				l := st.newLane()
				if l == nil {
					return
				}
				copiers.Go(func() { copier(l) })
				if taken.Load() >= int64(len(pieces)) {
					return
				}
			}
		})
	}
	copier(lanes[0])
	copiers.Wait()
	return true, err
}

// Cut divides transfers into pieces of that size at most.
func Cut(all []Transfer, piece uint64) (pieces []Transfer) {
	if len(all) == 1 {
		pieces = make([]Transfer, 0, uint64(len(all[0].Host))/piece+1)
	}
	for _, t := range all {
		for part := range slices.Chunk(t.Host, int(min(piece, math.MaxInt))) {
			pieces = append(pieces, Transfer{t.At, part})
			t.At = t.At.From(uint64(len(part)))
		}
	}
	return pieces
}

// stagedFrom is from how many bytes on a copy is staged, and by how many lanes at least,
// where that of flat bytes needs fewest.
func stagedFrom(r rows.Rows, fewest int) (from uint64, lanes int) {
	if r.IsFlat() || r.Width%evenWidth == 0 || r.Width >= wideRow {
		return From, fewest
	}
	return stageRowsFrom, 1
}

// take returns lanes for transfers, of which want could work, and how much each should
// copy at once, most at most; or none if the driver's own way is no slower. It waits for no lane.
func (st *Lanes) take(all []Transfer, fewest int, most uint64) (lanes []*Lane, want int, piece uint64) {
	at, n := all[0].At, uint64(0) // several are alike
	for _, t := range all {
		n += uint64(len(t.Host))
	}
	from, fewest := stagedFrom(at, fewest)
	least, size := uint64(leastPiece), st.size()
	if st.hooks.Forced {
		from, least, fewest = 1, max(1, size/8), 1
	}
	if n < from || st.limit() < fewest || !st.worthStaging(at.Ptr) || !at.IsFlat() && at.Width > size {
		return nil, 0, 0
	}
	want = int(min((n+least-1)/least, uint64(st.limit())))
	if want < fewest {
		return nil, 0, 0
	}
	st.mu.Lock()
	for i := len(st.idle) - 1; i >= 0 && len(lanes) < want; i-- {
		// Both blocks have to be free: take waits for no lane.
		if l := st.idle[i]; st.blockDoneLocked(&l.blocks[0]) && st.blockDoneLocked(&l.blocks[1]) {
			st.idle = append(st.idle[:i], st.idle[i+1:]...)
			lanes = append(lanes, l)
		}
	}
	st.inUse += len(lanes)
	st.mu.Unlock()
	for len(lanes) < fewest {
		l := st.newLane()
		if l == nil {
			break
		}
		lanes = append(lanes, l)
	}
	if len(lanes) < fewest {
		st.PutBack(lanes...)
		return nil, 0, 0
	}
	// Four pieces for a lane let copies and bus work at the same time; whole
	// pages keep the bus at its best.
	const whole = 4096
	piece = n / uint64(4*want)
	if !st.hooks.Forced {
		piece = (piece + whole - 1) &^ (whole - 1)
	}
	if !at.IsFlat() {
		most = max(most, at.Width) // a row is not divided
	}
	return lanes, want, at.Whole(min(max(piece, least), most))
}

// blockDoneLocked reports whether the block is free, without waiting. It needs st.mu.
func (st *Lanes) blockDoneLocked(b *Block) bool {
	invariants.Held(&st.mu)
	if b.busy && !st.hooks.Careless {
		if done, err := st.device.Done(b.event); err != nil || !done {
			return false
		}
	}
	b.busy, b.used = false, 0
	return true
}

// MustSync reports whether Sync has something to wait for.
func (st *Lanes) MustSync() bool { return st.maybeBusy.Load() > 0 }

// worthStaging reports whether staging is faster than the driver's own copy, which it is
// not if the CPU can address the memory.
func (st *Lanes) worthStaging(at driver.Ptr) bool {
	if st.hooks.Off || st.hooks.Forced {
		return !st.hooks.Off
	}
	if st.viewer == nil {
		return true
	}
	_, err := st.viewer.HostBytes(at, 1)
	return errors.Is(err, driver.ErrNotSupported)
}

// PutBack takes lanes back.
func (st *Lanes) PutBack(lanes ...*Lane) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.inUse -= len(lanes)
	for _, l := range lanes {
		if l.maybeBusy {
			st.unusable = append(st.unusable, l)
			st.maybeBusy.Add(1)
		} else {
			st.idle = append(st.idle, l)
		}
	}
}

// Sync waits for what maybeBusy lanes may still be copying, and for a fill. Every
// copy, and every wait for work, calls it first.
func (st *Lanes) Sync() error {
	if st.maybeBusy.Load() == 0 {
		return nil
	}
	st.mu.Lock()
	lanes := slices.Clone(st.unusable)
	st.mu.Unlock()
	for _, l := range lanes {
		if l.queue == 0 { // never made
			continue
		}
		if err := st.device.SyncStream(l.queue); err != nil {
			return err
		}
		st.mu.Lock()
		if l.maybeBusy {
			l.maybeBusy = false
			st.maybeBusy.Add(-1)
		}
		st.mu.Unlock()
	}
	st.mu.Lock()
	fillRuns := st.fillRuns
	st.mu.Unlock()
	if !fillRuns {
		return nil
	}
	if err := st.device.SyncStream(st.device.CopyStream()); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.fillRuns {
		st.fillRuns = false
		st.maybeBusy.Add(-1)
	}
	return nil
}

// NoteFill notes that a fill on the device's copy stream could not be waited for: what
// would copy, wait or unmap does that first.
func (st *Lanes) NoteFill() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.fillRuns {
		st.fillRuns = true
		st.maybeBusy.Add(1)
	}
}

// Close frees everything. Freeing pinned memory waits for the
// whole device, so it is done here only. What a lost device does not take back
// goes with its context.
func (st *Lanes) Close() error {
	st.mu.Lock()
	if st.inUse > 0 {
		st.mu.Unlock()
		return ErrCopying
	}
	lanes := append(st.unusable, st.idle...)
	st.idle, st.unusable = nil, nil
	st.mu.Unlock()
	// Without the lock, since it waits for the device.
	var err error
	for len(lanes) > 0 && err == nil {
		last := len(lanes) - 1
		if err = lanes[last].free(st.device); err == nil {
			lanes = lanes[:last]
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.unusable = append(st.unusable, lanes...)
	if err == nil {
		st.maybeBusy.Store(0)
		st.fillRuns = false
		st.noMore = nil
	}
	return err
}

// free gives back what the lane still has, and can be called again.
func (l *Lane) free(raw *order.Device) error {
	released := func(err error) bool { return err == nil || errors.Is(err, driver.ErrDeviceLost) }
	// The work first: pinned memory is freed only once no copy uses it.
	if l.queue != 0 {
		if err := raw.SyncStream(l.queue); !released(err) {
			return err
		}
	}
	for i := range l.blocks {
		b := &l.blocks[i]
		if b.busy {
			if err := raw.SyncEvent(b.event); !released(err) {
				return err
			}
			b.busy = false
		}
		if b.event != 0 {
			if err := raw.FreeEvent(b.event); err != nil {
				return err
			}
			b.event = 0
		}
		if allocator, ok := order.As[driver.HostAllocator](raw); ok && b.p != 0 {
			if err := allocator.FreeHost(b.p); !released(err) {
				return err
			}
			b.p, b.mem = 0, nil
		}
	}
	if l.queue != 0 {
		if err := raw.FreeQueue(l.queue); err != nil {
			return err
		}
		l.queue = 0
	}
	return nil
}

// copyInNow copies rows by the driver's own copy of host memory: row by row where the
// driver has none of rows.
func (st *Lanes) copyInNow(dst rows.Rows, src []byte) error {
	n := uint64(len(src))
	if dst.IsFlat() {
		return st.device.CopyIn(dst.Ptr, src)
	}
	if c, ok := order.As[driver.Copier2D](st.device); ok {
		if err := c.CopyIn2D(dst.Pitched(), src, dst.Width); !errors.Is(err, driver.ErrNotSupported) {
			return err
		}
	}
	return dst.Each(n, func(off uint64, p driver.Ptr) error { return st.device.CopyIn(p, src[off:off+dst.Width]) })
}

// copyOutNow is copyInNow the other way.
func (st *Lanes) copyOutNow(dst []byte, src rows.Rows) error {
	n := uint64(len(dst))
	if src.IsFlat() {
		return st.device.CopyOut(dst, src.Ptr)
	}
	if c, ok := order.As[driver.Copier2D](st.device); ok {
		if err := c.CopyOut2D(dst, src.Pitched(), src.Width); !errors.Is(err, driver.ErrNotSupported) {
			return err
		}
	}
	return src.Each(n, func(off uint64, p driver.Ptr) error { return st.device.CopyOut(dst[off:off+src.Width], p) })
}

// CopyRows queues a copy of n bytes between rows of one width, or flat memory. After an
// error some of it may be queued.
func CopyRows(raw *order.Device, dst, src rows.Rows, n uint64, queue driver.Stream) error {
	if dst, src = dst.First(n), src.First(n); dst.IsFlat() && src.IsFlat() {
		return raw.Copy(dst.Ptr, src.Ptr, n, queue)
	}
	width := max(dst.Width, src.Width) // one side may be flat
	dst, src = dst.OfWidth(width), src.OfWidth(width)
	if c, ok := order.As[driver.Copier2D](raw); ok {
		err := c.Copy2D(dst.Pitched(), src.Pitched(), width, n/width, queue)
		if !errors.Is(err, driver.ErrNotSupported) {
			return err
		}
	}
	return dst.Each(n, func(off uint64, p driver.Ptr) error { return raw.Copy(p, src.From(off).Ptr, width, queue) })
}
