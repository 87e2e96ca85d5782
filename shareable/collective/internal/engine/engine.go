// Package engine is the seam between package collective, which knows memory that grows, and
// what carries data between the members of a group: NCCL, or goroutines on host memory.
package engine

import (
	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Engine is one member's end of a group. A Group makes one call at a time, except of Abort.
// What an engine has begun and not done it reports with nccl.ErrInProgress; then no other
// call is made until Progress returns something else.
type Engine interface {
	// Run queues the calls on the stream, as one: none waits for another to end. memory is
	// all that they use. It is mapped, and stays so until they have run.
	Run(st driver.Stream, memory []driver.Span, calls []nccl.Call) error
	// Progress is nil if all that was begun is done, as far as the caller has to wait for it,
	// and no member is known to be gone. After any error but nccl.ErrInProgress the group is
	// of no more use.
	Progress() error
	// Register makes a chunk of memory known to the engine, and Deregister undoes that.
	Register(p vmm.Ptr, n uint64) (handle uint64, err error)
	Deregister(handle uint64) error
	// RegisterWindow is Register for faster calls. All members have to call it, with as many
	// bytes, and queue their calls in windows alike. handle is to be read once it is done.
	RegisterWindow(p vmm.Ptr, n uint64, handle *uint64) error
	DeregisterWindow(handle uint64) error
	// Close ends the group. All members have to call it, after the same calls. Once it is
	// done, or after Abort, Free is called.
	Close() error
	// Abort ends this member's part at once, also what is queued on streams. The others find
	// out by themselves. It may be called while another call runs, which then returns.
	Abort() error
	// Free gives back what the engine has. No other call runs, or follows.
	Free() error
	// Name is the engine's name and version.
	Name() string
}
