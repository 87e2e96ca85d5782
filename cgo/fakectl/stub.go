//go:build !cgo || !linux

// Package fakectl calls the control functions of the fake CUDA driver; not in
// this build.
package fakectl

import (
	"errors"
	"fmt"
)

// Control reaches one loaded fake driver. In this build there is none.
type Control struct{}

// Open says that this build cannot load a library.
func Open(string) (*Control, error) {
	return nil, fmt.Errorf("built without cgo, or not for Linux: %w", errors.ErrUnsupported)
}

// Close does nothing, as the rest does nothing.
func (*Control) Close() error { return nil }

// Reset does nothing.
func (*Control) Reset() {}

// Configure does nothing.
func (*Control) Configure(int, uint64) {}

// Fail does nothing.
func (*Control) Fail(string, int, int) error { return nil }

// Calls counts nothing.
func (*Control) Calls(string) int { return 0 }

// Last says nothing.
func (*Control) Last(string) string { return "" }

// Violations says nothing.
func (*Control) Violations() string { return "" }

// Live counts nothing.
func (*Control) Live() Live { return Live{} }

// Fork says that this build cannot fork.
func Fork(func() int) (int, error) { return 0, errors.ErrUnsupported }

// Lose does nothing.
func (*Control) Lose() {}

// Pause does nothing.
func (*Control) Pause(string) error { return nil }

// Paused counts nothing.
func (*Control) Paused() int { return 0 }

// Link does nothing.
func (*Control) Link(_, _ int, _ Link) {}
