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
