//go:build !linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// vmmbench is for Linux. Elsewhere it compiles, and nothing more.
var errNeedsLinux = fmt.Errorf("vmmbench needs Linux: %w", driver.ErrNotSupported)

const withoutWaiting = 0

func process(*settings, []string) int {
	fmt.Fprintln(os.Stderr, errNeedsLinux)
	return 1
}

func mapMemory(uint64) ([]byte, error)           { return nil, errNeedsLinux }
func unmapMemory([]byte) error                   { return nil }
func remapMemory([]byte, uint64) ([]byte, error) { return nil, errNeedsLinux }
func endWithParent(*exec.Cmd)                    {}
func terminalWidth(io.Writer) int                { return 0 }
func monotonic() int64                           { return 0 }
