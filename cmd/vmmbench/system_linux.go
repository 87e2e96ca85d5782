package main

import (
	"io"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// withoutWaiting opens a pipe at once, or not at all if it has no reader.
const withoutWaiting = unix.O_NONBLOCK

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

// terminalWidth is how many characters a line of a terminal has, 0 if w is none.
func terminalWidth(w io.Writer) int {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// mapMemory maps anonymous memory.
func mapMemory(n uint64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }

// remapMemory maps anonymous memory, or makes what mapMemory has mapped this large, at another
// address unless the memory behind it is free.
func remapMemory(b []byte, n uint64) ([]byte, error) {
	if b == nil {
		return mapMemory(n)
	}
	return unix.Mremap(b, int(n), unix.MREMAP_MAYMOVE)
}
