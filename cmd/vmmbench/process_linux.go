package main

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// endWithParent kills a process when this one ends, however it does.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// monotonic is a clock, in nanoseconds, that all processes of the machine share.
func monotonic() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return ts.Nano()
}
