package main

import (
	"maps"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// ends are the last lines of each part of a run that went well.
var ends = []*regexp.Regexp{
	regexp.MustCompile(`(?m)^all 4000000 elements are right, and the address is the same$`),
	regexp.MustCompile(`(?m):\d grew ([1-9]\d*) times at 0x[0-9a-f]+ and has exactly the 1\d{6} rows above 0.25$`),
	regexp.MustCompile(`\none counter has led to exactly the [45]\d{5} positive ones of 1000000 numbers\n$`),
}

func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	dev, err := vmm.Open("auto")
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, run(&out, dev))
	require.Contains(t, out.String(), "launched for 500000 elements at 0x")
	require.Contains(t, out.String(), "launched for 4000000 elements at 0x")
	require.Contains(t, out.String(), " rows in 2 launches\n", "the vector has grown under a batch")
	for _, end := range ends {
		require.Regexp(t, end, out.String())
	}
}

// A device that cannot load the code is left alone.
func TestRunWithoutCompiler(t *testing.T) {
	dev := vmmtest.Device(t, drivertest.FailNth("LoadModule", 1, vmm.ErrNotSupported))
	var out strings.Builder
	require.NoError(t, run(&out, dev))
	require.True(t, strings.HasPrefix(out.String(), "using host memory: "), out.String())
	for _, end := range ends {
		require.Regexp(t, end, out.String())
	}
}

// A wrong element is seen, and so are a row and a number that are missing or there twice.
func TestCheck(t *testing.T) {
	right := code.Host
	t.Cleanup(func() { code.Host = right })
	type wrongKernel struct {
		kernel string
		wrong  any
		want   string
	}
	wrong := []wrongKernel{
		{"saxpy", func(a float32, x, y []float32) {
			saxpy(a, x, y)
			if len(y) == rounds*part {
				y[1_000_001]++
			}
		}, "element 1000001 is "},
		{"keep_above", func(c *kernel.DeviceCursor, rows []row, limit float32) {
			keepAbove(c, rows[1:], limit)
		}, "rows were kept, and are not the"},
		{"keep_above", func(c *kernel.DeviceCursor, rows []row, limit float32) {
			rows[1] = rows[0]
			keepAbove(c, rows, limit)
		}, "rows were kept, and are not the"},
		{"keep_positive", func(dst vmm.Ptr, count *int32, src vmm.Ptr, n int32) {
			keepPositive(dst, count, src, n)
			*count--
		}, "numbers were kept, and are not the"},
		{"keep_positive", func(dst vmm.Ptr, count *int32, src vmm.Ptr, n int32) {
			keepPositive(dst, count, src, n)
			to := kernel.Slice[int32](dst, uint64(n))
			to[0] = to[1]
		}, "numbers were kept, and are not the"},
	}
	for _, c := range testgate.Effort([]wrongKernel{wrong[0], wrong[1], wrong[4]}, wrong, wrong) {
		code.Host = maps.Clone(right)
		code.Host[c.kernel] = c.wrong
		require.ErrorContains(t, run(&strings.Builder{}, vmmtest.Device(t)), c.want, c.kernel)
	}
}
