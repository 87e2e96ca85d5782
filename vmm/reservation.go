package vmm

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Reservation is a range of device addresses with whole chunks mapped wherever
// its user puts them: the mechanism below [Range], and what pools and rings are
// built from. Its address never moves. Safe for concurrent use. The caller must
// Close it.
type Reservation struct {
	dev      *Device
	ptr      Ptr
	size     uint64
	gran     uint64
	readOnly bool
	owner    *Range // whose it is, which alone maps and unmaps; nil for its own
	id       uint64 // by which several are locked in order

	copies inFlight // of ours

	// closer is held by Close, Clip and Sleep to their end, waits included. Then
	// grantMu, by all that changes who may access the memory, or unmaps all of it.
	closeMu sync.Mutex
	grantMu sync.Mutex

	// layout is held across the driver calls that change what is mapped, or who
	// may access it. Which slots there are, and the grants, change only with
	// layout and mu held, so one of the two is enough to read them.
	mappingMu sync.Mutex

	phase         atomic.Uint32 // changes with mu held
	closesRunning atomic.Int32  // calls of Close under way
	blocked       atomic.Int32  // how many entries copyBlocks has

	waitsFor atomic.Pointer[[]*deviceState] // see setWaitsFor

	mu             sync.Mutex // never held across a driver call
	slots          []slot
	grants         []grant        // the owner first
	driverGrants   []driver.Grant // the same, as the driver wants it
	retireSeq      uint64         // counts retirements
	retirements    []*retirement  // by turn, left to the device's goroutine
	accessInDoubt  []*deviceState // may still have access: taking it away failed
	copyBlocks     []*copyBlock   // devices whose access is being changed
	usersNamed     bool           // UsedBy was called
	namedStreams   map[*Stream]struct{}
	pendingAppends map[*Stream]appendSpan // of AppendOn; see WaitWritten
	appendSeq      uint64                 // counts AppendOns
	holds          []uint64
	stats          rangeCounters

	changed    atomic.Pointer[chan struct{}] // closed at the next change; nil if nobody waits
	generation atomic.Uint64
}

// reservations counts them, for their ids.
var reservations atomic.Uint64

// The phases of a reservation on its way out.
const (
	isOpen    uint32 = iota
	isAsleep         // no memory: only Wake and Close work
	isClosing        // nothing but Close works any more
	isClosed
)

// ReserveOptions is how to reserve; its zero value is the default.
type ReserveOptions struct {
	Align    uint64 // a power of two; 0: the granularity
	ReadOnly bool   // nobody gets more than Read, the owner included
}

// Reserve takes a range of addresses of at least size bytes, rounded up to the
// granularity. No memory stands behind it until Map. Where addresses run out,
// or this process has its fill of them (SetAddressLimit), it answers
// ErrAddressSpace. The caller must Close the Reservation.
func (d *Device) Reserve(size uint64, o ReserveOptions) (*Reservation, error) {
	if err := d.live(); err != nil {
		return nil, d.fail("reserve", 0, size, err)
	}
	gran, err := d.granularity(Prop{Location: d.location()})
	if err != nil {
		return nil, d.fail("reserve", 0, size, err)
	}
	r, err := d.reserve(size, gran, o, nil)
	return r, d.fail("reserve", 0, size, err)
}

// reserve makes a reservation whose chunks are multiples of gran, for a range or,
// without one, for the user.
func (d *Device) reserve(size, gran uint64, o ReserveOptions, of *Range) (*Reservation, error) {
	rounded, ok := roundUp(size, gran)
	if !ok || size == 0 {
		return nil, fmt.Errorf("%w: a size of %d bytes", ErrInvalid, size)
	}
	if o.Align != 0 && bits.OnesCount64(o.Align) != 1 {
		return nil, fmt.Errorf("%w: an alignment of %d, which is no power of two", ErrInvalid, o.Align)
	}
	r := &Reservation{dev: d, size: rounded, gran: gran, readOnly: o.ReadOnly, owner: of, id: reservations.Add(1)}
	r.generation.Store(r.id << 32) // so that no two reservations have the same, at one address or not
	r.slots = make([]slot, 0, 4)   // so that the first growth allocates its chunk and nothing else
	own := AccessReadWrite
	if o.ReadOnly {
		own = AccessRead
	}
	r.setGrantsLocked([]grant{{dev: d, access: own}})
	if err := takeAddresses(rounded); err != nil {
		return nil, err
	}
	var err error
	if r.ptr, err = d.drv().Reserve(rounded, max(o.Align, gran)); err != nil {
		giveAddresses(rounded)
		return nil, err
	}
	kind := "reservation"
	if of != nil {
		kind = "range"
	}
	if err := d.track(r, kind); err != nil {
		err = also(err, "and freeing the addresses", d.drv().Free(r.ptr, rounded))
		giveAddresses(rounded)
		return nil, err
	}
	d.state.parent.add(r)
	d.counters.reserved.add(rounded)
	return r, nil
}

