// Package cuda is the CUDA driver. This version has no binding of libcuda yet:
// Driver says so, and programs fall back to the host driver.
package cuda

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// library is what the binding looks for at run time.
const library = "libcuda.so.1"

// Driver gives the process's CUDA driver, or an error that Is
// driver.ErrNoDriver and says what was looked for.
func Driver() (driver.Driver, error) {
	return nil, &driver.CallError{
		Call: "open " + library,
		Kind: driver.ErrNoDriver,
		Err:  errors.New("this build has no CUDA binding"),
	}
}
