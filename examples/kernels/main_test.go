package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

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
	require.Contains(t, out.String(), "\nall 4000000 elements are right, and the address is the same\n")
}

// A device that cannot load the code is left alone.
func TestRunWithoutCompiler(t *testing.T) {
	dev := vmmtest.Device(t, drivertest.FailNth("LoadModule", 1, vmm.ErrNotSupported))
	var out strings.Builder
	require.NoError(t, run(&out, dev))
	require.True(t, strings.HasPrefix(out.String(), "using host memory: "), out.String())
	require.Contains(t, out.String(), "\nall 4000000 elements are right, and the address is the same\n")
}

// A wrong element is seen.
func TestCheck(t *testing.T) {
	dev := vmmtest.Device(t)
	broken := code
	broken.CUDA, broken.Host = "", map[string]any{"saxpy": func(a float32, x, y []float32) {
		for i := range x {
			y[i] += a * x[i]
		}
		if len(y) == rounds*part {
			y[1_000_001]++
		}
	}}
	saved := code
	code = broken
	t.Cleanup(func() { code = saved })
	require.ErrorContains(t, run(&strings.Builder{}, dev), "element 1000001 is ")
}
