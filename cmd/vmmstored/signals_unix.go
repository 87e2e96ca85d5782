//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreSignals keeps the end of what reads the log, or of a terminal, from dropping all objects.
func ignoreSignals() { signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP) }

// reloadSignal has SIGHUP come as a request to reload, until stop is called.
func reloadSignal() (reload <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c); close(c) }
}

// ownerOf is whose a socket's file is.
func ownerOf(socket string) (uid uint32, ok bool) {
	info, err := os.Lstat(socket)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}
