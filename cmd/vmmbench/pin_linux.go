package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

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
