package main

import (
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/examples/arrow/poolmem"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// BenchmarkBuffers makes and releases Arrow buffers of 64 bytes, in rounds of which each has
// both allocators in it: 1,000 buffers live at a time, or one. The figures are medians, for a
// buffer, and their ratio with its 95 % interval.
func BenchmarkBuffers(b *testing.B) {
	mem, err := poolmem.Open(device, pool.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, mem.Close()) })
	for name, live := range map[string]int{"live=1": 1, "live=1000": 1000} {
		b.Run(name, func(b *testing.B) {
			took := versus.Rounds(max(b.N, 20), buffers(mem, live), buffers(memory.NewGoAllocator(), live))
			low, high := versus.Interval(took[0], took[1])
			ours, theirs := versus.Median(took[0])/perRound, versus.Median(took[1])/perRound
			b.ReportMetric(ours, "pool-ns")
			b.ReportMetric(theirs, "go-ns")
			b.ReportMetric(ours/theirs, "ratio")
			b.ReportMetric(low, "low")
			b.ReportMetric(high, "high")
			b.ReportMetric(0, "ns/op")
		})
	}
}

const perRound = 20_000

// buffers makes and releases buffers of 64 bytes.
func buffers(mem memory.Allocator, live int) func() time.Duration {
	all := make([]*memory.Buffer, live)
	return func() time.Duration {
		begin := time.Now()
		for range perRound / live {
			for i := range all {
				all[i] = memory.NewResizableBuffer(mem)
				all[i].Resize(64)
				all[i].Bytes()[0] = 1
			}
			for _, b := range all {
				b.Release()
			}
		}
		return time.Since(begin)
	}
}
