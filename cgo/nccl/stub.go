//go:build !cgo || !linux

package nccl

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Library is an open libnccl. This build can open none.
type Library struct{}

// Comm is one member's end of a group. This build has none.
type Comm struct{}

// unsupported is a variable, so that compilers and vet do not see that every call fails.
var unsupported = func(call string) error {
	return &driver.CallError{
		Call: call,
		Kind: driver.ErrNotSupported,
		Err:  errors.New("this program was built without cgo, or not for Linux"),
	}
}

// Open returns an error that Is driver.ErrNotSupported.
func Open(string) (*Library, error) { return nil, unsupported("open libnccl") }

// Version returns 0.
func (*Library) Version() int { return 0 }

// String returns "0.0.0".
func (*Library) String() string { return "0.0.0" }

// NewID returns an error that Is driver.ErrNotSupported.
func (*Library) NewID() (ID, error) { return ID{}, unsupported("ncclGetUniqueId") }

// Join returns an error that Is driver.ErrNotSupported.
func (*Library) Join(ID, int, int, func(func() error) error) (*Comm, error) {
	return nil, unsupported("ncclCommInitRankConfig")
}

// Progress returns an error that Is driver.ErrNotSupported.
func (*Comm) Progress() error { return unsupported("ncclCommGetAsyncError") }

// Run returns an error that Is driver.ErrNotSupported.
func (*Comm) Run(driver.Stream, []Call) error { return unsupported("ncclGroupStart") }

// Register returns an error that Is driver.ErrNotSupported.
func (*Comm) Register(uint64, uint64) (uint64, error) { return 0, unsupported("ncclCommRegister") }

// Deregister returns an error that Is driver.ErrNotSupported.
func (*Comm) Deregister(uint64) error { return unsupported("ncclCommDeregister") }

// RegisterWindow returns an error that Is driver.ErrNotSupported.
func (*Comm) RegisterWindow(uint64, uint64) (uint64, error) {
	return 0, unsupported("ncclCommWindowRegister")
}

// DeregisterWindow returns an error that Is driver.ErrNotSupported.
func (*Comm) DeregisterWindow(uint64) error { return unsupported("ncclCommWindowDeregister") }

// Finalize returns an error that Is driver.ErrNotSupported.
func (*Comm) Finalize() error { return unsupported("ncclCommFinalize") }

// Destroy returns an error that Is driver.ErrNotSupported.
func (*Comm) Destroy() error { return unsupported("ncclCommDestroy") }

// Abort returns an error that Is driver.ErrNotSupported.
func (*Comm) Abort() error { return unsupported("ncclCommAbort") }
