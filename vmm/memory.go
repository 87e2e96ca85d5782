package vmm

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm/internal/bank"
)

type (
	memory  = bank.Memory
	purpose = bank.Purpose
)

const (
	forCaller    = bank.ForCaller
	forGrowAhead = bank.ForGrowAhead
)

// zeroing is which memory is filled with zeros when it is mapped.
type zeroing uint8

const (
	zeroNone     zeroing = iota
	zeroRecycled         // memory from the cache: new memory reads as zeros
	zeroAll
)

// SetReleaseThreshold sets how many bytes of unused memory the device caches for ranges and CreateOrReuse
// instead of releasing them, and returns the old value. Memory is cached when nothing maps it and no
// Chunk of it is open, whether it was a range's or made by Create or CreateOrReuse. Like
// sql.DB.SetMaxIdleConns, the threshold can be changed at any time. The default is 0: nothing is cached.
// Cached memory is released when memory runs out, by Trim and by Close. Memory that is shareable, for
// RDMA, imported, or on another device is never cached, and Create and Alloc never use cached memory.
// SetReleaseThreshold waits for the driver as Trim does.
func (d *Device) SetReleaseThreshold(bytes uint64) (old uint64) {
	if d == nil || d.state == nil {
		return 0
	}
	unlock := d.state.bank.Releasing() // as in Trim
	defer unlock()
	return d.account.SetReleaseThreshold(bytes, d.checkOpen() == nil)
}

// Trim unmaps retired memory whose work has ended. It tries again what the driver refused (see
// Stats.Quarantined), and waits for work before it repairs access. Then it releases cached memory, the
// oldest first, until at most keep bytes of it are left. It returns how many bytes of the device's memory
// went back to the driver meanwhile. Another Trim, SetReleaseThreshold and operations that run out of
// memory on that GPU wait until Trim has ended.
func (d *Device) Trim(keep uint64) (freed uint64, err error) {
	if err := d.checkOpen(); err != nil {
		return 0, d.wrap("trim", 0, keep, err)
	}
	before := d.counters.Read(&d.counters.FreedBytes)
	err = d.state.parent.refusedCalls.retry(d) // it may wait, so not within trim
	err = errtext.Join(err, "and", d.state.syncFills())
	for _, r := range d.openReservations() {
		err = errtext.Join(err, "and", r.repair())
	}
	unlock := d.state.bank.Releasing() // a growth out of memory waits for what is about to go
	defer unlock()
	err = errtext.Join(err, "and", d.trim(keep))
	return d.counters.Read(&d.counters.FreedBytes) - before, d.wrap("trim", 0, keep, err)
}

// trim is the part of Trim that waits for no work.
func (d *Device) trim(keep uint64) error {
	var err error
	if !d.state.mayFill() { // a fence covers no fill that came after it
		_, err = sweepRetired(d, waitForLock)
	}
	if d.counters.Read(&d.counters.Quarantined.Now) > 0 {
		for _, r := range d.openReservations() {
			err = errtext.Join(err, "and", r.unmapNeverAccessible())
		}
	}
	return errtext.Join(err, "and", d.account.Trim(keep))
}

// SetLimit bounds how many bytes of memory this process creates on the device, whatever the number of
// Devices opened on it; 0, the default, is no bound. It returns the old limit. Calls that would exceed it
// return ErrOutOfMemory, after cached memory has been released. A limit below the current use only stops
// growth. Imported memory does not count; memory created here for another location does, and so does plain memory
// of package ipc, and what the driver has reserved for a pool.DriverPool. The limit lasts until the last Device on the device
// closes; on a closed Device nothing changes.
func (d *Device) SetLimit(bytes uint64) (old uint64) {
	if d == nil || d.state == nil {
		return 0
	}
	d.mu.Lock() // a Device that is closed limits no one
	defer d.mu.Unlock()
	if d.liveLocked() != nil {
		return d.state.bank.Limit()
	}
	return d.state.bank.SetLimit(bytes)
}

// OnPressure registers f, which is called when memory of the device runs out, before a Create, Alloc,
// Map, Grow, Append, AppendOn or Wake, or an Alloc of a pool.DriverPool or of package ipc, returns
// ErrOutOfMemory. In need, errors.As finds an OpError: the operation that needs memory, its name, and how
// many bytes were requested. Op is "give" if another process needs the memory, or a limit of the system is near.
// f releases memory that its program does not need, for example a pool's free blocks. It reports whether it
// released anything; if so, the operation is tried again. The package first releases its own unused memory. f
// must return false once it has nothing to release, and must not panic.
//
// f is called by the goroutine that needs memory, with no lock of this package held. A device runs one
// such function at a time. The memory that f releases is kept for the operation that called f, until
// that has succeeded or failed. Other operations that need memory of the device wait meanwhile, for
// ten seconds at most in all, and then take what is free. Growth ahead does not wait.
//
// f may use this package. A call in f that needs memory itself, of any device, calls no function of
// OnPressure: it returns ErrOutOfMemory if none is free. f must not wait for another goroutine's
// operation that may need memory, because that waits for f. Nor must f wait for its own goroutine: if
// that needed memory between LockSpans and unlock, a Clip or Close of those spans in f would wait for
// that unlock.
//
// stop removes f, and returns when no call of f is running, so f must not call stop. On a nil or closed
// device f is never called.
func (d *Device) OnPressure(f func(need error) (released bool)) (stop func()) {
	if d.checkOpen() != nil || f == nil {
		return func() {}
	}
	return d.account.OnPressure(func(err error) bool {
		var need *OpError
		errors.As(err, &need)
		d.history.Add(history.Pressure, 0, 0, 0, nonnil.Of(need).Name)
		return f(err)
	})
}

// needs has wrap make the OpError that functions of OnPressure get, unless an operation's error is one.
func needs(wrap func(error) error) func(error) error {
	return func(err error) error {
		var done *OpError
		if errors.As(err, &done) {
			return err
		}
		return wrap(err)
	}
}

// withMemory runs op, and again each time that memory may have been released for it. With its error op returns
// the Bank that it is short of memory of. need wraps that error for functions of OnPressure. The caller holds no lock.
func withMemory(need func(error) error, op func() (short *bank.Bank, err error)) error {
	t := bank.NewTicket()
	return t.Run(needs(need), op)
}

// withMemory is door.VMM.WithMemory.
func (d *Device) withMemory(op, name string, size uint64, f func() error) error {
	if f == nil {
		return fmt.Errorf("%w: no function", ErrInvalid)
	}
	if d.checkOpen() != nil {
		return f()
	}
	b := d.state.bank
	need := func(err error) error { return d.opError(op, name, 0, size, err) }
	return withMemory(need, func() (*bank.Bank, error) {
		return b, b.RetryAfterRelease(forCaller, func() error {
			if err := b.MayCreate(); err != nil {
				return err
			}
			return f()
		})
	})
}
