//go:build !cgo || !linux

package cuda

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Default returns the process's CUDA driver, or an error that Is
// driver.ErrNoDriver and says what was looked for.
func Default() (driver.Driver, error) {
	return nil, &driver.CallError{
		Call: "open " + library,
		Kind: driver.ErrNoDriver,
		Err:  errors.New("this program was built without cgo, or not for Linux"),
	}
}
