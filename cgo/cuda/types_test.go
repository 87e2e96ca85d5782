//go:build cgo && linux

package cuda

// For the tests of the package.
type (
	Device = device
	Driver = libcuda
)

// Loaded is Load.
func Loaded(path string) (*Driver, error) { return load(path) }
