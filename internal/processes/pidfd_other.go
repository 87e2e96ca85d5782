//go:build !linux

package processes

import (
	"errors"
	"os"
	"time"
)

// PIDFD needs Linux, and so do the others here.
func PIDFD(int, uint64) (int, error) { return -1, errors.ErrUnsupported }

// IsGone is false.
func IsGone(error) bool { return false }

// EndsIn is false.
func EndsIn(int, time.Duration) bool { return false }

// File needs Linux.
func File(int) (*os.File, error) { return nil, errors.ErrUnsupported }

// StartOf is 0.
func StartOf(int) uint64 { return 0 }

// IsExiting is false.
func IsExiting(int) bool { return false }
