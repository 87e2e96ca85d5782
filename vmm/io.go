package vmm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/prefix"
	"github.com/cuvmm/cuvmm/vmm/internal/rows"
	"github.com/cuvmm/cuvmm/vmm/internal/staging"
)

// ReadFrom and WriteTo move this much at once, ReadFrom as much only from a
// reader that fills what it is given: enough for all copiers of a large copy.
const firstMove, mostMove = 1 << 20, staging.From

var errNoReader = fmt.Errorf("%w: no reader or writer", ErrInvalid)

// AppendOn is Append in the order of a stream: the copy runs after work queued on s earlier, and before
// work queued later. p may be reused when AppendOn returns. Len grows at once, before the bytes are
// there. ReadAt waits for them; other readers need WaitWritten. If UsedBy has named streams, s must be
// one of them, else ErrInvalid. A failed AppendOn has waited for its queued work. A SetLen that drops the
// bytes does not stop the copy: Sync s first, else the copy overwrites later appends.
func (g *Range) AppendOn(s *Stream, p []byte) error {
	if g == nil || g.r == nil {
		return g.wrap("append", 0, uint64(len(p)), g.checkOpen())
	}
	at, lacks, err := g.appendOn(s, p)
	if lacks > 0 {
		at, err = g.growFor("append", uint64(len(p)), lacks, func() (at, lacks uint64, err error) { return g.appendOn(s, p) })
	}
	g.requestGrowAhead()
	return g.wrap("append", at, uint64(len(p)), err)
}

// appendOn queues the copy if the bytes fit into Cap. If they do not, lacks is the Cap that they need. at is where
// they go.
func (g *Range) appendOn(s *Stream, p []byte) (at, lacks uint64, err error) {
	g.lenMu.Lock()
	defer g.lenMu.Unlock()
	at = g.len.Load()
	if err := g.checkOpen(); err != nil {
		return at, 0, err
	}
	if err := g.checkAppendStream(s); err != nil {
		return at, 0, err
	}
	end, err := g.endWithin(at, uint64(len(p)))
	if err != nil {
		return at, 0, err
	}
	if end > g.cap.Load() {
		return at, end, nil
	}
	r := g.r
	queued, err := s.copyIn(r.ptr+Ptr(at), p)
	if err != nil {
		if queued { // else it would run over what the next Append writes there
			if second := s.sync(); second != nil {
				err = errtext.Join(err, "and waiting for its stream", second)
				r.mu.Lock()
				r.noteAppendLocked(s) // so waitForWork waits for it
				r.mu.Unlock()
			}
		}
		return at, 0, err
	}
	// Both under r.mu: WaitWritten sees the length only with its append.
	r.mu.Lock()
	if len(p) > 0 {
		r.noteAppendLocked(s)
	}
	g.publishLenLocked(end)
	r.mu.Unlock()
	return at, 0, nil
}

// checkAppendStream is nil if waitForWork waits for the stream, which is open and
// not being captured.
func (g *Range) checkAppendStream(s *Stream) error {
	if err := s.checkUsable(g.r.dev.state.parent); err != nil {
		return err
	}
	if err := s.notCapturing(); err != nil {
		return err
	}
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	return g.r.checkStreamLocked(s)
}

