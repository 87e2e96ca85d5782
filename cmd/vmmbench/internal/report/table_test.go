package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	termtext "github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// fromFile reads a report of a real run, from which the samples were left out.
func fromFile(t testing.TB, name string) *Report {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	r, err := Read(f)
	require.NoError(t, err)
	return r
}

// requireFits requires that prose is no wider than a terminal, and that tables are not much wider.
func requireFits(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		most := 80
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "──") {
			most = 120
		}
		require.LessOrEqual(t, termtext.StringWidth(strings.TrimRight(line, " \n")), most, "%s: %s", what, line)
	}
}

func TestTablesOfRuns(t *testing.T) {
	for _, name := range []string{"tour", "full", "grow"} {
		r := fromFile(t, name+".json")
		text := written(t, r, Table)
		requireGolden(t, "testdata/"+name+".table", text)
		requireFits(t, name, text)
		for _, c := range r.Cases {
			if c.Status == Passed {
				require.Contains(t, text, digits(c.Stats.Value, 4), "%s: every case is there", c.ID)
			}
		}
	}
}

// Nothing in a report makes a table too large: long names and reasons are wrapped, many
// devices have many matrices.
func TestTablesFit(t *testing.T) {
	r := fromFile(t, "tour.json")
	r.Run.Command = "article" // with every table, which quick leaves out
	r.Host.CPU = "Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz of a machine with a long name"
	r.Devices[0].Reason = "memory info: device lost; and so were many other things, which take a while to tell"
	r.Cases[1].Status, r.Cases[1].Stats = Error, nil
	r.Cases[1].Reason = "needs about 1099511627776 bytes of host memory, 25769803776 are free: out of memory"
	r.Comparisons[0].Reason, r.Comparisons[0].Verdict = Text(r.Cases[1].ID+": error"), stat.NotMeasured
	r.Comparisons[0].Ratio, r.Comparisons[0].Low, r.Comparisons[0].High = nil, nil, nil
	text := written(t, r, Table)
	requireFits(t, "long", text)
	require.Contains(t, text, "not measured: there is no ratio")

	r = pairs()
	one := r.Cases[0]
	r.Cases = nil
	for from := range 8 {
		for to := range 8 {
			if from == to {
				continue
			}
			for _, mem := range []string{"none", "enable", "vmm"} {
				c := one
				c.ID = fmt.Sprintf("p2p/write/64MiB/cuda:%d-cuda:%d/%s", from, to, mem)
				c.Axes = Axes{{"from", fmt.Sprintf("cuda:%d", from)}, {"to", fmt.Sprintf("cuda:%d", to)}, {"direction", "write"}, {"size", uint64(64 << 20)}, {"mem", mem}}
				c.Status, c.Reason = Passed, ""
				stats := *one.Stats
				stats.Value = 396.7
				c.Stats = &stats
				r.Cases = append(r.Cases, c)
			}
		}
	}
	r.Cases[5].Status, r.Cases[5].Reason = Failed, "offset 5 (chunk 0): expected 0x01, got 0x02"
	text = written(t, r, Table)
	requireFits(t, "pairs", text)
	require.Equal(t, 4, strings.Count(text, "from \\ to"))
	require.Contains(t, text, "offset 5")
	require.Less(t, strings.Count(text, "\n"), 80, "what passed is in the matrices only")
}

func TestCountsAreNoBytes(t *testing.T) {
	axes := Axes{{"streams", uint64(4)}, {"size", uint64(4096)}, {"busy", 1}}
	require.Equal(t, []string{"4", "4KiB", "1", "-"}, []string{axes.text("streams"), axes.text("size"), axes.text("busy"), axes.text("none")})
}

func TestDigits(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 1.23456: "1.235", 123.456: "123.5", 12345.6: "12346", 1e7: "10000000"} {
		require.Equal(t, want, digits(x, 4))
	}
}

// A word is explained where it stands alone, and only there.
func TestLegend(t *testing.T) {
	require.True(t, hasWord("a: vmm, b", "vmm"))
	require.True(t, hasWord("vmm-copy vmm", "vmm"))
	require.False(t, hasWord("vmm-copy xvmm vmm2", "vmm"))
	r := fromFile(t, "tour.json")
	require.NotContains(t, written(t, r, Table), "\nstep p50: ", "quick has no table of steps")
	r.Run.Command = "article"
	text := written(t, r, Table)
	for _, word := range []string{"median", "95 %", "gated", "wall-clock", "noisy", "drift", "step p50", "step p99", "peak bytes", "moves", "traffic", "ratio of times", "too noisy", "faster"} {
		require.Contains(t, text, "\n"+word+": ")
	}
	for _, word := range []string{"correlated", "few-samples", "equal", "slower", "both", "cuMemAlloc", "cached"} {
		require.NotContains(t, text, "\n"+word+": ")
	}
}

// A percentile for which the samples are too few has no column.
func TestSoakColumns(t *testing.T) {
	r := fromFile(t, "full.json")
	p99, p999 := 2e3, 3e3
	for _, c := range r.Cases {
		if c.Stats != nil {
			c.Stats.Soak = &Soak{Seconds: 1, P50: 1e3, P99: &p99, P999: &p999, Slowest: 4e3}
		}
	}
	require.Regexp(t, `soak p50 +soak p99 +soak p999 +soak slowest +soak slowest at seconds`, written(t, r, Table))
	for _, c := range r.Cases {
		if c.Stats != nil {
			c.Stats.Soak.P999 = nil
		}
	}
	require.Regexp(t, `soak p50 +soak p99 +soak slowest`, written(t, r, Table))
}
