//go:build cgo && linux

package cuda_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// sleeping is a Range that falls asleep for the first time, with its contents, by as many
// processors; beside it C copies as much out of another range, which it leaves mapped.
func (v *rivals) sleeping(size uint64, processors int) job {
	fresh := func() *vmm.Range {
		g, err := v.dev.NewRange(vmm.RangeOptions{Max: size})
		require.NoError(v, err)
		require.NoError(v, g.Grow(size))
		require.NoError(v, g.SetLen(size))
		return g
	}
	other := fresh()
	v.Cleanup(func() { require.NoError(v, other.Close()) })
	var g *vmm.Range
	return job{
		name:    fmt.Sprintf("first sleep of %d MiB, %d processors", size/mib, processors),
		against: []string{"the copy in C"},
		ways: []func() time.Duration{
			func() time.Duration {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
				return v.timed(func() error { return vmm.Sleep(vmm.SleepKeep, g) })
			},
			func() time.Duration { return v.took(v.loop.Download(uint64(other.Ptr()), size, processors)) },
		},
		prepare: func() { g = fresh() },
		undo:    func() { require.NoError(v, g.Close()) },
		most:    1 / 0.8,
	}
}

func compareSleep(t *testing.T, v *rivals, size uint64, most int) {
	var results []result
	for _, processors := range []int{2, runtime.NumCPU()} {
		j := v.sleeping(size, processors)
		results = append(results, v.compete(min(20, most), j))
	}
	t.Log("\n" + table(results...))
}

// TestAgainstCSleep: a missed target is reported and fails no test.
func TestAgainstCSleep(t *testing.T) {
	compareSleep(t, newRivals(t, device(t), libcuda), 4*gib, math.MaxInt)
}

func TestAgainstCSleepOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	compareSleep(t, v, testgate.Effort[uint64](16, 48, 48)*mib, 2)
}
