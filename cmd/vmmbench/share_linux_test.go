package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// readersAreTests has the processes that read run this test's program.
func readersAreTests(t *testing.T) {
	t.Helper()
	was := readerArgs
	t.Cleanup(func() { readerArgs = was })
	readerArgs = testReader
}

func TestShare(t *testing.T) { bothWays(t, sharesWithReaders) }

func sharesWithReaders(t *testing.T) {
	readersAreTests(t)
	args := []string{"share", "--device", "host", "--size", "5M", "--chunk", "2M", "--readers", "2", "--format", "json", "--progress", "off"}
	code, out, stderr := bench(t, append(args, "--samples", "70")...) // more than one range has room for
	require.Equal(t, report.ExitPassed, code, stderr)
	require.NoError(t, conforms(t, strictSchema(t, ""), []byte(out)))
	r := parse(t, out)
	require.Len(t, r.Cases, 4)
	for _, c := range r.Cases {
		require.Len(t, c.Samples, 70, c.ID)
		require.Positive(t, c.Stats.Sharing.P99)
		switch c.Axes["op"] {
		case opAttach:
			require.GreaterOrEqual(t, c.Stats.ReaderFDs, 3, "a descriptor for each chunk of the host's")
			fallthrough
		case opGrowth, opAppend:
			require.Equal(t, uint64(2*5<<20), c.Verify.Bytes, "%s: every byte, by each reader", c.ID)
			if os.Getenv(kernelsEnv) != "" {
				require.Equal(t, c.Verify.Bytes, c.Verify.ByDevice, "%s: by the reader's device", c.ID)
			}
		}
	}

	code, out, _ = bench(t, append(args, "--samples", "1", "--corrupt", "3145729")...)
	require.Equal(t, report.ExitMismatch, code)
	for _, c := range parse(t, out).Cases {
		if c.Axes["op"] == opWake {
			continue
		}
		require.Equal(t, uint64(3145729), c.Verify.FirstBad.Offset, c.ID)
		require.Equal(t, 1, c.Verify.FirstBad.Chunk)
		require.Equal(t, uint64(2), c.Verify.Errors, "one for each reader")
	}
}

// If a reader cannot start, its reason is that of every case of the group.
func TestShareWithoutReaders(t *testing.T) {
	readersAreTests(t)
	whole := readerArgs
	readerArgs = func(args ...string) (argv, env []string) {
		argv, env = whole(args...)
		return argv, []string{strings.Replace(env[0], "--device host:0", "--device host:99", 1)}
	}
	code, out, _ := bench(t, "share", "--device", "host", "--samples", "1", "--readers", "1", "--chunk", "2M", "--format", "json", "--progress", "off")
	require.Equal(t, report.ExitError, code)
	for _, c := range parse(t, out).Cases {
		require.Contains(t, string(c.Reason), "host:99")
	}
}
