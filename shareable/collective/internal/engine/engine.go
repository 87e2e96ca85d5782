// Package engine is the seam between package collective, which knows memory that grows, and
// what carries data between the members of a group: NCCL, or goroutines on host memory.
package engine

import (
	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

// Engine is one member's end of a group. Group calls Run, Progress, Register, Deregister and
// Close one at a time, and Abort at any time, once.
type Engine interface {
	// Run queues the calls on the stream, as one: none waits for another to end. All of
	// memory is what they use, of the device of the stream; it is not unmapped before they
	// have run. With nccl.ErrInProgress they are queued once Progress returns nil, and until
	// then done must not be called; done is never nil, and is called once.
	Run(st *vmm.Stream, memory []vmm.Span, calls []nccl.Call) (done func(), err error)
	// Progress is nil if all that was begun has been queued and no member is known to be
	// gone, nccl.ErrInProgress while it is being queued, and otherwise why the group is of no
	// more use.
	Progress() error
	// Register makes memory known to the engine, and Deregister undoes that. The memory is
	// one chunk.
	Register(p vmm.Ptr, n uint64) (handle uint64, err error)
	Deregister(handle uint64) error
	// RegisterWindow is Register on all members at a time, which they have to call with as
	// many bytes. As with Run, nccl.ErrInProgress is possible; Window has the handle then.
	RegisterWindow(p vmm.Ptr, n uint64) error
	Window() (handle uint64)
	DeregisterWindow(handle uint64) error
	// Close ends the group, of which each member has done the same calls. It may return
	// nccl.ErrInProgress: then Progress says when it is done, and Close has to be called
	// again. Abort ends this member's part at once, also of what is queued on streams; the
	// others find out by themselves.
	Close() error
	Abort() error
	// Name is the engine's name and version.
	Name() string
}
