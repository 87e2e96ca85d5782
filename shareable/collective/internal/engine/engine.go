// Package engine is the seam between package collective, which knows memory that grows, and
// what carries data between the members of a group: NCCL, or goroutines on host memory.
package engine

import (
	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Engine is one member's end of a group that stands. A Group makes one call at a time, except of
// Abort. Calls that need other members wait for them; Abort ends the wait. After an error that is
// neither vmm.ErrInvalid nor vmm.ErrNotSupported the group is of no more use.
type Engine interface {
	// Run queues the calls on the stream, as one: none waits for another to end. memory is
	// all that they use. It is mapped, and stays so until they have run.
	Run(st driver.Stream, memory []driver.Span, calls []nccl.Call) error
	// Err is nil as long as nothing has failed, and no member is known to be gone.
	Err() error
	// Register makes a chunk of memory known to the engine, and Deregister undoes that.
	Register(p vmm.Ptr, n uint64) (handle uint64, err error)
	Deregister(handle uint64) error
	// RegisterWindow is Register for faster calls. All members have to call it, with as many
	// bytes, and queue their calls in windows alike.
	RegisterWindow(p vmm.Ptr, n uint64) (handle uint64, err error)
	DeregisterWindow(handle uint64) error
	// Close ends the group. All members have to call it, after the same calls. After it, or
	// after Abort, Free is called.
	Close() error
	// Abort ends this member's part at once, also what is queued on streams. The others find
	// out by themselves. It may be called while another call waits, which then returns.
	Abort() error
	// Free gives back what the engine has. No other call runs, or follows.
	Free() error
	// Name is the engine's name and version.
	Name() string
}
