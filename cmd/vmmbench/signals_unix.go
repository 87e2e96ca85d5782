//go:build unix

package main

import (
	"os"
	"syscall"
)

// endSignals end a run: it writes what it has measured, and marks it.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// pipeSignals come with a write to a pipe that is no longer read.
var pipeSignals = []os.Signal{syscall.SIGPIPE}
