//go:build cgo && linux

// Package fork runs a function in a forked child, as a program does that forks
// after it has used CUDA. It is for tests.
package fork

/*
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

// fork_with_alarm forks. The child has only this thread, and an alarm that ends it.
static int fork_with_alarm(unsigned int seconds) {
	int pid = fork();
	if (pid == 0) {
		signal(SIGALRM, SIG_DFL);
		alarm(seconds);
	}
	return pid;
}

// wait_for returns the child's exit status, or -1 if a signal ended it.
static int wait_for(int pid) {
	int status = 0;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Run runs f in a forked child and returns what f returned, from 0 to 255. Go
// promises nothing after a fork, so f must start no goroutine and wait for none.
// A child that hangs all the same is ended, and another one is tried.
func Run(f func() int) (int, error) {
	const tries, seconds = 5, 5
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the child does not have the collector's threads
	runtime.GC()                                     // ends a collection that runs
	for range tries {
		pid, err := C.fork_with_alarm(seconds)
		switch {
		case pid < 0:
			return 0, fmt.Errorf("fork: %w", err)
		case pid == 0:
			C._exit(C.int(f()))
		}
		if status := C.wait_for(pid); status >= 0 {
			return int(status), nil
		}
	}
	return 0, errors.New("no forked child came to an end")
}
