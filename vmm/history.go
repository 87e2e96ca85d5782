package vmm

import (
	"iter"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/nonnil"
)

// HistoryOptions say what Device.SetHistory keeps.
type HistoryOptions struct {
	// Events is how many of the last events are kept, at most a million; 0 or less keeps none. Each takes
	// 56 bytes, and 256 more with its stack.
	Events int

	// Blocks keeps alloc, free and resize of the device's pools, too. These are frequent and soon
	// overwrite events of ranges.
	Blocks bool

	// NoStacks leaves out who made the call, because finding that is most of an event's cost.
	NoStacks bool
}

// HistoryEvent is something that happened to the memory of a Device. Packages memtrace and memmap
// show it.
type HistoryEvent struct {
	Seq  uint64 // counts all events of the Device, from 1
	Time time.Time

	// Kind is
	//
	//	reserve, close       addresses that are reserved, and given back
	//	create, release      physical memory from the driver, and back to it; Addr is 0
	//	import, unimport     physical memory of another process or Device; Addr is 0
	//	map, unmap           memory at addresses
	//	grow, clip           Addr is where Cap was or becomes, Size by how much it changes
	//	sleep, wake          of a range; Size is the memory that it gives up, or has again
	//	export               memory that another process may import; Addr is 0 but for a dma-buf
	//	move                 memory that a pool has moved to other addresses
	//	pressure             a call lacks memory: what is unused is released, or functions of OnPressure are called
	//	refused              a call, or the Create of a pool inside one, that has found no memory; Size is
	//	                     what it was asked for
	//	lend, give           the lease of a budget rises, or falls, by Size; Addr is 0
	//	alloc, free, resize  blocks of a pool, with HistoryOptions.Blocks; a free is noted when the block
	//	                     can be had again, so the alloc of the next one there may come first
	Kind string

	Addr   Ptr
	Size   uint64    // bytes; 0: not known
	Stream uint64    // the driver's handle; 0: none, or the default stream
	Name   string    // RangeOptions.Name or pool.Options.Name of the memory; of a create, and of pressure, of the range or pool that needs some
	Stack  []uintptr // who made the call, for runtime.CallersFrames; of a grow ahead of need who made the range, of the import of a View who attached; nil with NoStacks
}

// SetHistory makes the device record events of its memory, and forget those it has recorded. Without a
// call of it nothing is recorded. Events of goroutines that run at the same time are in the order in
// which they are recorded, just after they happened. A close is recorded just before, when no other range
// is at its addresses yet. While recording is on, the text of an ErrOutOfMemory says so. On a nil Device
// it does nothing.
func (d *Device) SetHistory(o HistoryOptions) {
	if d != nil {
		d.history.Set(history.Options(o))
	}
}

// History returns the recorded events with a Seq above after, the oldest first: all with 0, and only new
// ones with the Seq of the last. It returns nil if the device records none. It also works on a Device
// that is closed.
func (d *Device) History(after uint64) []HistoryEvent {
	if !nonnil.Of(d).history.Keeps() {
		return nil
	}
	return slices.AppendSeq([]HistoryEvent{}, d.HistorySeq(after))
}

// HistorySeq is History without a list of them all, up to the newest event when the iteration begins.
// Events are read a few at a time, so no call waits for the reader. Those overwritten meanwhile are left
// out.
func (d *Device) HistorySeq(after uint64) iter.Seq[HistoryEvent] {
	events := nonnil.Of(d).history.After(after)
	return func(yield func(HistoryEvent) bool) {
		for e := range events {
			if !yield(HistoryEvent{e.Seq, e.Time, e.Kind.String(), Ptr(e.Addr), e.Size, e.Stream, e.Name, e.Stack}) {
				return
			}
		}
	}
}
