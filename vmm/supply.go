package vmm

import (
	"context"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
)

// Supplier gives a Range its memory, in place of Device.Create, for example memory imported from another
// process.
//
// A range with a Supplier neither uses cached memory nor adds any: it closes what it gives up. Imported
// chunks do not count against Device.SetLimit. Sleep returns ErrNotSupported.
type Supplier interface {
	// Chunks returns chunks of the range's Device, of need bytes together or more. They are mapped from
	// off on, side by side in their order. off is where the range's memory ends, and need is the least
	// that the growth lacks. Both are multiples of the granularity, and each chunk's size must be one,
	// too. All chunks must fit below RangeOptions.Max, rounded up to the granularity. The range no longer
	// has chunks of an earlier call at off or beyond, because a Clip has given them up or they were not
	// mapped.
	//
	// The range closes all chunks that Chunks returns, whether it maps them or not. If it
	// cannot map them, or if Chunks fails, the growth fails and changes nothing; chunks that
	// break a rule above, one that is closed, nil or listed twice included, are ErrInvalid.
	// After ErrOutOfMemory, functions of OnPressure release memory, and Chunks is called again, as long as
	// they release any.
	//
	// One call at a time is made for a range, by the goroutine that needs the memory. The package holds
	// no lock meanwhile, so a call may take long: only calls that need more memory wait for it. Chunks
	// must not grow or close the range, which would wait for itself. ctx is done when the range closes.
	// Close waits until the call has returned.
	Chunks(ctx context.Context, off, need uint64) ([]*Chunk, error)
}

// checkSupplier refuses options for chunks of the range's own, and GrowAhead, beside a Supplier.
func (o RangeOptions) checkSupplier() error {
	own := o.Chunk != 0 || o.Zero || o.Share != 0 || o.RDMA || o.Compress
	switch {
	case o.Supplier == nil:
		return nil
	case own:
		return fmt.Errorf("%w: options for chunks of the range's own, and a Supplier", ErrInvalid)
	case o.GrowAhead != 0:
		return fmt.Errorf("%w: growth ahead of a range with a Supplier", ErrInvalid)
	}
	return nil
}

// supply is what a range needs to call its Supplier.
type supply struct {
	from   Supplier
	slot   chan struct{} // taken by the one call that is under way
	closed context.Context
	close  context.CancelFunc
}

func newSupply(from Supplier) *supply {
	if from == nil {
		return nil
	}
	s := &supply{from: from, slot: make(chan struct{}, 1)}
	s.closed, s.close = context.WithCancel(context.Background())
	return s
}

// stop ends the supply of a range that is closing: no call is under way when it returns, and
// none comes later.
func (s *supply) stop() {
	if s == nil {
		return
	}
	s.close()
	s.slot <- struct{}{}
	<-s.slot
}

// growSupplied is growOnce with memory of the Supplier.
func (g *Range) growSupplied(need uint64) error {
	s := g.supply
	select {
	case s.slot <- struct{}{}:
	case <-s.closed.Done():
		return errReservationClosed
	}
	defer func() { <-s.slot }()
	at, least, err := g.lacking(need) // another call may have mapped the memory while this one waited
	if least == 0 {
		return err
	}
	lock.Waits()
	chunks, err := s.from.Chunks(s.closed, at, least)
	if dead := g.r.checkOpen(); dead != nil {
		err = dead // rather than that ctx was done
	}
	if err == nil {
		err = g.mapSupplied(at, least, chunks)
	}
	for _, c := range chunks {
		_ = c.Close() // mapped, or refused by the driver and counted as quarantined
	}
	return err
}

// lacking is lackingLocked for a caller without g.growMu.
func (g *Range) lacking(need uint64) (at, least uint64, err error) {
	g.growMu.Lock()
	defer g.growMu.Unlock()
	return g.lackingLocked(need, forCaller)
}

// mapSupplied maps what the Supplier returned, all or nothing: nothing if a Clip has moved Cap from at, or if the
// range can take memory back that it has given up.
func (g *Range) mapSupplied(at, least uint64, chunks []*Chunk) error {
	held, err := g.checkSupplied(at, least, chunks)
	defer func() {
		bank.ReleaseAll(held) //nolint:errcheck // the mapping, or the chunk, holds it too
	}()
	if err != nil {
		return err
	}
	g.growMu.Lock()
	defer g.growMu.Unlock()
	inTheWay := func() bool { return g.cap.Load() != at || reclaimable(g.r, at, g.r.size) > at }
	if inTheWay() {
		return nil
	}
	if err = g.mapAtCapLocked(at, held, forCaller); inTheWay() && err != nil {
		return nil // the driver has refused to unmap what a Clip gave up
	}
	return err
}

// checkSupplied checks what the Supplier returned, and retains it for the caller to release.
func (g *Range) checkSupplied(at, least uint64, chunks []*Chunk) (held []*memory, err error) {
	refuse := func(format string, args ...any) ([]*memory, error) {
		return held, fmt.Errorf("%w: the Supplier returned %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	var size uint64
	left := g.r.size - at
	for i, c := range chunks {
		m, err := c.retain()
		if err != nil {
			return refuse("chunk %d of %d, which is nil or closed", i, len(chunks))
		}
		twice := slices.Contains(held, m)
		held = append(held, m)
		switch {
		case twice:
			return refuse("chunk %d of %d twice", i, len(chunks))
		case c.dev != g.r.dev:
			return refuse("a chunk of another device, %v", c.dev)
		case m.Size == 0 || m.Size%g.r.gran != 0:
			return refuse("a chunk of %d bytes, no multiple of the granularity %d", m.Size, g.r.gran)
		case m.Size > left-size:
			return refuse("more than the %d bytes that are left of the range", left)
		}
		m.Cacheable.Store(false) // no other range gets it
		size += m.Size
	}
	if size < least {
		return refuse("%d bytes of the %d that are needed", size, least)
	}
	return held, nil
}
