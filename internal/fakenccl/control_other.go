//go:build !cgo || !linux

package fakenccl

import (
	"errors"
	"fmt"
)

// control calls the control functions of a loaded library. This build can load
// none.
type control struct{}

func openControl(string) (*control, error) {
	return nil, fmt.Errorf("built without cgo, or not for Linux: %w", errors.ErrUnsupported)
}

func (*control) close() error { return nil }

func (*control) fail(string, int, int) error { return nil }

// Reset does nothing.
func (*control) Reset() {}

// Calls counts nothing.
func (*control) Calls(string) int { return 0 }

// Violations says nothing.
func (*control) Violations() string { return "" }

// Log says nothing.
func (*control) Log() string { return "" }

// Polls does nothing.
func (*control) Polls(int) {}

// Kill ends nothing.
func (*control) Kill(int, int) int { return 0 }

// Live counts nothing.
func (*control) Live() Live { return Live{} }
