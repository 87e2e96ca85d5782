package vmm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// Moment is a point in the order in which memory is given up: see Drops. The zero Moment comes
// after all.
type Moment uint64

// Drops remembers what memory is given up while work that writes to it is queued and may be
// stopped: what SetLen drops, what is unmapped, what is freed in its pool, and what MarkWritten
// names. A library that stops its work needs one, for MarkUndefined. Safe for concurrent use. The
// caller must Close it.
type Drops struct {
	of   *driverState
	from Moment // remembered from there on; 0: not at all. Guarded by undefined.mu
}

// NewDrops makes a Drops that remembers nothing yet; nil of a nil device, which never does.
func (d *Device) NewDrops() *Drops {
	if d == nil || d.state == nil {
		return nil
	}
	return &Drops{of: d.state.parent}
}

// Now is the Moment for work that is queued next. What is given up from here on is remembered,
// until Forget.
func (x *Drops) Now() Moment {
	if x == nil || x.of == nil {
		return 0
	}
	return x.of.undefined.begin(x)
}

// Forget ends what is remembered of before a Moment of Now, because all work of before it has run;
// with the zero Moment all of it.
func (x *Drops) Forget(before Moment) {
	if x != nil && x.of != nil {
		x.of.undefined.forget(x, before)
	}
}

// Close is Forget of everything. Twice is fine.
func (x *Drops) Close() { x.Forget(0) }

// MarkUndefined says that work of the stream which was to write the spans was stopped, as when
// another process that took part has died, and that the bytes there are undefined. From now on
// whatever only reads some of them returns err: ReadAt and its kin, copies, kernels, spans of
// LockSpans with AccessRead. So does Sync of the stream. That ends for bytes which MarkWritten
// names, which a SetLen drops, which are unmapped, or of a block of a pool that is freed. Work that
// may write them is let through, so that it can write them again. Other processes do not learn of
// it, nor do views of the memory at another address.
//
// What of the spans was given up since the work was queued is not marked: it can be anybody's
// memory by now. Since is what Drops.Now said before that; zero is for work whose memory is still
// the caller's.
//
// The check is made when work is queued, so what was queued before, on this stream or on one that
// waits for it, copies such bytes on unnoticed: it has to be made again, too.
//
// It waits for nothing. Whoever stops the work calls it before, so that no wait returns in between.
// Spans of 0 bytes, a nil stream and a nil err mark nothing.
func (s *Stream) MarkUndefined(err error, since Moment, spans ...Span) {
	if s == nil || s.dev == nil || err == nil {
		return
	}
	all := s.dev.state.parent
	for _, x := range spans {
		if x.Size == 0 {
			continue
		}
		all.undefined.add(undefinedSpan{x.Addr, endOf(x), s, err}, since)
		if r := all.find(x.Addr); r != nil {
			r.namings.Add(1) // what was checked for a kernel is checked again
		}
	}
}

// Undefined is the error of the first bytes that work of the stream was to write and that are
// undefined; nil if there are none.
func (s *Stream) Undefined() error {
	if s == nil || s.dev == nil {
		return errNoStream
	}
	return s.dev.state.parent.undefined.checkStream(s)
}

// MarkWritten says that the spans have been written, or need not be: see MarkUndefined. On a nil
// device it does nothing.
func (d *Device) MarkWritten(spans ...Span) {
	if d == nil || d.state == nil {
		return
	}
	for _, x := range spans {
		d.state.parent.undefined.remove(x.Addr, endOf(x), true)
	}
}

// forgetUndefinedLocked forgets the bytes of the slots [i, j), which are unmapped for good: those
// of a range that sleeps come back.
func (r *Reservation) forgetUndefinedLocked(i, j int) {
	invariants.Held(&r.mu)
	if r.dev.state.parent.undefined.watched.Load() == 0 {
		return
	}
	for _, s := range r.table.Between(i, j) {
		r.dev.state.parent.undefined.remove(r.ptr+Ptr(s.Off), r.ptr+Ptr(s.End()), true)
	}
}

// endOf is the first address after the span, or the last address if it overflows.
func endOf(x Span) Ptr {
	if end := x.Addr + Ptr(x.Size); end >= x.Addr {
		return end
	}
	return math.MaxUint64
}

