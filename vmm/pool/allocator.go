package pool

import (
	"log/slog"

	"github.com/cuvmm/cuvmm/internal/stats"
	"github.com/cuvmm/cuvmm/vmm"
)

// Allocator is stream-ordered memory of one device: a [Pool], or a [DriverPool], which is one
// of the driver's own. Safe for concurrent use.
type Allocator interface {
	// Device is whose memory it is.
	Device() *vmm.Device

	// Alloc returns n bytes for work that is queued on the stream from now on. Their
	// contents are undefined. The stream may be of another device that was granted access.
	// Alloc of 0 bytes returns a block without memory. Errors are ErrOutOfMemory, ErrInvalid,
	// ErrClosed and ErrCapturing.
	Alloc(s *vmm.Stream, n uint64) (Block, error)
	// Free gives a block up once the work that the stream has now has ended. It does not
	// wait. If it is not the stream of Alloc the caller orders it after that. If Free fails
	// the block is allocated as before: ErrDoubleFree, ErrForeignBlock, ErrClosed and
	// ErrCapturing.
	Free(s *vmm.Stream, b Block) error
	// FreeNow gives up a block that no work uses any more. It does not wait.
	FreeNow(b Block) error
	// Resize makes a block, where it lies, n bytes long. The block that is returned is the same
	// one: of the two values one is freed. It returns ErrNoRoom if the memory behind the block is
	// not free, ErrNotSupported from a DriverPool, and the errors of Free. After an error nothing
	// has changed.
	Resize(s *vmm.Stream, b Block, n uint64) (Block, error)

	// TrimTo releases memory that no block uses until at most keep bytes are reserved, and
	// returns how many bytes went. Memory freed in a stream whose work is not known to have
	// ended counts as used.
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
	// Revoke takes access away, after a wait for work that may use it. The owner's cannot be
	// revoked.
	Revoke(devs ...*vmm.Device) error
	// Access is what a device may do with the memory.
	Access(d *vmm.Device) (vmm.Access, error)

	// Stats is the pool in numbers.
	Stats() (Stats, error)
	// ResetPeaks sets Stats.ReservedPeak and UsedPeak to what is reserved and used now.
	ResetPeaks() error
	// Close gives the pool up. While blocks are allocated it returns ErrBusy. Twice is fine.
	Close() error
}

// Reuse is a set of policies by which Alloc may take memory that was freed in another
// stream. Memory freed in the same stream, and memory whose work is known to have ended, is
// always reused. The names are CUDA's.
type Reuse uint8

const (
	// ReuseFollowEvents allows memory that was freed in a stream before an event for which
	// this stream waits already.
	ReuseFollowEvents Reuse = 1 << iota
	// ReuseOpportunistic allows memory whose work turns out to have ended.
	ReuseOpportunistic
	// ReuseInternalDependencies has this stream wait for the other one, if no other memory
	// can be had.
	ReuseInternalDependencies

	// ReuseAll is all of them, the default.
	ReuseAll = ReuseFollowEvents | ReuseOpportunistic | ReuseInternalDependencies
)

// Stats is a pool in numbers. Sizes are in bytes. "Ever" is since New. It is an slog.LogValuer,
// and String is its JSON, as package expvar wants it. JSON field names are stable.
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
	LargestFree uint64 `json:"largest_free"` // the longest run of free memory, idle or pending; up to an eighth too low
	Created     uint64 `json:"created"`      // new memory, ever; also what came from the device's cache
	Remapped    uint64 `json:"remapped"`     // moved from idle chunks to where blocks needed it, ever
	Released    uint64 `json:"released"`     // given back, ever
	Waits       uint64 `json:"waits"`        // how many waits ReuseInternalDependencies has put into streams, ever
}

// String is the statistics as JSON, the same that expvar.Func makes of Stats.
func (s Stats) String() string { return stats.Text(s) }

// LogValue is the statistics as a group of numbers.
func (s Stats) LogValue() slog.Value { return stats.Group(s) }
