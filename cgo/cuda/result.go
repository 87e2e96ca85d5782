package cuda

import "fmt"

// library is what is looked for at run time.
const library = "libcuda.so.1"

// Result is CUDA's own error code, a CUresult. It is found inside the
// *driver.CallError of every failed call, with errors.As.
type Result int

// forked says that the call was made in a forked child. CUDA has no such result.
const forked Result = 0x7fffffff // CUVMM_FORKED

// Error is CUDA's number. Driver.text has its name too.
func (r Result) Error() string {
	if r == forked {
		return "the driver does not survive a fork: this is a child of the process that opened it"
	}
	return fmt.Sprintf("CUDA error %d", int(r))
}
