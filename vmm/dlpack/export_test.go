package dlpack

import "github.com/cuvmm/cuvmm/cgo/dlpack"

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