// Write is Append, for io.Writer.
func (g *Range) Write(p []byte) (int, error) {
	if err := g.Append(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReadFrom appends the bytes that it reads from r until io.EOF.
func (g *Range) ReadFrom(r io.Reader) (n int64, err error) {
	if err := g.checkOpen(); err != nil || r == nil {
		return 0, g.wrap("read from", 0, 0, cmp.Or(err, errNoReader))
	}
	buf := make([]byte, firstMove)
	for {
		m, err := r.Read(buf)
		if m < 0 || m > len(buf) {
			return n, g.wrap("read from", 0, 0, fmt.Errorf("%w: the reader returned %d bytes of %d", ErrInvalid, m, len(buf)))
		}
		if werr := g.Append(buf[:m]); werr != nil {
			return n, werr
		}
		n += int64(m)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		// A reader that fills the buffer has more: larger moves go faster.
		if m == len(buf) && m < mostMove {
			buf = make([]byte, 2*m)
		}
	}
}

// ReadAt copies bytes from off on to p. It waits first for work that may write them, as Unmap does, and
// so returns ErrCapturing during a capture. It returns io.EOF past the lowest Len during the call.
func (g *Range) ReadAt(p []byte, off int64) (int, error) {
	n, err := g.readAt(p, off, 1, 1)
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, g.wrap("read", uint64(max(off, 0)), uint64(len(p)), err)
}

func (g *Range) readAt(p []byte, off int64, width, pitch uint64) (int, error) {
	if err := g.checkOpen(); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fmt.Errorf("%w: offset %d", ErrBounds, off)
	}
	// The length first: work that is queued for what is appended later is not waited for. Of what
	// comes back after Len has moved down meanwhile nothing is read: it may not have arrived.
	lowest := g.lows.Begin()
	defer g.lows.End(lowest)
	have := g.len.Load()
	// Before the copy is counted: this wait must not hold up those that wait for copies.
	stops := g.r.dev.state.parent.stops.ended.Load()
	if err := cmp.Or(g.r.waitForWork(), g.r.stopped(stops)); err != nil {
		return 0, err
	}
	o, epoch, err := g.beginCopy()
	if err != nil {
		return 0, err
	}
	defer g.r.copies.End(epoch)
	now := g.len.Load()
	n, eof := rows.Below(len(p), off, min(have, now, g.lows.Lowest(lowest)), width, pitch)
	if n > 0 {
		at := g.r.ptr + Ptr(off)
		if err := o.stage.CopyOut(p[:n], rows.Rows{Ptr: at, Width: width, Pitch: pitch}); err != nil {
			return 0, err
		}
	}
	return n, eof
}

// WriteAt replaces bytes from off on. If not all of them lie below Len, it returns ErrBounds and writes
// nothing. It has finished when it returns and does not wait for work of other streams.
func (g *Range) WriteAt(p []byte, off int64) (int, error) {
	n, err := g.writeAt(p, off, uint64(len(p)), 1, 1)
	return n, g.wrap("write", uint64(max(off, 0)), uint64(len(p)), err)
}

// writeAt writes rows that take size bytes with their padding.
func (g *Range) writeAt(p []byte, off int64, size, width, pitch uint64) (int, error) {
	if err := g.checkOpen(); err != nil {
		return 0, err
	}
	o, epoch, err := g.beginCopy()
	if err != nil {
		return 0, err
	}
	defer g.r.copies.End(epoch)
	have := g.len.Load()
	if off < 0 || uint64(off) > have || size > have-uint64(off) {
		return 0, fmt.Errorf("%w: %d bytes at %d in a length of %d", ErrBounds, size, off, have)
	}
	if len(p) == 0 {
		return 0, nil
	}
	// Below Len, but a SetLen and a Clip may take it away up to here.
	if err := g.checkWritable(uint64(off), size); err != nil {
		return 0, err
	}
	if err := o.stage.CopyIn(rows.Rows{Ptr: g.r.ptr + Ptr(off), Width: width, Pitch: pitch}, p); err != nil {
		return 0, g.refusedWrite(uint64(off), size, err)
	}
	return len(p), nil
}

// WriteTo writes the bytes below Len, as it stands at the start, to w.
func (g *Range) WriteTo(w io.Writer) (n int64, err error) {
	if err := g.checkOpen(); err != nil || w == nil {
		return 0, g.wrap("write to", 0, 0, cmp.Or(err, errNoReader))
	}
	end := int64(g.len.Load())
	buf := make([]byte, min(mostMove, end))
	for n < end {
		m, err := g.ReadAt(buf[:min(int64(len(buf)), end-n)], n)
		if errors.Is(err, io.EOF) {
			end = n + int64(m) // Len has moved down meanwhile
		} else if err != nil {
			return n, err
		}
		m, err = w.Write(buf[:m])
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Host returns the first Len bytes as a slice at Ptr if the CPU can address the memory; on CUDA it
// returns ErrNotSupported. The slice stays valid while the range grows, until Close or a Clip or SetLen
// below it. Touching it after that ends the process. Host waits for nothing.
func (g *Range) Host() (b []byte, err error) {
	if err = g.checkOpen(); err == nil {
		b, err = prefix.HostBytes(g.r.dev.drv, g.r.ptr, g.len.Load())
	}
	return b, g.wrap("view from the host", 0, 0, err)
}

var (
	_ io.Writer     = (*Range)(nil)
	_ io.ReaderAt   = (*Range)(nil)
	_ io.WriterAt   = (*Range)(nil)
	_ io.ReaderFrom = (*Range)(nil)
	_ io.WriterTo   = (*Range)(nil)
)

// AppendRows is Append of rows: p has rows of width bytes side by side, and each is written pitch bytes
// after the one before. Len grows by pitch for each row. Padding between the rows is not written: with
// RangeOptions.Zero it is zeros, else it may be what an earlier range of the Device left. It returns
// ErrInvalid if p is no whole rows or the pitch is below the width.
func (g *Range) AppendRows(p []byte, width, pitch uint64) error {
	size, err := sizeOfRows(p, width, pitch)
	if err != nil {
		if dead := g.checkOpen(); dead != nil {
			err = dead
		}
		return g.wrap("append rows", g.Len(), uint64(len(p)), err)
	}
	return g.appendRows("append rows", p, size, width, pitch)
}

// ReadRowsAt is ReadAt of rows as AppendRows writes them, the first at off: p holds rows of width bytes,
// side by side. It returns how many bytes it copied, in whole rows. If fewer rows than p holds lie below
// Len, each with its padding, it also returns io.EOF.
func (g *Range) ReadRowsAt(p []byte, off int64, width, pitch uint64) (n int, err error) {
	if err = checkRows(p, width, pitch); err == nil || g.checkOpen() != nil {
		n, err = g.readAt(p, off, max(width, 1), max(pitch, 1))
	}
	if errors.Is(err, io.EOF) {
		return n, io.EOF
	}
	return n, g.wrap("read rows", uint64(max(off, 0)), uint64(len(p)), err)
}

// WriteRowsAt is WriteAt of rows as AppendRows writes them, the first at off. If not all of them, each
// with its padding, lie below Len, it returns ErrBounds and writes nothing. It returns how many bytes of
// p it wrote.
func (g *Range) WriteRowsAt(p []byte, off int64, width, pitch uint64) (n int, err error) {
	size, err := sizeOfRows(p, width, pitch)
	if errors.Is(err, ErrFull) {
		err = fmt.Errorf("%w: %d rows with a pitch of %d bytes", ErrBounds, uint64(len(p))/width, pitch)
	}
	if err == nil || g.checkOpen() != nil {
		n, err = g.writeAt(p, off, size, max(width, 1), max(pitch, 1))
	}
	return n, g.wrap("write rows", uint64(max(off, 0)), uint64(len(p)), err)
}

// checkRows is nil if p is whole rows of width bytes that do not overlap.
func checkRows(p []byte, width, pitch uint64) error {
	switch {
	case width == 0 || pitch < width:
		return fmt.Errorf("%w: a pitch of %d bytes for rows of %d", ErrInvalid, pitch, width)
	case uint64(len(p))%width != 0:
		return fmt.Errorf("%w: %d bytes are no whole rows of %d", ErrInvalid, len(p), width)
	}
	return nil
}

// sizeOfRows is how many bytes the rows in p take with their padding.
func sizeOfRows(p []byte, width, pitch uint64) (uint64, error) {
	if err := checkRows(p, width, pitch); err != nil {
		return 0, err
	}
	over, size := bits.Mul64(uint64(len(p))/width, pitch)
	if over != 0 {
		return 0, fmt.Errorf("%w: %d rows with a pitch of %d bytes are more than 2^64-1", ErrFull, uint64(len(p))/width, pitch)
	}
	return size, nil
}

// WaitWritten returns the present Len once the copies that AppendOn has queued for bytes below it have
// run. Readers that know nothing of the streams may then read up to it. If no AppendOn is under way, it
// returns at once, without a driver call. Else it waits for all work that the streams of those AppendOns
// have so far, and returns ErrCapturing while one of them is being captured. It stops waiting when ctx is
// done and returns ctx's error. It returns ErrDeviceLost for memory of a lost device. It does not wait
// for other work that writes, for example a kernel.
func (g *Range) WaitWritten(ctx context.Context) (n uint64, err error) {
	defer func() { err = g.wrap("wait for appends", 0, 0, err) }()
	if err := g.checkOpen(); err != nil {
		return 0, err
	}
	if ctx == nil {
		return 0, errNoContext
	}
	// Under r.mu: a length that is seen has its append among those pending.
	r := g.r
	r.mu.Lock()
	n, seq, some, err := g.len.Load(), r.users.LastAppend(), r.users.Pending(), r.checkOpen()
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if !some {
		return n, nil
	}
	// One goroutine waits at a time; other callers wait for the slot. So callers that give
	// up leave at most one thread in the driver.
	select {
	case g.waitSlot <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	err = r.dev.runDetached(ctx, func() error {
		defer func() { <-g.waitSlot }()
		return r.waitAppends(seq)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
