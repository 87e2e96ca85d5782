//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// endSignals end a run: it writes what it has measured, and marks it.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// pipeSignals come with a write to a pipe that is no longer read.
var pipeSignals = []os.Signal{syscall.SIGPIPE}

// openInPlace opens what is not a regular file. A named pipe has to have a reader by then:
// what is written to one without is lost when the run ends.
func openInPlace(name string, mode fs.FileMode) (*os.File, error) {
	how := os.O_WRONLY
	if mode&fs.ModeNamedPipe != 0 {
		how |= syscall.O_NONBLOCK // without it, this waits for a reader
	}
	f, err := os.OpenFile(name, how, 0)
	if errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("output file %q: this pipe has no reader", name)
	}
	return f, err
}

// windowWidth is the width of a terminal in characters, 0 if it is not known.
func windowWidth(fd uintptr) int {
	size, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
