//go:build cgo && linux

package fakectl

/*
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

// fork_alone forks. The child has this thread alone, and an alarm that ends it.
static int fork_alone(unsigned int seconds) {
	int pid = fork();
	if (pid == 0) {
		signal(SIGALRM, SIG_DFL);
		alarm(seconds);
	}
	return pid;
}

// ended is the child's exit status, -1 if a signal ended it.
static int ended(int pid) {
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

// Fork runs f in a forked child and gives what it returned, from 0 to 255. Go
// promises nothing after a fork: f must start no goroutine and wait for none.
// A child that hangs all the same is ended, and another one is tried.
func Fork(f func() int) (int, error) {
	const tries, seconds = 5, 5
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector's threads are not there
	runtime.GC()                                     // ends one that runs
	for range tries {
		pid, err := C.fork_alone(seconds)
		switch {
		case pid < 0:
			return 0, fmt.Errorf("fork: %w", err)
		case pid == 0:
			C._exit(C.int(f()))
		}
		if status := C.ended(pid); status >= 0 {
			return int(status), nil
		}
	}
	return 0, errors.New("no forked child came to an end")
}
