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

// many is ranges of one size, full, and as much memory of C's in chunks of the same sizes.
type many struct {
	*rivals
	size    uint64 // of each
	ranges  []*vmm.Range
	steps   [][]uint64 // the growth of each
	p       uint64
	handles [][]uint64
}

func (v *rivals) many(n int, size uint64) *many {
	m := &many{rivals: v, size: size, handles: make([][]uint64, n)}
	for range n {
		g, err := v.dev.NewRange(vmm.RangeOptions{Max: 16 * size})
		require.NoError(v, err)
		v.Cleanup(func() { require.NoError(v, g.Close()) })
		m.steps = v.recorded(g, []uint64{size})
		require.NoError(v, g.SetLen(size))
		m.ranges = append(m.ranges, g)
	}
	var err error
	m.p, err = v.loop.Reserve(uint64(n)*size, v.gran)
	require.NoError(v, err)
	v.Cleanup(func() {
		for i := range n {
			m.drop(i)
		}
		require.NoError(v, v.loop.Free(m.p, uint64(n)*size))
	})
	for i := range n {
		m.make(i)
	}
	return m
}

// make gives C the memory of a range.
func (m *many) make(i int) {
	handles, _, err := m.loop.Grow(m.p+uint64(i)*m.size, m.steps)
	require.NoError(m, err)
	m.handles[i] = handles
}

// drop takes it back.
func (m *many) drop(i int) {
	require.NoError(m, m.loop.Unmap(m.p+uint64(i)*m.size, m.size))
	for _, h := range m.handles[i] {
		require.NoError(m, m.loop.Release(h))
	}
}

// each is how long f took for all.
func (m *many) each(f func(int)) time.Duration {
	return m.timed(func() error {
		for i := range m.ranges {
			f(i)
		}
		return nil
	})
}

func (m *many) sleep() error { return vmm.Sleep(vmm.SleepKeep, m.ranges...) }
func (m *many) wake() error  { return vmm.Wake(m.ranges...) }

// jobs are that all of them sleep, and wake; and in C the calls of the driver, and one copy of all bytes.
func (m *many) jobs(processors int) []job {
	all := uint64(len(m.ranges)) * m.size
	return []job{{
		name:    fmt.Sprintf("sleep of %d x %s", len(m.ranges), mibs(m.size)),
		against: []string{"C"},
		ways: []func() time.Duration{
			func() time.Duration { return m.timed(m.sleep) },
			func() time.Duration { return m.took(m.loop.Download(m.p, all, processors)) + m.each(m.drop) },
		},
		prepare: func() {},
		undo:    func() { require.NoError(m, m.wake()); m.each(m.make) },
		most:    1.3,
	}, {
		name:    fmt.Sprintf("wake of %d x %s", len(m.ranges), mibs(m.size)),
		against: []string{"C"},
		ways: []func() time.Duration{
			func() time.Duration { return m.timed(m.wake) },
			func() time.Duration { return m.each(m.make) + m.took(m.loop.Upload(m.p, all, processors)) },
		},
		prepare: func() { require.NoError(m, m.sleep()); m.each(m.drop) },
		undo:    func() {},
		most:    1.3,
	}}
}

func compareMany(t *testing.T, v *rivals, n int, size uint64, most int) {
	var results []result
	for _, j := range v.many(n, size).jobs(min(16, runtime.NumCPU())) {
		results = append(results, v.compete(min(100, most), j))
	}
	t.Log("\n" + table(results...))
}

// TestAgainstCSleepOfMany: a missed target is reported and fails no test.
func TestAgainstCSleepOfMany(t *testing.T) {
	compareMany(t, newRivals(t, device(t), libcuda), 64, 4*mib, math.MaxInt)
}

func TestAgainstCSleepOfManyOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	compareMany(t, v, testgate.Effort(2, 18, 18), 2*mib, 2)
}
