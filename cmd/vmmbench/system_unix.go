//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// endSignals end a run: it writes what it has measured, and marks it.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// pipeSignals come with a write to a pipe that is no longer read.
var pipeSignals = []os.Signal{syscall.SIGPIPE}

// windowWidth is the width of a terminal in characters, 0 if it is not known.
func windowWidth(fd uintptr) int {
	size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
