//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// ignoreSignals keeps the end of what reads the log, or of a terminal, from dropping all objects.
func ignoreSignals() { signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP) }
