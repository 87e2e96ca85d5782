package dlpack

import (
	"github.com/cuvmm/cuvmm/cgo/dlpack"
	"github.com/cuvmm/cuvmm/vmm"
)

// SetUnheld has exports hold nothing, or again.
func SetUnheld(on bool) { unheld = on }

// Open is how many tensors are exported, and whether the goroutine runs that waits for their deleters.
func Open() (n int, waiting bool) {
	exports.mu.Lock()
	defer exports.mu.Unlock()
	return len(exports.open), exports.waiting
}

// Repeated is how often a deleter was called again.
func Repeated() uint64 { return dlpack.Repeated() }

// Tombstones is how many deletes are remembered.
const Tombstones = dlpack.Tombstones

// Wait makes the stream of a number wait for the work on others, as for memory on a GPU.
func Wait(d *vmm.Device, number int64, streams ...*vmm.Stream) error {
	to, err := consumerOf(number, dlpack.CUDA)
	if err != nil {
		return err
	}
	return to.after(d, streams)
}

// Users are the streams that an export waits for by itself.
func Users(m Memory) []*vmm.Stream {
	var at vmm.MemoryArg
	m.MemoryArg(&at)
	return in.UsersOf(in.ReservationOf(&at))
}