// undefined is the bytes of a driver's devices that MarkUndefined has named, and those that were
// given up lately.
type undefined struct {
	count   atomic.Int32 // of marks: without any, no check takes the lock
	watched atomic.Int32 // marks, and Drops that remember: without any, nothing that is given up does

	mu       sync.Mutex // nothing else is locked while it is held
	all      []undefinedSpan
	drops    []drop
	now      Moment
	remember []*Drops
}

type undefinedSpan struct {
	from, end Ptr
	stream    *Stream
	err       error
}

// drop is memory that was given up at a Moment.
type drop struct {
	from, end Ptr
	at        Moment
}

// maxDrops is how many drops are remembered. Of the older half of more nothing is known any more:
// then what of it is undefined stays marked.
const maxDrops = 1 << 15

// begin has x remember from here on, unless it does already.
func (u *undefined) begin(x *Drops) Moment {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now++
	if x.from == 0 {
		x.from = u.now
		u.remember = append(u.remember, x)
		u.countLocked()
	}
	return u.now
}

// forget has x remember nothing of before a Moment; 0: nothing at all.
func (u *undefined) forget(x *Drops, before Moment) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if x.from == 0 || before != 0 && before <= x.from {
		return
	}
	if x.from = before; before == 0 {
		u.remember = slices.DeleteFunc(u.remember, func(o *Drops) bool { return o == x })
		u.countLocked()
	}
	oldest := u.now + 1
	for _, o := range u.remember {
		oldest = min(oldest, o.from)
	}
	if u.drops = slices.Delete(u.drops, 0, u.dropsBeforeLocked(oldest)); len(u.drops) == 0 {
		u.drops = nil
	}
}

// dropsBeforeLocked is how many drops were before a Moment. Requires mu.
func (u *undefined) dropsBeforeLocked(m Moment) int {
	i, _ := slices.BinarySearchFunc(u.drops, m, func(d drop, m Moment) int { return cmp.Compare(d.at, m) })
	return i
}

// countLocked shows what there is to those that come without the lock. Requires mu.
func (u *undefined) countLocked() {
	u.count.Store(int32(len(u.all)))                     //nolint:gosec // a few
	u.watched.Store(int32(len(u.all) + len(u.remember))) //nolint:gosec // a few
}

// add marks what of x was not given up since.
func (u *undefined) add(x undefinedSpan, since Moment) {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := []undefinedSpan{x}
	if since != 0 {
		for _, d := range u.drops[u.dropsBeforeLocked(since+1):] {
			if d.from < x.end && x.from < d.end {
				left = without(left, d.from, d.end)
			}
		}
	}
	u.all = append(u.all, left...)
	u.countLocked()
}

// remove forgets the bytes of [from, end), which may be in the middle of a span. With drop they are
// given up: what is stopped later does not mark them either.
func (u *undefined) remove(from, end Ptr, dropped bool) {
	if u.watched.Load() == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if dropped && len(u.remember) > 0 {
		if len(u.drops) >= maxDrops {
			u.drops = slices.Delete(u.drops, 0, maxDrops/2)
		}
		u.now++
		u.drops = append(u.drops, drop{from, end, u.now})
	}
	if len(u.all) > 0 {
		u.all = without(u.all, from, end)
		u.countLocked()
	}
}

// without is the spans without the bytes of [from, end).
func without(all []undefinedSpan, from, end Ptr) (left []undefinedSpan) {
	for _, x := range all {
		before, after := x, x
		before.end, after.from = min(x.end, from), max(x.from, end)
		for _, part := range []undefinedSpan{before, after} {
			if part.from < part.end {
				left = append(left, part)
			}
		}
	}
	return left
}

// check is nil if all bytes of [from, end) are defined.
func (u *undefined) check(from, end Ptr) error {
	return u.first(func(x undefinedSpan) bool { return x.from < end && from < x.end })
}

// checkStream is nil if no bytes are undefined that work of the stream was to write.
func (u *undefined) checkStream(s *Stream) error {
	return u.first(func(x undefinedSpan) bool { return x.stream == s })
}

func (u *undefined) first(is func(undefinedSpan) bool) error {
	if u.count.Load() == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.IndexFunc(u.all, is)
	if i < 0 {
		return nil
	}
	x := u.all[i]
	return fmt.Errorf("the %d bytes at %v are undefined: %w", x.end-x.from, x.from, x.err)
}
