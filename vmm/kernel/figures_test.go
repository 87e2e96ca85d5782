package kernel_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// What these tests measure means something on a GPU. On the host they run with small
// sizes, so that they keep working. A missed target is noted in the table and fails
// nothing: only a wrong result does.

// scaled is a size on a GPU, or a small one on the host.
func scaled(gpu uint64) uint64 {
	if onCUDA {
		return gpu
	}
	return gpu >> 10
}

func pairs() int {
	if onCUDA {
		return 12
	}
	return 1
}

// timed is how long f takes.
func timed(t *testing.T, f func() error) time.Duration {
	t.Helper()
	start := time.Now()
	err := f()
	took := time.Since(start)
	require.NoError(t, err)
	return took
}

// filled is a vector of n elements, all of them memory.
func filled[T any](t *testing.T, dev *vmm.Device, n uint64) *growable.Vector[T] {
	t.Helper()
	v, err := growable.New[T](dev, growable.Options{MaxLen: int(n)})
	ends(t, v, err)
	require.NoError(t, v.Grow(int(n)))
	require.NoError(t, v.SetLen(int(n)))
	return v
}

// TestKernelRates compares what the built-in kernels move, bytes read plus bytes written,
// with a copy on the device in the same run.
func TestKernelRates(t *testing.T) {
	testgate.Long(t)
	dev := open(t)
	b, s := builtins(t, dev), stream(t, dev)
	n := scaled(16<<30) / 4
	src, dst := filled[uint32](t, dev, n), filled[uint32](t, dev, n)
	p := kernel.Pattern{Seed: 1}
	require.NoError(t, b.FillPattern(s, src, p))
	sum, err := kernel.SumUint[uint32](b, s, src)
	require.NoError(t, err)
	out, err := growable.New[uint32](dev, growable.Options{MaxLen: int(n)})
	ends(t, out, err)
	require.NoError(t, out.Grow(int(n)))
	c, err := kernel.NewCursor(out)
	ends(t, c, err)

	// The two halves of a compaction are all elements.
	var halves, halfSums uint64
	for _, cmp := range []kernel.Compare{kernel.Less, kernel.GreaterEqual} {
		got, err := kernel.Compact(b, s, c, src, cmp, uint32(1<<31))
		require.NoError(t, err)
		halves += got
	}
	require.Equal(t, n, halves)
	halfSums, err = kernel.SumUint[uint32](b, s, out)
	require.NoError(t, err)
	require.Equal(t, sum, halfSums)

	ways := []struct {
		name   string
		bytes  float64 // read and written
		target float64
		run    func() error
	}{
		{"copy on the device", 8 * float64(n), 0, func() error {
			if err := s.Copy(dst.Ptr(), src.Ptr(), 4*n); err != nil {
				return err
			}
			return s.Sync()
		}},
		{"compact, half kept", 6 * float64(n), 0.5, func() error {
			if err := out.SetLen(0); err != nil {
				return err
			}
			_, err := kernel.Compact(b, s, c, src, kernel.Less, uint32(1<<31))
			return err
		}},
		{"verify", 4 * float64(n), 0.85, func() error {
			bad, _, err := b.VerifyPattern(s, src, p)
			require.Zero(t, bad)
			return err
		}},
		{"sum", 4 * float64(n), 0.9, func() error {
			got, err := kernel.SumUint[uint32](b, s, src)
			require.Equal(t, sum, got)
			return err
		}},
		{"fill", 4 * float64(n), 0, func() error {
			if err := b.FillPattern(s, dst, p); err != nil {
				return err
			}
			return s.Sync()
		}},
		{"copy by the processors", 8 * float64(n), 0, func() error {
			if err := b.Copy(s, dst, src); err != nil {
				return err
			}
			return s.Sync()
		}},
	}
	run := make([]func() time.Duration, len(ways))
	for i := range ways {
		run[i] = func() time.Duration {
			require.NoError(t, ways[i].run()) // the first call after a pause is slower
			return timed(t, ways[i].run)
		}
	}
	took := versus.Rounds(pairs(), run...)
	l := versus.NewTable(fmt.Sprintf("%d MiB of input\tGB/s read and written\tof a copy's\t95 %%\ttarget", 4*n>>20))
	for i, w := range ways {
		low, high := versus.Interval(took[0], took[i])
		share := w.bytes / ways[0].bytes
		target := "-"
		if w.target > 0 {
			target = fmt.Sprintf(">= %.2f: %s", w.target, versus.Verdict(share*low >= w.target))
		}
		l.Add("%s\t%.0f\t%.3f\t[%.3f, %.3f]\t%s", w.name, w.bytes/versus.Median(took[i]),
			share*versus.Median(took[0])/versus.Median(took[i]), share*low, share*high, target)
	}
	l.Log(t)
}

// TestDeviceAppendsThatGrow: kernels append 8 GiB to a vector that begins with 2 MiB, and
// to one that had grown before.
func TestDeviceAppendsThatGrow(t *testing.T) {
	testgate.Long(t)
	dev := open(t)
	b, s := builtins(t, dev), stream(t, dev)
	batch := scaled(1<<30) / 4
	src := filled[uint32](t, dev, batch)
	require.NoError(t, b.FillPattern(s, src, kernel.Pattern{Seed: 2}))
	const batches = 16
	var want uint64
	way := func(grown bool, ahead uint64) func() time.Duration {
		return func() time.Duration {
			v, err := growable.New[uint32](dev, growable.Options{MaxLen: int(batches * batch), Range: vmm.RangeOptions{GrowAhead: ahead}})
			require.NoError(t, err)
			require.NoError(t, v.Grow(int(scaled(2<<20)/4)))
			if grown {
				require.NoError(t, v.Grow(int(batches*batch*6/10)))
			}
			c, err := kernel.NewCursor(v)
			require.NoError(t, err)
			ptr, begun := v.Ptr(), v.Cap()
			took := timed(t, func() error {
				for range batches {
					if _, err := kernel.Compact(b, s, c, src, kernel.Less, uint32(1<<31)); err != nil {
						return err
					}
				}
				return nil
			})
			require.Equal(t, ptr, v.Ptr())
			if !grown && onCUDA {
				require.LessOrEqual(t, begun, int(2<<20/4+ahead/4+1<<28))
			}
			sum, err := kernel.SumUint[uint32](b, s, v)
			require.NoError(t, err)
			if want == 0 {
				want = sum
			}
			require.Equal(t, want, sum)
			require.NoError(t, c.Close())
			require.NoError(t, v.Close())
			if onCUDA {
				time.Sleep(80 * time.Millisecond) //nolint:forbidigo // the driver is clearing released memory
			}
			return took
		}
	}
	took := versus.Rounds(pairs(), way(true, 0), way(false, scaled(4<<30)), way(false, 0))
	l := versus.NewTable("8 GiB appended by kernels\tms\tof grown before\t95 %\ttarget")
	for i, w := range []struct {
		name   string
		target float64
	}{{"grown before", 0}, {"from 2 MiB, growth ahead", 1.2}, {"from 2 MiB", 1.3}} {
		low, high := versus.Interval(took[i], took[0])
		target := "-"
		if w.target > 0 {
			target = fmt.Sprintf("<= %.2f: %s", w.target, versus.Verdict(high <= w.target))
		}
		l.Add("%s\t%.2f\t%.3f\t[%.3f, %.3f]\t%s", w.name, versus.Median(took[i])/1e6, versus.Median(took[i])/versus.Median(took[0]), low, high, target)
	}
	l.Log(t)
}
