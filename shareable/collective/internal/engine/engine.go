// Package engine is the interface between package collective, which knows memory that grows,
// and what carries data between the members of a group: NCCL, or goroutines on host memory.
package engine

import (
	"context"
	"net"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Maker makes the engines of groups.
type Maker interface {
	// NewID makes the identity of a group that does not exist yet. The caller has to be a member.
	NewID() (nccl.ID, error)
	// Join makes this process a member of a group and returns once all members are there, or when
	// ctx ends.
	Join(ctx context.Context, dev *vmm.Device, id nccl.ID, rank, size int) (Engine, error)
}

// ForTests is the door of package collective, for package collectivetest: see package door. Its types are
// *Group and Options.
type ForTests[G, O any] interface {
	// JoinOn is Join with o.Rank and o.Size on another engine than NCCL. If at is not nil, all members
	// meet where it listens, and it is that of rank 0, which takes it over. If it is nil, they do not
	// meet, and o.ID is the group's.
	JoinOn(ctx context.Context, dev *vmm.Device, o O, of Maker, at net.Listener) (G, error)
}

// Engine is one member's end of a group that all members have joined. A Group makes one call at a
// time, except Abort. Calls that need other members wait for them; Abort ends the wait. After an
// error that is neither vmm.ErrInvalid nor vmm.ErrNotSupported the group can only be aborted.
type Engine interface {
	// Run queues the calls on the stream, as one group of NCCL's: none waits for another to
	// end. memory is all that they use. It stays mapped until they have run.
	Run(st driver.Stream, memory []driver.Span, calls []nccl.Call) error
	// Err does not wait. It is nil as long as nothing has failed, and no member is known to be
	// gone.
	Err() error
	// Register registers a chunk of n bytes at p, and Deregister undoes that.
	Register(p vmm.Ptr, n uint64) (handle uint64, err error)
	Deregister(handle uint64) error
	// RegisterWindow is Register for a symmetric window. All members have to call it, with as
	// many bytes, and use the same offsets in calls.
	RegisterWindow(p vmm.Ptr, n uint64) (handle uint64, err error)
	DeregisterWindow(handle uint64) error
	// Close ends the group. All members have to call it, after the same calls. Free follows
	// after it, or after Abort.
	Close() error
	// Abort ends this member's part at once, with what is queued on streams. It tells the others
	// nothing. It may be called while another call waits, which then returns.
	Abort() error
	// Free releases what the engine has. No other call runs then, or follows.
	Free() error
	// Name is the engine's name and version.
	Name() string
}
