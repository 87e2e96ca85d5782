package pool_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// TestMain checks that no goroutine and no descriptor is left.
func TestMain(m *testing.M) {
	if testgate.Child() {
		os.Exit(m.Run())
	}
	before := descriptors()
	if onCUDA { // the driver opens its own and keeps them
		before = nil
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if now := descriptors(); code == 0 && before != nil && len(now) > len(before) {
			fmt.Fprintf(os.Stderr, "descriptors are left: %v, at first %v\n", now, before)
			code = 1
		}
		os.Exit(code)
	}))
}

// descriptors are the files that the process has open, the runtime's own apart.
func descriptors() (open []string) {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil // not on Linux
	}
	for _, e := range all {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && to != "anon_inode:[eventpoll]" && to != "anon_inode:[eventfd]" {
			open = append(open, e.Name()+" "+to)
		}
	}
	return open
}
