package vmm

import (
	"fmt"
	"math/bits"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/internal/said"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
	"github.com/cuvmm/cuvmm/vmm/internal/count"
	"github.com/cuvmm/cuvmm/vmm/internal/grants"
	"github.com/cuvmm/cuvmm/vmm/internal/holds"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/internal/slots"
	"github.com/cuvmm/cuvmm/vmm/internal/users"
)

// Reservation is a range of device addresses in which the program maps whole chunks wherever it likes. It
// is the mechanism below [Range], pools and rings. Its address never moves. Safe for concurrent use. The
// caller must Close it.
type Reservation struct {
	// Immutable.
	dev     *Device
	ptr     Ptr
	size    uint64
	gran    uint64
	kind    string  // under which it is listed as open
	name    string  // the user's
	inRange bool    // a Range alone maps and unmaps
	zeroed  zeroing // what memory is filled with zeros when it is mapped
	id      uint64  // defines the order in which several are locked

	copies users.Copies // the library's own copies of its memory

	// Close, Clip, Sleep and Wake hold closeMu to their end, waits included. Then
	// comes grantMu, for all that changes which devices may access the memory, or unmaps
	// all of it.
	closeMu lock.Mutex
	grantMu lock.Mutex

	// mappingMu is held across the driver calls that change what is mapped, or which
	// devices may access it. Which slots there are, and the grants, change only with
	// mappingMu and mu held, so one of the two is enough to read them. The states of slots
	// change with mu alone.
	mappingMu lock.Mutex
	sweepMu   lock.Mutex // held while retirements that are left to the device's goroutine end
	watches   []*Watch   // guarded by mappingMu

	// Atomic: read without a lock.
	phase         atomic.Uint32 // changes with mu held
	closesRunning atomic.Int32  // or about to run
	closeSlot     chan struct{} // taken by the close whose caller may stop waiting
	generation    atomic.Uint64
	changed       atomic.Pointer[chan struct{}] // closed at the next change; nil if no one waits

	mu          lock.Mutex // never held across a driver call
	owner       any        // a *Range, once that is made, or ReserveOptions.Owner
	table       slots.Table[*memory, *retirement]
	grants      grants.Table[*deviceState, *Device]
	users       users.Table[*deviceState, *Stream]
	retirements []*retirement // left to the device's goroutine, in order
	holds       holds.List
	counters    count.Range // also under the lock of the device's
}

// slot is a mapped chunk: a reference to its memory, and its state. Callers see the
// accessible ones as a Segment, and all of them as a Mapping.
type slot = slots.Slot[*memory, *retirement]

var reservationCount atomic.Uint64 // for their ids

// The phases of a reservation.
const (
	phaseOpen    uint32 = iota
	phaseAsleep         // no memory: only Wake and Close work
	phaseClosing        // nothing but Close works any more
	phaseClosed
)

// ReserveOptions is how to reserve; its zero value is the default.
type ReserveOptions struct {
	Align    uint64 // a power of two; 0: the granularity
	ReadOnly bool   // no device gets more than AccessRead, the owner included

	// Name is as in RangeOptions.
	Name string

	// Owner is what the reservation is part of, if the program wants to find it by an address: see
	// Device.Lookup and Reservation.Owner. If it has a String method, Reserve calls it, and Report and
	// ErrBusy show the result.
	Owner any

	// Made is the maker's stack, from runtime.Callers, for Report and ErrBusy. Set it when reserving for
	// another goroutine; nil is the caller.
	Made []uintptr
}

// Reserve reserves at least size bytes of addresses, rounded up to the granularity. No memory backs them
// until Map. It returns ErrAddressSpace if addresses run out or this process has reached its limit
// (SetAddressLimit). The caller must Close the Reservation.
func (d *Device) Reserve(size uint64, o ReserveOptions) (*Reservation, error) {
	if err := d.checkOpen(); err != nil {
		return nil, d.wrap("reserve", 0, size, err)
	}
	var err error
	if o.Name, err = copyName(o.Name); err != nil {
		return nil, d.wrap("reserve", 0, size, err)
	}
	// Asked each time: it also returns ErrDeviceLost, which is not remembered here.
	gran, err := d.drv.Granularity(Prop{Location: d.location})
	if err != nil {
		return nil, d.wrapNamed("reserve", o.Name, 0, size, err)
	}
	r, err := d.reserve(size, gran, o, nil)
	return r, d.wrapNamed("reserve", o.Name, 0, size, err)
}