// roundUp rounds n up to a multiple of unit; false if that overflows.
func roundUp(n, unit uint64) (uint64, bool) {
	if rest := n % unit; rest != 0 {
		up := n + (unit - rest)
		return up, up > n
	}
	return n, true
}

// Ptr is the first address. It stays the same until Close.
func (r *Reservation) Ptr() Ptr {
	if r == nil {
		return 0
	}
	return r.ptr
}

// Size is how many bytes of addresses are reserved.
func (r *Reservation) Size() uint64 {
	if r == nil {
		return 0
	}
	return r.size
}

// Device is the device that made the reservation, its owner.
func (r *Reservation) Device() *Device {
	if r == nil {
		return nil
	}
	return r.dev
}

// fail wraps err for op at offset off.
func (r *Reservation) fail(op string, off, size uint64, err error) error {
	if err == nil {
		return nil
	}
	if r == nil {
		return &OpError{Op: op, Size: size, Err: err}
	}
	return r.dev.fail(op, r.ptr+Ptr(off), size, err)
}

// live is nil while the reservation is open. Without r.mu it may end meanwhile;
// who copies asks after copies.begin, and then it does not.
func (r *Reservation) live() error {
	switch r.phase.Load() {
	case isOpen:
		return nil
	case isAsleep:
		return ErrAsleep
	}
	return errReservationClosed
}

var errReservationClosed = fmt.Errorf("%w: reservation", ErrClosed)

// outside refuses callers that may not touch the reservation inside a Range.
func (r *Reservation) notInRange() error {
	if r == nil {
		return fmt.Errorf("%w: no reservation", ErrInvalid)
	}
	if r.owner != nil {
		return fmt.Errorf("%w: the reservation belongs to a range", ErrBusy)
	}
	return nil
}

// Map maps whole chunks side by side from off on and gives access to all that
// were granted it. It completes or changes nothing. The mapping holds the
// memory: the chunks may be closed afterwards. One chunk may be mapped several
// times. Addresses that are in use are ErrInvalid, ones that are retiring
// ErrBusy.
func (r *Reservation) Map(off uint64, chunks ...*Chunk) error {
	if err := r.notInRange(); err != nil {
		return r.fail("map", off, 0, err)
	}
	var buf [16]*memory
	held := buf[:0]
	defer func() {
		for _, m := range held {
			m.release() //nolint:errcheck // the mapping, or the chunk, holds it too
		}
	}()
	var size uint64
	for _, c := range chunks {
		m, err := c.retain()
		if err != nil {
			return r.fail("map", off, size, err)
		}
		held = append(held, m)
		size += m.size
	}
	return r.fail("map", off, size, r.mapNew(off, held, true))
}

// mapAt maps ms from off on. Each mapping takes a reference of its own. Where
// memory for the mapping itself runs out and somebody waits for it, kept memory
// goes and it tries again.
func (r *Reservation) mapNew(off uint64, ms []*memory, awaited bool) error {
	return r.dev.state.retryAfterRelease(awaited, func() error { return r.mapOnce(off, ms) })
}

func (r *Reservation) mapOnce(off uint64, ms []*memory) error {
	r.mappingMu.Lock()
	defer r.mappingMu.Unlock()
	i, size, err := r.checkVacant(off, ms)
	if err != nil {
		return err
	}
	if err := r.mapChunks(i, off, size, ms, r.driverGrants); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.insertSlotsLocked(i, off, ms, accessible, nil)
	r.notify()
	r.checkInvariantsLocked()
	return nil
}

// place maps ms at off and sets access for who, all or nothing. It needs r.layout. What
// cannot be undone becomes quarantined slots from index i on.
func (r *Reservation) mapChunks(i int, off, size uint64, ms []*memory, who []driver.Grant) error {
	drv := r.dev.drv()
	at := off
	for n, m := range ms {
		if err := drv.Map(r.ptr+Ptr(at), m.size, m.h); err != nil {
			return r.undoMap(i, off, ms[:n], err)
		}
		at += m.size
	}
	if err := drv.SetAccess(r.ptr+Ptr(off), size, who); err != nil {
		return r.undoMap(i, off, ms, err)
	}
	return nil
}

