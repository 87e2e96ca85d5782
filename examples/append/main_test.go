package main

import (
	"maps"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// last is the line of a run that went well.
var last = regexp.MustCompile(`:\d grew ([1-9]\d*) times at 0x[0-9a-f]+ and has exactly the 1\d{6} rows above 0.25\n$`)

func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	dev, err := vmm.Open("auto")
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, run(&out, dev))
	require.Regexp(t, last, out.String())
	require.Contains(t, out.String(), " rows in 2 launches\n", "the vector has grown under a batch")
}

// A device that cannot load the code is left alone.
func TestRunWithoutCompiler(t *testing.T) {
	dev := vmmtest.Device(t, drivertest.FailNth("LoadModule", 1, vmm.ErrNotSupported))
	var out strings.Builder
	require.NoError(t, run(&out, dev))
	require.True(t, strings.HasPrefix(out.String(), "using host memory: "), out.String())
	require.Regexp(t, last, out.String())
}

// A row that is missing and a row that is there twice are seen.
func TestCheck(t *testing.T) {
	right := code.Host
	t.Cleanup(func() { code.Host = right })
	keep := right["keep_above"].(func(*kernel.DeviceCursor, []row, float32))
	for name, rows := range map[string]func([]row) []row{
		"missing": func(rows []row) []row { return rows[1:] },
		"twice":   func(rows []row) []row { rows[1] = rows[0]; return rows },
	} {
		code.Host = maps.Clone(right)
		code.Host["keep_above"] = func(c *kernel.DeviceCursor, all []row, limit float32) { keep(c, rows(all), limit) }
		require.ErrorContains(t, run(&strings.Builder{}, vmmtest.Device(t)), "rows were kept, and are not the", name)
	}
}
