//go:build !cgo || !linux

package nvrtc

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Compiler is an open libnvrtc. This build can open none.
type Compiler struct{}

// unsupported is a variable, so that no one who compiles this reasons that callers always
// fail.
var unsupported = func(call string) error {
	return &driver.CallError{
		Call: call,
		Kind: driver.ErrNotSupported,
		Err:  errors.New("this program was built without cgo, or not for Linux"),
	}
}

// Open returns an error that Is driver.ErrNotSupported.
func Open(string) (*Compiler, error) { return nil, unsupported("open libnvrtc") }

// Version returns zeros.
func (*Compiler) Version() (major, minor int) { return 0, 0 }

// ArchFor returns arch.
func (*Compiler) ArchFor(arch string) string { return arch }

// Compile returns an error that Is driver.ErrNotSupported.
func (*Compiler) Compile(string, Options) (*Result, error) {
	return nil, unsupported("nvrtcCompileProgram")
}