// reserve makes a reservation of chunks of multiples of gran: for a range, or, if of is nil, for a user.
func (d *Device) reserve(size, gran uint64, o ReserveOptions, of *Range) (*Reservation, error) {
	rounded, ok := roundUp(size, gran)
	switch {
	case !ok || size == 0:
		return nil, fmt.Errorf("%w: a size of %d bytes", ErrInvalid, size)
	case o.Align != 0 && bits.OnesCount64(o.Align) != 1:
		return nil, fmt.Errorf("%w: an alignment of %d, which is no power of two", ErrInvalid, o.Align)
	}
	kind := "reservation"
	if owner, ok := o.Owner.(fmt.Stringer); ok {
		kind = said.Line(owner.String()) // it is part of errors and reports
	}
	if of != nil {
		kind = "range"
	}
	r := &Reservation{dev: d, kind: kind, name: o.Name, size: rounded, gran: gran, inRange: of != nil, owner: o.Owner, id: reservationCount.Add(1), closeSlot: make(chan struct{}, 1)}
	r.generation.Store(r.id << 32)               // so that no two reservations have the same, at one address or not
	r.table = slots.New[*memory, *retirement](4) // so that the first growth allocates its chunk and nothing else
	r.closeMu.At(lock.ReservationClose, r.id)
	r.grantMu.At(lock.Grants, r.id)
	r.mappingMu.At(lock.Mapping, r.id)
	r.sweepMu.At(lock.Sweep, r.id)
	r.mu.At(lock.Reservation, r.id)
	r.grants.Most = AccessReadWrite
	if o.ReadOnly {
		r.grants.Most = AccessRead
	}
	r.mu.Lock()
	r.grants.Set([]grant{d.grant(r.grants.Most)})
	r.users.SetGranted(r.grants.Devices())
	r.mu.Unlock()
	var err error
	if r.ptr, err = d.state.parent.reserve(rounded, gran, o.Align); err != nil {
		return nil, err
	}
	if err := d.trackMade(r, r.kind, o.Made); err != nil {
		// The device has closed meanwhile, so no other close need give the arena back.
		err = errtext.Join(err, "and freeing the addresses", d.state.parent.unreserve(r.ptr, rounded))
		err = errtext.Join(err, "and their arena", d.state.parent.arenas.FreeEmpty())
		return nil, err
	}
	d.state.parent.add(r)
	d.counters.Add(rounded, &d.counters.Reserved)
	r.note(history.Reserve, 0, rounded)
	return r, nil
}

// Ptr is the first address. It stays the same until Close.
func (r *Reservation) Ptr() Ptr { return nonnil.Of(r).ptr }

// Size is how many bytes of addresses are reserved.
func (r *Reservation) Size() uint64 { return nonnil.Of(r).size }

// Device is the device that made the reservation, its owner.
func (r *Reservation) Device() *Device { return nonnil.Of(r).dev }

// Owner is what the reservation is part of: ReserveOptions.Owner, and the *Range of the
// reservation inside one.
func (r *Reservation) Owner() any {
	if r == nil || r.dev == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owner
}

// wrap wraps err for op at offset off.
func (r *Reservation) wrap(op string, off, size uint64, err error) error {
	if err == nil {
		return nil
	}
	if r == nil || r.dev == nil {
		return &OpError{Op: op, Size: size, Err: err}
	}
	return r.dev.wrapNamed(op, r.name, r.ptr+Ptr(off), size, err)
}

// opError is what wrap makes of err, without a note in the history.
func (r *Reservation) opError(op string, off, size uint64, err error) error {
	return r.dev.opError(op, r.name, r.ptr+Ptr(off), size, err)
}

// note notes in the device's history what has happened at offset off.
func (r *Reservation) note(what history.Kind, off, size uint64) {
	r.dev.history.Add(what, uint64(r.ptr)+off, size, 0, r.name)
}

