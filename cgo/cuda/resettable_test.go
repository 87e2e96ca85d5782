//go:build cgo && linux

package cuda_test

import (
	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/cgo/internal/second"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// resettable is the binding, with another library that resets contexts.
type resettable struct {
	*cuda.Driver
	path string
}

func (d resettable) ResetContext(dev int) error { return second.ResetPrimary(d.path, dev) }

// withReset is d with another library beside it.
func withReset(d driver.Driver) driver.Driver {
	return resettable{d.(*cuda.Driver), libcuda}
}
