package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// runOn has all threads of the process run on these CPUs only. Threads that come later are
// like those that make them.
func runOn(cpus []int) (undo func() error, err error) {
	var may, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return nil, err
	}
	for _, n := range cpus {
		if !may.IsSet(n) {
			return nil, fmt.Errorf("this process may not run on CPU %d, or there is none", n)
		}
		want.Set(n)
	}
	return func() error { return setAffinity(&may) }, setAffinity(&want)
}

// setAffinity sets the CPUs of every thread, until no thread is new.
func setAffinity(set *unix.CPUSet) error {
	done := map[int]bool{}
	for {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		seen := len(done)
		for _, x := range threads {
			id, err := strconv.Atoi(x.Name())
			if err != nil || done[id] {
				continue
			}
			// A thread may have ended since.
			if err := unix.SchedSetaffinity(id, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			done[id] = true
		}
		if len(done) == seen {
			return nil
		}
	}
}

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

// mapMemory maps anonymous memory.
func mapMemory(n uint64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }

// remapMemory maps anonymous memory, or makes what mapMemory has mapped this large, at another
// address unless what lies behind it is free.
func remapMemory(b []byte, n uint64) ([]byte, error) {
	if b == nil {
		return mapMemory(n)
	}
	return unix.Mremap(b, int(n), unix.MREMAP_MAYMOVE)
}