// vacant checks that ms fit at off, and gives the index where their slots go
// and their size together.
func (r *Reservation) checkVacant(off uint64, ms []*memory) (i int, size uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.live(); err != nil {
		return 0, 0, err
	}
	for _, m := range ms {
		if m.dev.state.parent != r.dev.state.parent {
			return 0, 0, fmt.Errorf("%w: the chunk is of another driver", ErrInvalid)
		}
		sum, carry := bits.Add64(size, m.size, 0)
		if carry != 0 {
			return 0, 0, fmt.Errorf("%w: the sizes overflow", ErrInvalid)
		}
		size = sum
	}
	switch end := off + size; {
	case len(ms) == 0:
		return 0, 0, fmt.Errorf("%w: no chunks", ErrInvalid)
	case off%r.gran != 0:
		return 0, 0, fmt.Errorf("%w: offset %#x is no multiple of the granularity %d", ErrInvalid, off, r.gran)
	case end < off || end > r.size:
		return 0, 0, fmt.Errorf("%w: [%#x, +%#x) is not within the %s reserved", ErrBounds, off, size, sizeText(r.size))
	}
	i = r.slotAtLocked(off)
	if i < len(r.slots) && r.slots[i].off < off+size {
		s := &r.slots[i]
		switch {
		case s.quarantined != nil:
			return 0, 0, fmt.Errorf("quarantined: %w", s.quarantined)
		case s.state >= retiring:
			return 0, 0, fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.off))
		}
		return 0, 0, fmt.Errorf("%w: %v is mapped", ErrInvalid, r.ptr+Ptr(s.off))
	}
	return i, size, nil
}

// insert adds slots for ms at index i, each with a reference of its own. Like
// the rest of what changes slots it needs r.layout and r.mu.
func (r *Reservation) insertSlotsLocked(i int, off uint64, ms []*memory, st state, stuck error) {
	r.dev.counters.count(&r.dev.counters.counts.Maps, uint64(len(ms)))
	r.slots = append(r.slots, make([]slot, len(ms))...)
	copy(r.slots[i+len(ms):], r.slots[i:])
	for n, m := range ms {
		m.refs.Add(1) // the caller holds it, so it is not 0
		r.slots[i+n] = slot{off: off, mem: m, state: st}
		off += m.size
		r.stats.addCommitted(m.size)
		if stuck != nil {
			r.quarantineLocked(&r.slots[i+n], stuck)
		}
	}
}

// unmapAgain undoes the mapping of ms at off. Where that fails too the slots
// stay, quarantined, until Close tries again.
func (r *Reservation) undoMap(i int, off uint64, ms []*memory, why error) error {
	var size uint64
	for _, m := range ms {
		size += m.size
	}
	if size == 0 {
		return why
	}
	if err := r.dev.drv().Unmap(r.ptr+Ptr(off), size); err != nil {
		why = also(why, "and unmapping again", err)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.insertSlotsLocked(i, off, ms, mapped, why)
		r.checkInvariantsLocked()
	}
	return why
}

// Unmap takes away the whole chunks that fill [off, off+size), after waiting
// for work that may use them (see the package comment). It completes or changes
// nothing. A part of a chunk, or a hole, is ErrInvalid; bytes below a Hold are
// ErrBusy.
func (r *Reservation) Unmap(off, size uint64) error {
	if err := r.notInRange(); err != nil {
		return r.fail("unmap", off, size, err)
	}
	turn, err := r.retire(off, size)
	if err == nil {
		err = r.fenceAndUnmap(turn, off, size)
	}
	return r.fail("unmap", off, size, err)
}

// cut takes the slots [i, j) out and appends their memory, references included.
func (r *Reservation) removeSlotsLocked(i, j int, gone []*memory) []*memory {
	r.dev.counters.count(&r.dev.counters.counts.Unmaps, uint64(j-i))
	for k := i; k < j; k++ {
		s := &r.slots[k]
		r.unretireSlotLocked(s)
		r.unquarantineLocked(s)
		r.stats.subCommitted(s.size())
		gone = append(gone, s.mem)
	}
	r.slots = slices.Delete(r.slots, i, j)
	return gone
}

// stick quarantines a slot: why is what growth past it answers from now on.
func (r *Reservation) quarantineLocked(s *slot, why error) {
	if s.quarantined == nil {
		r.stats.Quarantined += s.size()
		r.dev.counters.quarantined.add(s.size())
	}
	s.quarantined = why
}

func (r *Reservation) unquarantineLocked(s *slot) {
	if s.quarantined != nil {
		r.stats.Quarantined -= s.size()
		r.dev.counters.quarantined.sub(s.size())
	}
	s.quarantined = nil
}
