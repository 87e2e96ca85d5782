//go:build !unix

package main

import (
	"os"
	"syscall"
)

// endSignals end a run: it writes what it has measured, and marks it.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// pipeSignals is empty: here a write to stdout fails, and nothing else happens.
var pipeSignals []os.Signal

// windowWidth is 0: the width of a terminal is not known here.
func windowWidth(uintptr) int { return 0 }
