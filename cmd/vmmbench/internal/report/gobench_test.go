package report

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var benchLine = regexp.MustCompile(`^Benchmark[A-Z][a-z0-9]*(/[^\s/]+)*/mem=[^\s/]+ [1-9][0-9]* [0-9.]+ ns/op( [0-9.]+ MB/s)?$`)

func TestGoBenchLines(t *testing.T) {
	for _, r := range []*Report{sample(), pairs(), withSamples(fromFile(t, "tour.json")), withSamples(fromFile(t, "full.json"))} {
		lines := strings.Split(strings.TrimSpace(written(t, r, GoBench)), "\n")
		require.Equal(t, "goos: linux", lines[0])
		require.Equal(t, "goarch: amd64", lines[1])
		require.Equal(t, "pkg: github.com/cuvmm/cuvmm/cmd/vmmbench", lines[2])
		n := 0
		for _, line := range lines {
			if regexp.MustCompile(`^[a-z]+: \S`).MatchString(line) {
				require.Zero(t, n, "configuration comes first")
				continue
			}
			n++
			require.Regexp(t, benchLine, line)
		}
		want := 0
		for _, c := range r.Cases {
			if c.Status != Failed {
				want += len(c.Samples)
			}
		}
		require.Equal(t, want, n)
	}
	require.Contains(t, written(t, fromFile(t, "tour.json"), GoBench), "\ncpu: AMD EPYC\ndevice: host:0 host memory\n")
}

// withSamples puts the statistics of each case in place of its samples.
func withSamples(r *Report) *Report {
	for i := range r.Cases {
		if s := r.Cases[i].Stats; s != nil {
			r.Cases[i].Samples = []float64{s.Min, s.Median, s.Max}
		}
	}
	return r
}

// Cases that are compared have one name but for /mem, and cases have different names.
func TestGoBenchPairsByMem(t *testing.T) {
	for _, file := range []string{"tour.json", "full.json", "grow.json"} {
		r := fromFile(t, file)
		names, owner := map[string][]string{}, map[string]string{}
		for _, c := range r.Cases {
			name := goBenchName(c)
			require.NotContains(t, owner, name)
			owner[name] = c.ID
			rest, mem, found := strings.Cut(name, "/mem=")
			require.True(t, found, name)
			names[c.ID] = []string{rest, mem}
		}
		for _, c := range r.Comparisons {
			require.Equal(t, names[c.A][0], names[c.B][0], c.ID)
			require.NotEqual(t, names[c.A][1], names[c.B][1], c.ID)
		}
	}
}
