package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

func TestShare(t *testing.T) { byHostAndDevice(t, sharesWithReaders) }

func sharesWithReaders(t *testing.T, set *settings) {
	t.Parallel()
	args := []string{"share", "--device", "host?page=64K", "--size", "160K", "--chunk", "64K", "--readers", "2", "--format", "json", "--progress", "off"}
	code, out, stderr := benchWith(t, set, append(args, "--samples", "70")...) // more than one range has room for
	require.Equal(t, report.ExitPassed, code, stderr)
	require.NoError(t, conforms(t, strictSchema(t, ""), []byte(out)))
	r := parse(t, out)
	require.Len(t, r.Cases, 4)
	for _, c := range r.Cases {
		require.Len(t, c.Samples, 70, c.ID)
		require.Nil(t, c.Stats.Sharing.P99, "of fewer than 100 samples")
		switch c.Axes["op"] {
		case opAttach, opGrowth, opAppend:
			require.Equal(t, uint64(2*160<<10), c.Verify.Bytes, "%s: every byte, by each reader", c.ID)
			if set.checksOnDevice(device{}) {
				require.Equal(t, c.Verify.Bytes, c.Verify.ByDevice, "%s: by the reader's device", c.ID)
			}
		}
	}

	code, out, _ = benchWith(t, set, append(args, "--samples", "1", "--corrupt", "98305")...)
	require.Equal(t, report.ExitMismatch, code)
	for _, c := range parse(t, out).Cases {
		if c.Axes["op"] == opWake {
			continue
		}
		require.Equal(t, uint64(98305), c.Verify.FirstBad.Offset, c.ID)
		require.Equal(t, 1, c.Verify.FirstBad.Chunk)
		require.Equal(t, uint64(2), c.Verify.Errors, "one for each reader")
	}
}

// A process attaches to memory by the handles of CUDA's own too, each compared with a range.
func TestShareByHandles(t *testing.T) {
	byHostAndDevice(t, func(t *testing.T, set *settings) {
		t.Parallel()
		args := []string{"share", "--how", "fd,pool,legacy", "--device", "host?page=64K", "--size", "160K", "--chunk", "64K", "--readers", "2", "--format", "json", "--progress", "off", "--samples", "10"}
		code, out, stderr := benchWith(t, set, args...)
		require.Equal(t, report.ExitPassed, code, stderr)
		r := parse(t, out)
		var ids []string
		for _, c := range r.Cases {
			ids = append(ids, strings.TrimPrefix(c.ID, "share/160KiB/64KiB-chunks/readers-2/"))
			if c.Axes["op"] == opAttach {
				require.Equal(t, uint64(2*160<<10), c.Verify.Bytes, "%s: every byte, by each reader", c.ID)
			}
		}
		require.Equal(t, []string{"attach", "growth", "append", "wake", "attach-pool", "attach-legacy"}, ids)
		require.Len(t, r.Comparisons, 2)
		for i, how := range []string{"pool", "legacy"} {
			require.True(t, strings.HasSuffix(r.Comparisons[i].A, "/attach-"+how), r.Comparisons[i].A)
			require.True(t, strings.HasSuffix(r.Comparisons[i].B, "/attach"), r.Comparisons[i].B)
		}

		code, out, _ = benchWith(t, set, append(args, "--filter", "/attach", "--corrupt", "98305")...)
		require.Equal(t, report.ExitMismatch, code)
		for _, c := range parse(t, out).Cases {
			require.Equal(t, uint64(98305), c.Verify.FirstBad.Offset, c.ID)
			require.Equal(t, uint64(2), c.Verify.Errors, "one for each reader")
		}
	})
}

// If a reader cannot start, its reason is that of every case of the group.
func TestShareWithoutReaders(t *testing.T) {
	t.Parallel()
	set := testSettings()
	set.ownArgs = func(args ...string) (argv, env []string) {
		argv, env = testReader(args...)
		return argv, []string{strings.Replace(env[0], readerCommand+" host:0", readerCommand+" host:99", 1)}
	}
	code, out, _ := benchWith(t, set, "share", "--device", "host", "--size", "2M", "--samples", "1", "--readers", "1", "--chunk", "2M", "--format", "json", "--progress", "off")
	require.Equal(t, report.ExitError, code)
	for _, c := range parse(t, out).Cases {
		require.Contains(t, string(c.Reason), "host:99")
	}
}
