package vmm_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestStagingAgainstTheDriver measures 1 GiB of pageable host memory in both directions beside the
// driver's own pageable copy and a copy of pinned memory. A missed target is noted in the
// table and fails nothing: only a wrong byte does.
func TestStagingAgainstTheDriver(t *testing.T) {
	if !onCUDA {
		testgate.Require(t, "cuda", fmt.Errorf("VMM_TEST_DRIVER=cuda is not set"))
	}
	const size, pairs = 1 << 30, 20
	w := newWorld(t, 1)
	d, dev := w.devs[0], raw(t, w.devs[0])
	g, err := d.Alloc(size)
	require.NoError(t, err)
	pinner := dev.(driver.HostAllocator)
	pin, pinned, err := pinner.AllocHost(size)
	require.NoError(t, err)
	s := stream(t, d)

	mem, want := make([]byte, size), noise(size, 1)
	timed := func(f func() error) time.Duration {
		start := time.Now()
		err := f()
		took := time.Since(start)
		require.NoError(t, err)
		return took
	}
	queued := func(dst, src vmm.Ptr) error {
		if err := dev.Copy(dst, src, size, s.Raw()); err != nil {
			return err
		}
		return dev.SyncStream(s.Raw())
	}
	// Each way starts from bytes that are wrong everywhere, and all of them are checked.
	wipe := func() {
		require.NoError(t, s.Fill(g.Ptr(), 0, 1, size))
		require.NoError(t, s.Sync())
	}
	arrived := func() {
		require.NoError(t, queued(pin, g.Ptr()))
		require.True(t, bytes.Equal(want, pinned))
	}
	up := func(f func() error) func() time.Duration {
		return func() time.Duration {
			wipe()
			took := timed(f)
			arrived()
			return took
		}
	}
	down := func(into []byte, f func() error) func() time.Duration {
		return func() time.Duration {
			clear(into)
			took := timed(f)
			require.True(t, bytes.Equal(want, into))
			return took
		}
	}

	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "1 GiB\tprocs\tours GB/s\tdriver\tpinned\tours/driver\t95 %\tours/pinned\t95 %\ttarget")
	row := func(name string, overDriver, ofPinned float64, ways ...func() time.Duration) {
		took := versus.Rounds(pairs, ways...)
		rate := func(i int) float64 { return size / versus.Median(took[i]) }
		// The inverse of a time is a rate.
		low, high := versus.Interval(took[1], took[0])
		lowPin, highPin := versus.Interval(took[2], took[0])
		target := versus.Verdict(low >= overDriver && lowPin >= ofPinned)
		fmt.Fprintf(table, "%s\t%d\t%.1f\t%.1f\t%.1f\t%.2f\t[%.2f, %.2f]\t%.2f\t[%.2f, %.2f]\t%s\n", name, runtime.GOMAXPROCS(0),
			rate(0), rate(1), rate(2), rate(0)/rate(1), low, high, rate(0)/rate(2), lowPin, highPin, target)
	}
	both := func(up4, upPinned, down2 float64) {
		copy(pinned, want)
		row("up", up4, upPinned,
			up(func() error { return d.CopyIn(g.Ptr(), want) }),
			up(func() error { return dev.CopyIn(g.Ptr(), want) }),
			up(func() error { return queued(g.Ptr(), pin) }))
		require.NoError(t, queued(g.Ptr(), pin))
		row("down", down2, 0,
			down(mem, func() error { return d.CopyOut(mem, g.Ptr()) }),
			down(mem, func() error { return dev.CopyOut(mem, g.Ptr()) }),
			down(pinned, func() error { return queued(pin, g.Ptr()) }))
	}
	both(4, 0.8, 2)
	old := runtime.GOMAXPROCS(2)
	const equal = 0.97 // of the driver's own way, which is used if it is as fast
	both(equal, 0, equal)
	runtime.GOMAXPROCS(old)
	require.NoError(t, table.Flush())
	t.Log("\n" + text.String())

	require.NoError(t, pinner.FreeHost(pin))
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}
