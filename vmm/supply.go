package vmm

import (
	"context"
	"errors"
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
	// After ErrOutOfMemory, OnPressure is asked to release memory, and then Chunks once more.
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

// lackingMemory is the error of a growth that needs its Supplier, which is called without the
// locks of the growth. The caller of the growth gets the memory by supplyFor and tries again.
type lackingMemory struct{ off, least, need uint64 }

func (*lackingMemory) Error() string { return "memory of the Supplier is lacking" }

// errMoved is that the range's memory ends elsewhere by now, so that what the Supplier returned
// belongs there no longer.
var errMoved = errors.New("the range's memory ends elsewhere")

// obtain reports whether an operation that has failed with err is to be tried again, since what
// retired is unmapped, or the Supplier has provided the memory that it lacked. If not, it
// returns the operation's error. The caller holds no lock.
func (g *Range) obtain(err error) (again bool, _ error) {
	if errors.Is(err, errRetiring) {
		err = g.waitForRetired()
		return err == nil, err
	}
	var lack *lackingMemory
	if errors.As(err, &lack) {
		err = g.supplyFor(lack)
		return err == nil || errors.Is(err, errMoved), err
	}
	return false, err
}

// retryWithMemory runs op, again each time that obtain says so or memory may have been released
// for it. Functions of OnPressure get an OpError with the operation's name and its size.
func (g *Range) retryWithMemory(what string, size uint64, op func() error) error {
	t := bank.NewTicket()
	err := op()
	if err == nil {
		return nil
	}
	return g.retry(&t, what, size, err, op)
}

// retry is retryWithMemory of an operation that has failed with err.
func (g *Range) retry(t *bank.Ticket, what string, size uint64, err error, op func() error) error {
	b := g.r.dev.state.bank
	need := needs(func(err error) error { return g.r.opError(what, 0, size, err) })
	return t.Again(grower{g}, need, b, err, func() (*bank.Bank, error) { return b, op() })
}

// grower is a Range as a bank.Grower.
type grower struct{ g *Range }

func (x grower) Obtain(err error) (again bool, _ error) { return x.g.obtain(err) }

func (x grower) Growth(err error) func() error {
	var lack growthLacks
	if !errors.As(err, &lack) {
		return nil
	}
	return func() error { return x.g.ensure(lack.need) }
}

func (x grower) Bank() *bank.Bank { return x.g.r.dev.state.bank }

// supplyFor has the Supplier provide the memory that a growth lacks.
func (g *Range) supplyFor(lack *lackingMemory) error {
	s := g.supply
	select {
	case s.slot <- struct{}{}:
	case <-s.closed.Done():
		return errReservationClosed
	}
	defer func() { <-s.slot }()
	// Another call may have mapped the memory while this one waited for the slot.
	lack, err := g.whatLacks(lack.need)
	if lack == nil {
		return err
	}
	lock.Waits()
	chunks, err := s.from.Chunks(s.closed, lack.off, lack.least)
	if dead := g.r.checkOpen(); dead != nil {
		err = dead // rather than that ctx was done
	}
	if err == nil {
		err = g.mapSupplied(lack, chunks)
	}
	for _, c := range chunks {
		_ = c.Close() // mapped, or refused by the driver and counted as quarantined
	}
	return err
}

// whatLacks takes back what retires of the range, and returns what a growth lacks beyond that;
// nil if nothing does, or if the range cannot grow.
func (g *Range) whatLacks(need uint64) (lack *lackingMemory, err error) {
	g.capMu.Lock()
	defer g.capMu.Unlock()
	if err = g.r.checkOpen(); err == nil && need > g.cap.Load() {
		err = g.growLocked(need, forCaller)
	}
	errors.As(err, &lack)
	return lack, err
}

// mapSupplied maps what the Supplier returned, all or nothing.
func (g *Range) mapSupplied(lack *lackingMemory, chunks []*Chunk) error {
	held, size, err := g.checkSupplied(lack, chunks)
	defer func() {
		bank.ReleaseAll(held) //nolint:errcheck // the mapping, or the chunk, holds it too
	}()
	if err != nil {
		return err
	}
	g.capMu.Lock()
	defer g.capMu.Unlock()
	end := lack.off + size
	moved := func() bool { return g.cap.Load() != lack.off || reclaimable(g.r, lack.off, end) > lack.off }
	if moved() { // a Clip, or a Close, has been here
		return errMoved
	}
	if err = g.r.mapChunks(lack.off, held, forCaller); err == nil {
		g.cap.Store(end)
		g.noteGrowth(lack.off, end, forCaller)
	} else if moved() { // the driver has refused to unmap what a Clip gave up: that is taken back first
		return errMoved
	}
	return err
}

// checkSupplied checks what the Supplier returned, and retains it for the caller to release.
func (g *Range) checkSupplied(lack *lackingMemory, chunks []*Chunk) (held []*memory, size uint64, err error) {
	refuse := func(format string, args ...any) ([]*memory, uint64, error) {
		return held, 0, fmt.Errorf("%w: the Supplier returned %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	left := g.r.size - lack.off
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
	if size < lack.least {
		return refuse("%d bytes of the %d that are needed", size, lack.least)
	}
	return held, size, nil
}
