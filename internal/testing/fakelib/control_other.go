//go:build !cgo || !linux

package fakelib

import (
	"errors"
	"fmt"
)

// control calls the control functions of a loaded library. This build can load
// none.
type control struct{}

func openControl(string) (control, error) {
	return control{}, fmt.Errorf("built without cgo, or not for Linux: %w", errors.ErrUnsupported)
}

func (control) close() error { return nil }

// TryFail does nothing.
func (control) TryFail(string, int, int) error { return nil }

// Reset does nothing.
func (control) Reset() {}

// Calls counts nothing.
func (control) Calls(string) int { return 0 }

// Violations says nothing.
func (control) Violations() string { return "" }
