package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/stretchr/testify/require"
)

// With PJRT's plugin for the CPU, the table is on host memory.
func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	if _, err := pjrt.GetPlugin("cpu"); err != nil {
		t.Skip("needs PJRT's plugin for the CPU: ", err)
	}
	var out strings.Builder
	require.NoError(t, run(&out, "host", "cpu"))
	require.Equal(t, `10000 rows, the same address: true, the last product: 0
20000 rows, the same address: true, the last product: 64
30000 rows, the same address: true, the last product: 128
40000 rows, the same address: true, the last product: 192
`, out.String())
}

func TestNoPlugin(t *testing.T) {
	require.ErrorContains(t, run(nil, "host", "none"), "none")
}

func TestProgram(t *testing.T) {
	text, err := program(3, width)
	require.NoError(t, err)
	require.Contains(t, string(text), "tensor<3x64xf32>")
	require.Contains(t, string(text), "tensor<3x1xf32>")
}