// checkOpen is nil while the reservation is open. Without r.mu that may be over when it
// returns, except between copies.Begin and copies.End.
func (r *Reservation) checkOpen() error {
	switch r.phase.Load() {
	case phaseOpen:
		return nil
	case phaseAsleep:
		return ErrAsleep
	}
	return errReservationClosed
}

var errReservationClosed = fmt.Errorf("%w: reservation", ErrClosed)

// checkNotOwnedByRange refuses callers that may not touch the reservation inside a Range.
func (r *Reservation) checkNotOwnedByRange() error {
	if r == nil || r.dev == nil {
		return fmt.Errorf("%w: no reservation", ErrInvalid)
	}
	if r.inRange {
		return fmt.Errorf("%w: the reservation belongs to a range", ErrBusy)
	}
	return nil
}

// outOfBounds is the error for a span that is not within the reservation.
func (r *Reservation) outOfBounds(off, size uint64) error {
	return fmt.Errorf("%w: [%#x, +%#x) is not within the %s reserved", ErrBounds, off, size, errtext.Size(r.size))
}

// Map maps whole chunks side by side from off on and gives access to all devices that were granted it. On
// error nothing has changed. The mapping keeps the memory, so the chunks may be closed afterwards. One
// chunk may be mapped several times. Map returns ErrInvalid for addresses in use, and ErrBusy for
// retiring ones.
func (r *Reservation) Map(off uint64, chunks ...*Chunk) error {
	if err := r.checkNotOwnedByRange(); err != nil {
		return r.wrap("map", off, 0, err)
	}
	var buf [16]*memory
	held := buf[:0]
	defer func() {
		bank.ReleaseAll(held) //nolint:errcheck // the mapping, or the chunk, holds it too
	}()
	var size uint64
	for _, c := range chunks {
		m, err := c.retain()
		if err != nil {
			return r.wrap("map", off, size, err)
		}
		held = append(held, m)
		size += m.Size
	}
	t := bank.NewTicket()
	err := r.mapChunks(off, held, forCaller)
	if bank.Lacks(err) {
		err = r.mapAgain(t, err, off, size, held)
	}
	return r.wrap("map", off, size, err)
}

// mapAgain retries a Map that was short of memory. It is a function of its own so that a Map that works
// allocates nothing.
func (r *Reservation) mapAgain(t bank.Ticket, err error, off, size uint64, ms []*memory) error {
	need := needs(func(err error) error { return r.opError("map", off, size, err) })
	b := r.dev.state.bank
	return t.Again(need, b, err, func() (*bank.Bank, error) { return b, r.mapChunks(off, ms, forCaller) })
}

// mapChunks maps ms from off on, all or nothing. Each mapping takes its own reference.
func (r *Reservation) mapChunks(off uint64, ms []*memory, purpose purpose) error {
	// The mapping itself takes memory of the device, which may have run out.
	return r.dev.state.bank.RetryAfterRelease(purpose, func() error {
		r.mappingMu.Lock()
		defer r.mappingMu.Unlock()
		i, size, err := r.checkVacant(off, ms)
		if err != nil {
			return err
		}
		mayStillFill, err := r.mapOnDriverLocked(i, off, size, ms, r.grants.Driver(), r.zeroed)
		if err != nil && !mayStillFill {
			return err
		}
		// The table last: whoever finds a chunk there may use it. If the wait for the fill
		// failed, the chunks stay in the table above Cap; the next growth fills them again.
		r.watchMappedLocked(off, ms)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.insertSlotsLocked(i, off, ms, slots.Accessible, nil)
		r.notify()
		return err
	})
}

