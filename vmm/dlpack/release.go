package dlpack

import (
	"fmt"
	"os"
	"sync"

	"github.com/cuvmm/cuvmm/cgo/dlpack"
	"github.com/cuvmm/cuvmm/vmm"
)

// exports are the tensors whose memory is held. One goroutine waits for their deleters as long as there
// is any.
var exports struct {
	mu      sync.Mutex
	open    map[dlpack.Slot]func() // drop the holds
	waiting bool
}

// newTensor exports what spec describes, and takes over release unless it fails.
func newTensor(spec *dlpack.Tensor, unversioned bool, text string, release func()) (*Tensor, error) {
	if unversioned {
		if spec.Flags&dlpack.ReadOnly != 0 {
			return nil, fmt.Errorf("%w: read-only memory as a DLManagedTensor, which cannot say so", vmm.ErrPermission)
		}
		spec.Major, spec.Minor = 0, 0
	}
	x := &exports
	x.mu.Lock()
	defer x.mu.Unlock()
	events, err := dlpack.Events()
	if err != nil {
		return nil, err
	}
	slot, err := dlpack.Export(spec)
	if err != nil {
		return nil, err
	}
	if x.open == nil {
		x.open = map[dlpack.Slot]func(){}
	}
	t := &Tensor{slot: slot, text: text, released: make(chan struct{})}
	t.release = sync.OnceFunc(func() {
		release()
		close(t.released)
	})
	x.open[slot] = t.release
	if !x.waiting {
		x.waiting = true
		go waitForDeleters(events)
	}
	return t, nil
}

// waitForDeleters drops the holds of tensors whose deleters were called, and ends with the last tensor.
func waitForDeleters(events *os.File) {
	count := make([]byte, 8)
	for !dropDeleted() {
		_, _ = events.Read(count) // it stays open, so there is no error
	}
}

// dropDeleted drops the holds of tensors whose deleters were called. It reports whether no tensor is
// left, and then the goroutine must end.
func dropDeleted() (none bool) {
	x := &exports
	deleted := dlpack.Deleted()
	for _, slot := range deleted {
		x.mu.Lock()
		release := x.open[slot]
		x.mu.Unlock()
		if release != nil { // else Close came first, and a deleter was called for a struct that was not handed over
			release() // it takes locks of the range, so none is held here
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, slot := range deleted {
		delete(x.open, slot)
	}
	dlpack.Free(deleted)
	x.waiting = len(x.open) > 0
	return !x.waiting
}

// String is "DLPack export of float32[1000 768]".
func (t *Tensor) String() string {
	if t == nil {
		return "no DLPack export"
	}
	return t.text
}

// Released is closed once the memory is no longer held: soon after the consumer's call of the deleter, or
// after Close. Wait for it before a Clip or Close of the memory, which would be vmm.ErrBusy until then. Of the
// zero Tensor it is closed.
func (t *Tensor) Released() <-chan struct{} {
	if t == nil || t.released == nil {
		return closed
	}
	return t.released
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// take reports whether the caller is the first to hand over or close the tensor.
func (t *Tensor) take() bool { return t != nil && t.slot != 0 && !t.gone.Swap(true) }

// Close drops the hold of a tensor that was not handed over. After HandOver it does nothing. Twice is
// fine, and so is a nil Tensor.
func (t *Tensor) Close() error {
	if !t.take() {
		return nil
	}
	t.release()
	x := &exports
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.open, t.slot)
	t.slot.Claim()
	if len(x.open) == 0 {
		dlpack.Wake() // the goroutine ends
	}
	return nil
}
