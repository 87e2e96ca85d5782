//go:build !unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// endSignals end a run: it writes what it has measured, and marks it.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// pipeSignals is empty: here a write to stdout fails, and nothing else happens.
var pipeSignals []os.Signal

// openInPlace opens what is not a regular file.
func openInPlace(name string, _ fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, os.O_WRONLY, 0)
}

// windowWidth is 0: the width of a terminal is not known here.
func windowWidth(uintptr) int { return 0 }