// mapOnDriverLocked maps ms at off, sets access for who and fills with zeros as zeroed
// says, all or nothing. What cannot be undone becomes quarantined slots from index i on.
// If it fails and mayStillFill is true, all of ms is mapped, with access, and may still be
// written to; the caller makes the slots. It needs r.mappingMu.
func (r *Reservation) mapOnDriverLocked(i int, off, size uint64, ms []*memory, who []driver.Grant, zeroed zeroing) (mayStillFill bool, err error) {
	invariants.Held(&r.mappingMu)
	drv := r.dev.drv
	var n int       // how many are mapped
	var done uint64 // their bytes
	for n < len(ms) && err == nil {
		if err = drv.Map(r.ptr+Ptr(off+done), ms[n].Size, ms[n].Handle); err == nil {
			done += ms[n].Size
			n++
		}
	}
	if err == nil {
		err = drv.SetAccess(r.ptr+Ptr(off), size, who)
	}
	if err == nil && zeroed != zeroNone {
		mayStillFill, err = r.zeroMemory(off, ms, zeroed)
	}
	if err == nil || mayStillFill {
		r.note(history.Map, off, size)
	}
	if err == nil || done == 0 || mayStillFill {
		return mayStillFill, err
	}
	// Undo: one call unmaps what has been mapped.
	if second := drv.Unmap(r.ptr+Ptr(off), done); second != nil {
		err = errtext.Join(err, "and undoing the mapping", second)
		r.note(history.Map, off, done)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.insertSlotsLocked(i, off, ms[:n], slots.Mapped, err)
	}
	return false, err
}

// checkVacant checks that ms fit at off. It returns the index where their slots go
// and their size together.
func (r *Reservation) checkVacant(off uint64, ms []*memory) (i int, size uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkOpen(); err != nil {
		return 0, 0, err
	}
	for _, m := range ms {
		if m.Driver() != r.dev.drv {
			return 0, 0, fmt.Errorf("%w: the chunk is of another driver", ErrInvalid)
		}
		sum, carry := bits.Add64(size, m.Size, 0)
		if carry != 0 {
			return 0, 0, fmt.Errorf("%w: the sizes overflow", ErrInvalid)
		}
		size = sum
	}
	// Bounds before the table: an offset that is not within it finds no slot.
	switch end := off + size; {
	case len(ms) == 0:
		return 0, 0, fmt.Errorf("%w: no chunks", ErrInvalid)
	case off%r.gran != 0:
		return 0, 0, fmt.Errorf("%w: offset %#x is no multiple of the granularity %d", ErrInvalid, off, r.gran)
	case end < off || end > r.size:
		return 0, 0, r.outOfBounds(off, size)
	}
	i = r.table.Find(off)
	if i < r.table.Len() && r.table.At(i).Off < off+size {
		s := r.table.At(i)
		switch {
		case s.Quarantined != nil:
			return 0, 0, fmt.Errorf("quarantined: %w", s.Quarantined)
		case s.State >= slots.Retiring:
			return 0, 0, fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.Off))
		}
		return 0, 0, fmt.Errorf("%w: %v is mapped", ErrInvalid, r.ptr+Ptr(s.Off))
	}
	return i, size, nil
}

// insertSlotsLocked adds slots for ms at index i, each with a reference of its own,
// quarantined if cause is not nil. It needs r.mappingMu and r.mu.
func (r *Reservation) insertSlotsLocked(i int, off uint64, ms []*memory, st slots.State, cause error) {
	invariants.Held(&r.mappingMu)
	invariants.Held(&r.mu)
	var size uint64
	r.table.Insert(i, len(ms))
	for n, m := range ms {
		m.Retain() // the caller has one, so there is one left
		*r.table.At(i + n) = slot{Off: off + size, Size: m.Size, Mem: m, State: st}
		if cause != nil {
			r.quarantineLocked(r.table.At(i+n), cause)
		}
		size += m.Size
	}
	r.dev.counters.Mapped(len(ms), size, &r.counters)
	if invariants.Enabled {
		r.checkInvariantsLocked()
	}
}

// removeSlotsLocked takes the slots [i, j) out and appends their memory to removed,
// references included. It needs r.mappingMu and r.mu.
func (r *Reservation) removeSlotsLocked(i, j int, removed []*memory) []*memory {
	invariants.Held(&r.mappingMu)
	invariants.Held(&r.mu)
	var size, retiring uint64
	for _, s := range r.table.Between(i, j) {
		if s.State >= slots.Retiring {
			retiring += s.Size
		}
		if s.Quarantined != nil {
			r.unquarantineLocked(s)
		}
		size += s.Size
		removed = append(removed, s.Mem)
	}
	r.dev.counters.Unmapped(j-i, size, retiring, &r.counters)
	r.table.Delete(i, j)
	r.generation.Add(1) // what lay there is lost
	if invariants.Enabled {
		r.checkInvariantsLocked()
	}
	return removed
}

