package versus

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is how long the processor runs f: what runs beside it takes none of that.
func CPUTime(tb testing.TB, f func()) time.Duration {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadTime(tb)
	f()
	return threadTime(tb) - start
}

func threadTime(tb testing.TB) time.Duration {
	tb.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(now.Nano())
}
