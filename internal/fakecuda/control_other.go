//go:build !cgo || !linux

package fakecuda

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

// Configure does nothing.
func (*control) Configure(int, uint64) {}

// Calls counts nothing.
func (*control) Calls(string) int { return 0 }

// Last says nothing.
func (*control) Last(string) string { return "" }

// Violations says nothing.
func (*control) Violations() string { return "" }

// Live counts nothing.
func (*control) Live() Live { return Live{} }

// Lose does nothing.
func (*control) Lose() {}

// Pause does nothing.
func (*control) Pause(string) error { return nil }

// Paused counts nothing.
func (*control) Paused() int { return 0 }

// Link does nothing.
func (*control) Link(_, _ int, _ Link) {}

func (*control) foreign(int, uint64, *Foreign) int { return -1 }

// End does nothing.
func (*control) End() {}