// committedLocked is how many bytes are mapped. It needs r.mu.
func (r *Reservation) committedLocked() uint64 {
	invariants.Held(&r.mu)
	return r.counters.Committed.Now
}

// checkInvariantsLocked panics if the table is not consistent; only with -tags
// invariants. It needs r.mu.
func (r *Reservation) checkInvariantsLocked() {
	invariants.Held(&r.mu)
	err := r.table.Check(r.size, r.gran)
	for i, s := range r.table.All() {
		if s.Mem.Refs() < 1 {
			err = fmt.Errorf("slot %d has no reference to its memory", i)
		}
	}
	if err != nil {
		//nolint:forbidigo // only in builds of our own tests
		panic(fmt.Sprintf("vmm: %v: %v", r.ptr, err))
	}
}

// Hold keeps the n bytes from off on until release is called: Close, and unmapping any of them, return
// ErrBusy, which says where Hold was called. Calling release again does nothing.
func (r *Reservation) Hold(off, n uint64) (release func(), err error) {
	if err = r.checkNotOwnedByRange(); err == nil {
		release, err = r.addHold(off, n, heldHere("a hold"))
	}
	return release, r.wrap("hold", off, n, err)
}

// holdFor is door.VMM.HoldReservation.
func (r *Reservation) holdFor(what string, off, n uint64) (release func(), err error) {
	if err = r.checkNotOwnedByRange(); err == nil {
		release, err = r.addHold(off, n, &holds.Hold{What: what})
	}
	return release, r.wrap("hold", off, n, err)
}

// heldHere is a hold named by the line that made it.
func heldHere(what string) *holds.Hold {
	h := &holds.Hold{What: what}
	runtime.Callers(2, h.Made[:])
	return h
}

func (r *Reservation) addHold(off, n uint64, h *holds.Hold) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkOpen(); err != nil {
		return nil, err
	}
	if off+n < off || off+n > r.size {
		return nil, r.outOfBounds(off, n)
	}
	// What retires may be unmapped at any moment, so it cannot be held any more.
	if n > 0 { // else it is in front of all bytes: it keeps Close away and nothing else
		h.Off, h.End = off, off+n
	}
	for _, s := range r.table.In(h.Off, h.End) {
		if s.State >= slots.Retiring {
			return nil, fmt.Errorf("%w: %v is retiring", ErrBusy, r.ptr+Ptr(s.Off))
		}
	}
	r.holds.Add(h)
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.holds.Remove(h)
	}), nil
}

// checkHoldsLocked is ErrBusy if bytes of [off, end) are held by another hold than except. It needs r.mu.
func (r *Reservation) checkHoldsLocked(off, end uint64, except *holds.Hold) error {
	invariants.Held(&r.mu)
	return heldBy(r.holds.In(off, end, except))
}

// checkAllHoldsLocked is ErrBusy if anything is held, if only the reservation itself. It needs
// r.mu.
func (r *Reservation) checkAllHoldsLocked() error {
	invariants.Held(&r.mu)
	return heldBy(r.holds.All())
}

// heldBy is ErrBusy if there are holds.
func heldBy(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%w: held: %s", ErrBusy, strings.Join(names, "; "))
}

// Generation is a number that rises each time mapped bytes are lost or replaced. No two reservations of
// the process ever have the same. Growth does not change it, so a registration (NCCL, RDMA) made at the
// same generation is still right for the bytes it covers. It does not say when to end one; see Watch.
func (r *Reservation) Generation() uint64 { return nonnil.Of(r).generation.Load() }

// Changed is closed at the next Map or Unmap, on a Range also when Len changes, and after Close. Call it
// before reading the state, so that no change is missed.
func (r *Reservation) Changed() <-chan struct{} {
	if r == nil || r.dev == nil {
		return closedChan
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase.Load() == phaseClosed {
		return closedChan
	}
	c := r.changed.Load()
	if c == nil {
		made := make(chan struct{})
		c = &made
		r.changed.Store(c)
	}
	return *c
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// wakeWaiters wakes those who wait on Changed.
func (r *Reservation) wakeWaiters() {
	if r.changed.Load() == nil {
		return
	}
	if c := r.changed.Swap(nil); c != nil {
		close(*c)
	}
}
