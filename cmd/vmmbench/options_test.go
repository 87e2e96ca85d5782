package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// --filter leaves out cases of every command that measures, and of presets.
func TestFilter(t *testing.T) {
	for _, args := range [][]string{
		{"bw", "--filter", "d2d/none/16MiB/vmm$"},
		{"--filter", "bw/d2d/none/16MiB/vmm$"},
		{"--preset", "nvbandwidth", "--filter", "device_local_copy/.*host:0/vmm$"},
		{"grow", "--filter", "remap"},
		{"ops", "--size", "2M", "--filter", "/reserve$"},
		{"pool", "--filter", "pairs/1/vmm|^pool/[^/]*/pool$"},
		{"p2p", "--filter", "read/4B/host:0-host:1/vmm"},
		{"share", "--filter", "readers-1/attach"},
		{"sleep", "--filter", "keep/1GiB/first/vmm"},
	} {
		code, all, _ := bench(t, append(args[:len(args)-2:len(args)-2], "--device", "host", "--dry-run")...)
		require.Equal(t, report.ExitPassed, code, args)
		code, out, stderr := bench(t, append(args, "--device", "host", "--dry-run")...)
		require.Equal(t, report.ExitPassed, code, "%s %s", args, stderr)
		few := strings.Fields(out)
		require.NotEmpty(t, few)
		require.Less(t, len(few), len(strings.Fields(all)), args)
		require.Subset(t, strings.Fields(all), few)
	}
	code, out, _ := bench(t, "bw", "--device", "host", "--size", "64K", "--samples", "2", "--progress", "off", "--format", "json",
		"--direction", "d2d", "--control", "--filter", "vmm")
	require.Equal(t, report.ExitPassed, code)
	r := parse(t, out)
	require.Len(t, r.Cases, 2)
	require.Len(t, r.Comparisons, 1, "the one of the two that are left")

	for filter, hint := range map[string]string{
		"qqqqqqqq": "--dry-run lists the names, such as ",
		"(":        "regular expression",
	} {
		code, _, stderr := bench(t, "--preset", "nvbandwidth", "--device", "host", "--filter", filter)
		require.Equal(t, report.ExitUsage, code)
		require.Contains(t, stderr, hint)
	}
}

// Errors of the command line name the word or the flag.
func TestErrorsOfFlags(t *testing.T) {
	for _, x := range []struct{ args, want string }{
		{"gorw", "Did you mean this?\n\tgrow\n"},
		{"compar a b", "Did you mean this?\n\tcompare\n"},
		{"bw --xyzzy", "unknown flag"},
		{"bw --samples x", `invalid argument "x" for "--samples" flag`},
		{"grow --step 100P", "--step"},
		{"bw --step 100P", "--step"},
		{"bw --chunk 100PiB", "want 64TiB at most"},
		{"ops --total 100PiB", "want 64TiB at most"},
		{"share --chunk 100PiB", "want 64TiB at most"},
		{"--preset article --size 1M", "--preset quick and nvbandwidth"},
	} {
		code, _, stderr := bench(t, strings.Fields(x.args)...)
		require.Equal(t, report.ExitUsage, code, x.args)
		require.Contains(t, stderr, x.want, x.args)
	}
}
