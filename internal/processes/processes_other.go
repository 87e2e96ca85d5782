//go:build !linux

package processes

import "errors"

// Self returns an error: it needs Linux's /proc.
func Self() (ID, error) { return ID{}, errors.ErrUnsupported }

// Boot returns an error: it needs Linux's /proc.
func Boot() (string, error) { return "", errors.ErrUnsupported }

// Ended is not known here.
func Ended(ID) bool { return false }

// Shown is not known here.
func Shown() bool { return false }
