//go:build cgo && linux

package nccl_test

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// shortCalls is calls without those of which there is another of the same kind.
func shortCalls(t *testing.T) (all map[string]func(c *nccl.Comm) error, names []string) {
	t.Helper()
	all = calls(t)
	for _, name := range []string{"ncclSend", "ncclReduce", "ncclAllGather", "ncclReduceScatter"} {
		delete(all, name)
	}
	return all, slices.Sorted(maps.Keys(all))
}

// TestPairsOfCallsDuringAbort: two calls of a member and one of the other, and two aborts of each,
// at once, while one call of NCCL's fails. Nothing waits for ever, is used once it has ended, or is
// left, and no member finalizes twice. That members may not make different calls is not what is
// tested.
func TestPairsOfCallsDuringAbort(t *testing.T) {
	l, fake := onFake(t)
	calls, names := shortCalls(t)
	for _, fails := range append([]string{""}, names...) {
		for i, a := range names {
			for _, b := range names[i:] {
				comms := join(t, l, 2)
				if fails != "" {
					fake.Fail(fails, 1, 3)
				}
				var wg sync.WaitGroup
				wg.Go(func() { _ = calls[a](comms[0]) })
				wg.Go(func() { _ = calls[b](comms[0]) })
				wg.Go(func() { _ = calls[a](comms[1]) })
				for range 2 {
					wg.Go(func() { _ = comms[0].Abort() })
					wg.Go(func() { _ = comms[1].Abort() })
				}
				wg.Wait()
				for _, wrong := range []string{"no such communicator", "a call is made", "in progress", "twice"} {
					require.NotContains(t, fake.Violations(), wrong, "%s and %s, %s fails", a, b, fails)
				}
				require.Zero(t, fake.Live(), "%s and %s, %s fails", a, b, fails)
				fake.Reset()
			}
		}
	}
}

// TestCallsAfterHalfADestroy: where the child has ended and its parent has not, no call uses the
// child, and Destroy can be called again.
func TestCallsAfterHalfADestroy(t *testing.T) {
	l, fake := onFake(t)
	calls, names := shortCalls(t)
	for _, name := range names {
		c := join(t, l, 1)[0]
		fake.Fail("ncclCommDestroy", 2, 3)
		isOnly(t, c.Destroy(), nccl.ErrFailed)
		if name == "ncclCommDestroy" {
			require.NoError(t, c.Destroy())
			isOnly(t, c.Abort(), driver.ErrClosed)
		} else {
			isOnly(t, calls[name](c), driver.ErrClosed, name)
			require.NoError(t, c.Abort())
		}
		require.Empty(t, fake.Violations(), name)
	}
}
