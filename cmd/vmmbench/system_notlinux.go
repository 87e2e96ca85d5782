//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func runOn([]int) (func() error, error) {
	return nil, errors.New("this system cannot keep a process on CPUs; Linux can")
}

func endWithParent(*exec.Cmd) {}

// monotonic is the clock of the system, which may be set meanwhile. Nothing is timed by
// it: memory is shared on Linux only.
func monotonic() int64 { return time.Now().UnixNano() }

func mapMemory(uint64) ([]byte, error) {
	return nil, fmt.Errorf("fresh memory needs Linux: %w", driver.ErrNotSupported)
}

func unmapMemory([]byte) error { return nil }

func remapMemory([]byte, uint64) ([]byte, error) {
	return nil, fmt.Errorf("mremap needs Linux: %w", driver.ErrNotSupported)
}
