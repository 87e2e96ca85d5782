package pool

import (
	"log/slog"

	"github.com/cuvmm/cuvmm/internal/stats"
	"github.com/cuvmm/cuvmm/vmm"
)

// Allocator allocates stream-ordered memory of one device. It is a [Pool], or a [DriverPool], which
// is one of the driver's own. Safe for concurrent use.
type Allocator interface {
	// Device is the device of the memory.
	Device() *vmm.Device

	// Alloc returns n bytes for work that is queued on the stream from now on. Their
	// contents are undefined. The stream may be of another device that was granted access.
	// Alloc of 0 bytes returns a block without memory. Errors are ErrOutOfMemory, ErrInvalid,
	// ErrClosed and ErrCapturing.
	Alloc(s *vmm.Stream, n uint64) (Block, error)
	// Free frees a block once the work that the stream has now has ended. It does not wait. If the
	// stream is not that of Alloc, the caller must order it after that one. If Free fails, the
	// block stays allocated: errors are ErrDoubleFree, ErrForeignBlock, ErrClosed, ErrCapturing, and
	// ErrBusy for a block that HoldBlock holds.
	Free(s *vmm.Stream, b Block) error
	// FreeNow frees a block that no work uses any more. It does not wait.
	FreeNow(b Block) error
	// Resize makes a block n bytes long, in place. The returned block is the same one: free only
	// one of the two values. It returns ErrNoRoom if the memory behind the block is not free,
	// ErrNotSupported from a DriverPool, and the errors of Free. After an error nothing has
	// changed.
	Resize(s *vmm.Stream, b Block, n uint64) (Block, error)

	// TrimTo releases memory that no block uses until at most keep bytes are reserved, and returns
	// how many bytes it released. Memory freed in a stream whose work is not known to have ended
	// counts as used.
	TrimTo(keep uint64) (freed uint64, err error)
	// SetReleaseThreshold sets how many bytes stay reserved when a stream, an event or the
	// device is synchronised. The default is 0.
	SetReleaseThreshold(bytes uint64) error
	// ReleaseThreshold is what SetReleaseThreshold has set.
	ReleaseThreshold() (uint64, error)
	// SetReuse sets which policies are on for memory that was freed in other streams.
	SetReuse(Reuse) error
	// Reuse is the policies that are on.
	Reuse() (Reuse, error)

	// Grant gives devices access to all memory of the pool, present and future.
	Grant(a vmm.Access, devs ...*vmm.Device) error
	// Revoke waits for work that may use the access, then removes it. The device that owns the
	// memory keeps its access.
	Revoke(devs ...*vmm.Device) error
	// Access is what a device may do with the memory.
	Access(d *vmm.Device) (vmm.Access, error)

	// Stats is the pool in numbers.
	Stats() (Stats, error)
	// ResetPeaks sets Stats.ReservedPeak and UsedPeak to what is reserved and used now.
	ResetPeaks() error
	// Close ends the pool. It returns ErrBusy while blocks are allocated. Twice is fine.
	Close() error
}

// Reuse is a set of policies by which Alloc may reuse memory that was freed in another stream.
// Memory freed in the same stream, and memory whose work is known to have ended, is always reused.
// The names are CUDA's.
type Reuse uint8

const (
	// ReuseFollowEvents allows memory that was freed in another stream before an event that this
	// stream already waits for.
	ReuseFollowEvents Reuse = 1 << iota
	// ReuseOpportunistic allows memory whose work turns out to have ended.
	ReuseOpportunistic
	// ReuseInternalDependencies makes this stream wait for the other one, if there is no other
	// memory.
	ReuseInternalDependencies

	// ReuseAll is all of them, the default.
	ReuseAll = ReuseFollowEvents | ReuseOpportunistic | ReuseInternalDependencies
)

// Stats is a pool in numbers. Sizes are in bytes. "Ever" means since New. Stats is an
// slog.LogValuer, and String returns its JSON, for package expvar. JSON field names are stable.
type Stats struct {
	Reserved     uint64 `json:"reserved"`      // of memory that the pool holds, allocated or not
	ReservedPeak uint64 `json:"reserved_peak"` // the most since ResetPeaks
	Used         uint64 `json:"used"`          // of blocks that are allocated, as rounded up
	UsedPeak     uint64 `json:"used_peak"`     // the most since ResetPeaks; see Pool.Stats

	// A DriverPool leaves the rest 0: the driver does not tell it.

	Blocks      int    `json:"blocks"`       // how many are allocated, without those of 0 bytes
	Allocs      uint64 `json:"allocs"`       // ever, without those of 0 bytes
	Frees       uint64 `json:"frees"`        // ever
	Pending     uint64 `json:"pending"`      // freed in streams whose work is not known to have ended, without InSlabs
	InSlabs     uint64 `json:"in_slabs"`     // free in slabs, for blocks of up to 64 KiB
	LargestFree uint64 `json:"largest_free"` // the longest run of free memory, idle or pending
	Created     uint64 `json:"created"`      // new memory, ever; also what came from the device's cache
	Remapped    uint64 `json:"remapped"`     // moved from idle chunks to where blocks needed it, ever
	Released    uint64 `json:"released"`     // given back, ever
	Waits       uint64 `json:"waits"`        // how many waits ReuseInternalDependencies has put into streams, ever
}

// String is the statistics as JSON, as expvar.Func writes Stats.
func (s Stats) String() string { return stats.Text(s) }

// LogValue is the statistics as a group of numbers.
func (s Stats) LogValue() slog.Value { return stats.Group(s) }
