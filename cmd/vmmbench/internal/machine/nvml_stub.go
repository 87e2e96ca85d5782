//go:build !cgo || !linux || nonvml

package machine

import "errors"

// openNVML refuses: this program was built without cgo, for a system other than Linux,
// or with the tag nonvml.
func openNVML() (library, error) {
	return nil, errors.New("this program was built without NVML")
}
