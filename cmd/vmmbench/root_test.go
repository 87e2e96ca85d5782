package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// A mistake points at the help of its command.
func TestHintsNameTheCommand(t *testing.T) {
	for line, want := range map[string]string{
		"grow --foo":          "see vmmbench grow --help",
		"bw --size 65T":       "see vmmbench bw --help",
		"--foo":               "see vmmbench --help",
		"completion bash x":   "see vmmbench completion bash --help",
		"compare only-one":    "see vmmbench compare --help",
		"ops --device banana": "see vmmbench ops --help",
	} {
		code, out, stderr := bench(t, strings.Fields(line)...)
		require.Equal(t, report.ExitUsage, code, line)
		require.Empty(t, out, line)
		require.True(t, strings.HasSuffix(strings.TrimSpace(stderr), want), stderr)
	}
}

// What a list names twice is measured once.
func TestDuplicatesAreMeasuredOnce(t *testing.T) {
	_, out, _ := bench(t, "bw", "--device", "host", "--dry-run", "--size", "1M,1M:2M:x2,1048576", "--mem", "vmm,vmm", "--direction", "d2d", "--chunk", "0,0", "--streams", "1,1")
	require.Equal(t, []string{"bw/d2d/none/1MiB/vmm", "bw/d2d/none/2MiB/vmm"}, strings.Fields(out))
	_, out, _ = bench(t, "p2p", "--device", "host", "--dry-run", "--size", "1M", "--mem", "vmm", "--direction", "write", "--grants", "1,1")
	require.Len(t, strings.Fields(out), 2+2)
}
