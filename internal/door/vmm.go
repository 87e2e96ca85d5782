package door

import (
	"time"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// VMM is the door of package vmm. Its types are *Device, *Range, *Reservation, *Chunk and *Stream.
type VMM[D, G, R, C, S any] interface {
	// Samples is the device for memsample.
	Samples(dev D) *memsample.Owner
	// HistoryLog is where the device's history is kept.
	HistoryLog(dev D) *history.Log
	// KeepOpen says that something is open in the device: until release, Close returns ErrBusy and
	// names its kind, and Report lists it. Calling release twice is fine.
	KeepOpen(dev D, kind string) (release func(), err error)
	// Discard closes what no caller will close, as a constructor does that fails with cause. It
	// returns cause, with the error of close if that fails; Trim and Close of the device then try
	// again.
	Discard(dev D, cause error, close func() error) error

	// CreatePart is CreateOrReuse of a chunk that is part of what is open in the device already:
	// ErrBusy and Report do not name it, and a heap profile shows it as from. The caller must Close
	// the Chunk, before what it is part of.
	CreatePart(dev D, size uint64, p driver.Prop, from *memsample.Source) (C, error)
	// TryCreatePart is CreatePart that takes free memory only: it calls no function of OnPressure and has
	// no cache released, and while memory is being released for another operation it returns
	// ErrOutOfMemory, too.
	TryCreatePart(dev D, size uint64, p driver.Prop, from *memsample.Source) (C, error)
	// ImportMade is Import where a goroutine imports on behalf of an earlier call: a heap profile,
	// the history and a Report show that call's stack, which is made, as runtime.Callers returns it.
	// Nil is the caller's.
	ImportMade(dev D, fd int, size uint64, p driver.Prop, made []uintptr) (C, error)

	// CopyName is a copy of the name of a pool; one that is too long is ErrInvalid.
	CopyName(name string) (string, error)
	// WithMemory calls f, which allocates memory of the device by the driver. While f returns
	// ErrOutOfMemory, memory is released as for a Create and f is called again: what Devices on the
	// same ordinal do not use, and then what functions of OnPressure release. It returns f's last
	// error. Memory that f allocates counts by Counted or Outside. While memory is being released for
	// another operation it waits before it calls f. The caller holds no lock that a function of
	// OnPressure needs. On a nil or closed device f is called once. A nil f is ErrInvalid.
	// The functions get a vmm.OpError with op, name and size.
	WithMemory(dev D, op, name string, size uint64, f func() error) error
	// Counted is memory that no Chunk of this process has created, and that counts against SetLimit and the other
	// bounds. There is none at first.
	Counted(dev D) Counted
	// Outside counts what the driver has reserved for a pool of its own, once for each pool however often it is
	// open. read says what that is, and what of it is used. It is called until Close, and must call nothing but the driver.
	Outside(dev D, pool driver.Pool, read func() (reserved, used uint64, err error)) Outside
	// NoteAllocation notes n bytes that the driver has allocated. The caller must Retire the
	// Allocation before it frees them. What was noted at an address already, as memory of a handle
	// that is opened twice, is the same Allocation, which has one more user.
	NoteAllocation(dev D, at driver.Ptr, n uint64) Allocation

	// GrowAhead makes room for n more bytes beyond Len of a Range, or for fewer: it takes what is free, as
	// RangeOptions.GrowAhead does, for work that runs and may need it. It waits for nothing, has no one
	// release memory, and asks no Supplier. What the range has given up and is still Retiring it leaves
	// alone: earlier work may use that, and a growth has it back without a driver call.
	//
	// giveBack undoes it, but for the first keep bytes beyond Len. The chunks are unmapped when the
	// stream has done what it was told so far (see Stats.Retiring): the caller promises that no other
	// work has used them. What is held, or was taken meanwhile by a growth, stays; without a stream all does.
	GrowAhead(g G, n uint64) (giveBack func(keep uint64, st S))

	// Created is how much memory of the device this process has made, or is about to make, in all Devices on
	// it, and how often that has changed.
	Created(d D) (bytes, changes uint64)
	// Lend adds a lease to the bounds on this process's memory of the device. At first the lease is the memory that
	// the process has created. l lends more. On a device that has one it is ErrBusy. Until Lease.End, Close of d returns ErrBusy.
	Lend(d D, l Lender) (Lease, error)
	// SetAround bounds what this process creates of the device by what limits of the system around it leave;
	// MaxUint64: no bound. It returns the old bound. limit is what errors call the limit.
	SetAround(d D, bytes uint64, limit string) (old uint64)
	// Relieve releases unused memory, and has functions of OnPressure release memory, until the process has created
	// no more than target bytes of the device, none releases more, or until has come. busy: it called no function, as
	// an operation of the process waits for memory.
	Relieve(d D, target uint64, until time.Time) (busy bool)
	// Unmapped is the memory of open Chunks that is nowhere mapped.
	Unmapped(d D) uint64
	// StreamNumber is the number of Stream.Raw, to print: no work can be queued by it. So unlike Raw it
	// does not make waits ask the driver whether somebody else captures the stream.
	StreamNumber(s S) uint64
	// OnGraphLaunch registers f for the graph that the stream's capture becomes. f is called before each
	// launch of the graph, with the stream that it is launched on. What f returns is called after the
	// launch. This is for work around a launch that cannot be part of the graph, such as events. If f
	// returns an error, the launch returns it. f must not launch the graph. A stream that BeginCapture,
	// of it or of one that it has joined, does not capture is ErrInvalid.
	OnGraphLaunch(s S, f func(on S) (launched func(), err error)) error
	// StopWork says that work of the stream was stopped, as when another process that took part has
	// died, so that the bytes that it was to write are undefined. Until end, Sync and Done of the stream
	// return err, and so do reads that wait for the stream's work. The caller calls it before the work
	// ends, so that no wait returns in between. Calling end twice is fine.
	StopWork(s S, err error) (end func())
	// Stops is called before a wait for the stream. stopped, called after it, is the error of what was
	// stopped meanwhile, or is.
	Stops(s S) (stopped func() error)

	// HoldRange and HoldReservation are Hold whose errors say what it is for, such as `published as
	// "x"`.
	HoldRange(g G, what string, off, n uint64) (release func(), err error)
	HoldReservation(r R, what string, off, n uint64) (release func(), err error)
	// HoldLen holds all bytes below Len until Release, also those that come: SetLen downwards,
	// Sleep and Close return ErrBusy, which says what the hold is for. It returns ErrClosed for a
	// closed range, and ErrAsleep for one that sleeps.
	//
	// raised and changed tell whoever follows the range; either may be nil. raised is called with a
	// Len that has risen since HoldLen returned, in the call that raised it and before that returns,
	// if all bytes below it are written: not for an AppendOn, nor from then on until WaitWritten, or
	// the close of its stream, has waited for that. It reports whether nothing is left to do for that
	// Len. changed is called for all else that closes Changed, and for a Len that raised was not told
	// of or is not done with. After Release one call may still be under way. Both run with locks of
	// the range held. So they must not wait or panic, and of the range and the hold they must call
	// nothing but Len, Cap and Generation.
	HoldLen(g G, what string, raised func(n uint64) (done bool), changed func()) (LenHold, error)
}

// LenHold holds what a Range shows: all bytes below Len, wherever Len goes. Safe for concurrent use.
type LenHold interface {
	// SetLen is Range.SetLen, for which this hold does not count.
	SetLen(n uint64) error
	// Fix ends that the hold goes where Len goes: from now on it holds the first n bytes, of those
	// that it has held, and tells of nothing more.
	Fix(n uint64)
	// Release ends the hold. Twice is fine.
	Release()
}

// Counted is memory of one owner, outside Chunks. Safe for concurrent use.
type Counted interface {
	// Charge counts n bytes more, which are about to be allocated, or returns vmm.ErrOutOfMemory, as in WithMemory.
	Charge(n uint64) error
	// Set counts what there is, even beyond the bounds.
	Set(n uint64)
}

// Outside is one user of a pool of the driver's. Safe for concurrent use.
type Outside interface {
	// Change calls f, which has the driver reserve or release memory of the pool. f allocates n bytes. If the pool
	// lacks them, most bytes are counted first. Change returns vmm.ErrOutOfMemory, as in WithMemory, if these do not fit.
	Change(n, most uint64, f func() error) error
	// Close ends the use. destroy destroys the pool, for all its users; nil: it stays. If destroy fails, nothing changes.
	Close(destroy func() error) error
}

// Lender lends the right to create memory of a device.
type Lender interface {
	// Borrow asks for a lease of at least need bytes, and calls Lease.Raise before it returns. Without urgent it
	// asks for what no one uses; else others are asked to give theirs. It returns by until, and says why it got
	// too little. No lock is held, and nothing else of the process creates memory of the device meanwhile.
	Borrow(need uint64, urgent bool, until time.Time) (refusal error)
	// Near says that the lease has become short. It is called with locks, and must not wait.
	Near()
}

// Lease is what a Lender has lent. Safe for concurrent use.
type Lease interface {
	// Raise adds to the lease.
	Raise(bytes uint64)
	// State is the lease, what counts against it, and the limit of SetLimit; MaxUint64: none.
	State() (lease, created, limit uint64)
	// IsShort reports whether 7/8 of the lease are created.
	IsShort() bool
	// Cut lowers the lease, even below what is created.
	Cut(lease uint64)
	// DropCached releases unused memory, and lowers the lease to target, or to what is created, if that is more.
	// Give also has functions of OnPressure release memory, until target is reached, none releases more, or until
	// has come; busy: it did not, as an operation of the process had the turn. They
	// return by how much the lease has fallen.
	DropCached(target uint64) (given uint64)
	Give(target uint64, until time.Time) (given uint64, busy bool)
	// End takes the bound away. In a function of OnPressure it returns ErrBusy.
	End() error
}

// Allocation is memory that the driver has allocated, in no reservation. A graph whose work uses it
// remembers it, and is not launched once it is freed. Safe for concurrent use.
type Allocation interface {
	// Retire is called before a user frees the memory. After the last one's no launch of a graph
	// that uses it is under way, and none begins.
	Retire()
	// Restore undoes one Retire, after which the memory was not freed.
	Restore()
}

// DLPack is the door of package vmm, for package dlpack. Its types are *MemoryArg, *Device, *Mirror,
// *Reservation and *Stream.
type DLPack[A, D, M, R, S any] interface {
	// ReservationOf returns the reservation that contains the memory of m, or nil if m is in none.
	ReservationOf(m A) R
	// HoldIn is Hold of the Range that the reservation is inside of, or of bytes of the reservation that are
	// mapped. Errors quote what.
	HoldIn(r R, what string, off, n uint64) (release func(), err error)
	// HoldMirror keeps a Mirror from being closed or discarded until release. Errors say what the hold is
	// for. It waits for a Flush or a Refresh that is under way; release does not. It also returns whose
	// mirror it is, and whether that is in pinned memory.
	HoldMirror(m M, what string) (dev D, pinned, readOnly bool, release func(), err error)
	// UsersOf are the streams that UsedBy has named and that are open, and those whose AppendOn may not
	// have run.
	UsersOf(r R) []S
	// ForgetStream closes a stream of WrapStream without waiting for its work. The caller has queued
	// nothing on it but waits.
	ForgetStream(st S) error
}
