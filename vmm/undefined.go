package vmm

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/invariants"
)

// MarkUndefined says that work of the stream which was to write the spans was stopped, as
// when another process that took part has died, and that the bytes there are undefined. From now on
// whatever only reads some of them returns err: ReadAt and its kin, copies, kernels, spans of
// LockSpans with AccessRead. So does Sync of the stream. That ends for bytes which MarkWritten names,
// which a SetLen drops, which are unmapped, or of a block of a pool that is freed. Work that may
// write them is let through, so that it can write them again. Other processes do not learn of it, nor do
// views of the memory at another address.
//
// The check is made when work is queued, so what was queued before, on this stream or on one that waits for
// it, copies such bytes on unnoticed: it has to be made again, too.
//
// It waits for nothing. Whoever stops the work calls it before, so that no wait returns in between.
// Spans of 0 bytes, a nil stream and a nil err mark nothing.
func (s *Stream) MarkUndefined(err error, spans ...Span) {
	if s == nil || s.dev == nil || err == nil {
		return
	}
	all := s.dev.state.parent
	for _, x := range spans {
		if x.Size == 0 {
			continue
		}
		all.undefined.add(undefinedSpan{x.Addr, endOf(x), s, err})
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
		d.state.parent.undefined.remove(x.Addr, endOf(x))
	}
}

// forgetUndefinedLocked forgets the bytes of the slots [i, j), which are unmapped for good: those of a
// range that sleeps come back.
func (r *Reservation) forgetUndefinedLocked(i, j int) {
	invariants.Held(&r.mu)
	if r.dev.state.parent.undefined.count.Load() == 0 {
		return
	}
	for _, s := range r.table.Between(i, j) {
		r.dev.state.parent.undefined.remove(r.ptr+Ptr(s.Off), r.ptr+Ptr(s.End()))
	}
}

// endOf is the first address after the span, or the last address if it overflows.
func endOf(x Span) Ptr {
	if end := x.Addr + Ptr(x.Size); end >= x.Addr {
		return end
	}
	return math.MaxUint64
}

// undefined is the bytes of a driver's devices that MarkUndefined has named.
type undefined struct {
	count atomic.Int32 // of all: without any, nothing takes the lock

	mu  sync.Mutex // nothing else is locked while it is held
	all []undefinedSpan
}

type undefinedSpan struct {
	from, end Ptr
	stream    *Stream
	err       error
}

func (u *undefined) add(x undefinedSpan) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = append(u.all, x)
	u.count.Store(int32(len(u.all))) //nolint:gosec // a few
}

// remove forgets the bytes of [from, end), which may be in the middle of a span.
func (u *undefined) remove(from, end Ptr) {
	if u.count.Load() == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var left []undefinedSpan
	for _, x := range u.all {
		before, after := x, x
		before.end, after.from = min(x.end, from), max(x.from, end)
		for _, part := range []undefinedSpan{before, after} {
			if part.from < part.end {
				left = append(left, part)
			}
		}
	}
	u.all = left
	u.count.Store(int32(len(left))) //nolint:gosec // a few
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
