package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// written is r in a format.
func written(t testing.TB, r *Report, format Format) string {
	t.Helper()
	var b bytes.Buffer
	o := Output{W: &b, Format: format}
	require.NoError(t, o.Started(r))
	for _, c := range r.Cases {
		require.NoError(t, o.Case(c))
	}
	for _, c := range r.Comparisons {
		require.NoError(t, o.Comparison(c))
	}
	require.NoError(t, o.Finished(r))
	return b.String()
}

func TestReadReturnsWhatWasWritten(t *testing.T) {
	for _, format := range []Format{JSON, NDJSON} {
		want := sample()
		base, list, err := Compare([]*Report{sample()}, []*Report{want}, CompareOptions{Margin: 0.02})
		require.NoError(t, err)
		want.Baseline, want.Comparisons = base, append(want.Comparisons, list...)
		got, err := Read(strings.NewReader(written(t, want, format)))
		require.NoError(t, err, format)
		require.Equal(t, want, got, format)
	}
	// The same from one line, as jq -c writes it.
	var b bytes.Buffer
	require.NoError(t, json.Compact(&b, []byte(written(t, sample(), JSON))))
	got, err := Read(&b)
	require.NoError(t, err)
	require.Equal(t, sample(), got)
}

// Wherever a run is killed, the cases before are there.
func TestReadOfAKilledRun(t *testing.T) {
	all := written(t, sample(), NDJSON)
	header := strings.Index(all, "\n")
	for end := header; end < len(all)-1; end += testgate.Effort(11, 1, 1) {
		got, err := Read(strings.NewReader(all[:end]))
		require.NoError(t, err, "%d bytes", end)
		lines := strings.Split(all[:end], "\n")
		whole := 0
		for _, line := range lines {
			if strings.HasPrefix(line, `{"case"`) && json.Valid([]byte(line)) {
				whole++
			}
		}
		require.Len(t, got.Cases, whole, "%d bytes", end)
		require.Equal(t, !strings.Contains(all[:end], `"end"`) || !json.Valid([]byte(lines[len(lines)-1])), got.Run.Interrupted, "%d bytes", end)
	}
	got, err := Read(strings.NewReader(all[:len(all)-9] + "\n"))
	require.NoError(t, err, "a new line may follow what is cut off")
	require.True(t, got.Run.Interrupted)
	_, err = Read(strings.NewReader(all[:header-1]))
	require.ErrorContains(t, err, "cut off")
	whole := written(t, sample(), JSON)
	_, err = Read(strings.NewReader(whole[:len(whole)/2]))
	require.ErrorContains(t, err, "cut off", "JSON is written at once")
}

// withCase is a report of a case with these fields.
func withCase(fields string) string {
	return `{"schema":"vmmbench/1","cases":[{"id":"x","status":"passed",` + fields + `}]}`
}

func TestReadRefuses(t *testing.T) {
	const head = `{"schema":"vmmbench/1","run":{}}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "empty"},
		{" \n", "empty"},
		{"BenchmarkX 1 2 ns/op", "not a report"},
		{"[]", "not a report"},
		{"{}", "no schema"},
		{`{"cases":[]}`, "no schema"},
		{`{"schema":1,"cases":[]}`, "not a report"},
		{`{"schema":"vmmbench/2","cases":7}`, `"vmmbench/2"`},
		{`{"schema":"vmmbench/2","run":7}` + "\n", `"vmmbench/2"`},
		{`{"schema":"vmmbench/1","cases":7}`, "report: json"},
		{`{"schema":"vmmbench/1","cases":[]} 7`, "report: invalid"},
		{`{"schema":"vmmbench/1","cases":[{"status":"passed"}]}`, "case 0: it has no id"},
		{`{"schema":"vmmbench/1","cases":[{"id":"x","status":"fine"}]}`, `status "fine"`},
		{`{"schema":"vmmbench/1","cases":[{"id":"x","status":"passed","axes":{"a":[1]}}]}`, "no plain value"},
		{`{"schema":"vmmbench/1","cases":[],"comparisons":[{"id":"x","verdict":"unclear"}]}`, `verdict "unclear"`},
		{`{"schema":"vmmbench/1","cases":[],"comparisons":[{"id":"x","verdict":"slower","ratio":2}]}`, "without an interval"},
		{withCase(`"samples_ns":[1,1e999]`), "report: json"},
		{withCase(`"bytes":-1`), "report: json"},
		{withCase(`"samples_ns":[1,2],"stats":{"n":3,"loops":1}`), "case x: 3 samples by its statistics, 2 in its list"},
		{head + `{"case":` + "\n" + `{"end":{}}` + "\n", "line 2"},
		{head + `{"case":7}`, "line 2"},
		{head + `{"case":{"id":"x"}}`, `status ""`},
	} {
		_, err := Read(strings.NewReader(c.text))
		require.ErrorContains(t, err, c.want, c.text)
	}
}

func TestReadIgnoresNewFields(t *testing.T) {
	got, err := Read(strings.NewReader(`{"schema":"vmmbench/1","cases":[{"id":"x","status":"passed","reason":null,"new":[1]}],"new":{}}`))
	require.NoError(t, err)
	require.Equal(t, []Case{{ID: "x", Axes: Axes{}, Status: Passed, Samples: []float64{}, Flags: []string{}}}, got.Cases)

	got, err = Read(strings.NewReader(`{"schema":"vmmbench/1","run":{}}` + "\n" + `{"new":{}}` + "\n\n" + `{"end":{"command":"bw","version":null}}`))
	require.NoError(t, err)
	require.Equal(t, "bw", got.Run.Command)
	require.False(t, got.Run.Interrupted)
}

// FuzzRead: whatever Read accepts can be written in every format, and read again.
func FuzzRead(f *testing.F) {
	for _, r := range []*Report{sample(), pairs()} {
		f.Add([]byte(written(f, r, JSON)))
		f.Add([]byte(written(f, r, NDJSON)))
	}
	f.Add([]byte(`{"schema":"vmmbench/1","cases":[{"id":"grow","axes":{"mem":"vmm-copy"},"status":"passed","samples_ns":[0]},
		{"id":"grow/b","axes":{"mem":"vmm","size":1.5,"x":null},"status":"passed","bytes":1,"flags":null}],
		"comparisons":[{"id":"c","a":"grow","b":"grow/b","ratio":0,"low":0,"high":0,"verdict":"equal"}]}`))
	f.Add([]byte(`{"schema":"vmmbench/1","cases":[],"devices":[{"features":[{"name":"a"}]},{}],"comparisons":[{"verdict":"` + string(stat.TooNoisy) + `"}]}`))
	f.Add([]byte(`{"schema":"vmmbench/1","cases":[{"id":"bw/a","axes":{"test":"a","device":"b"},"status":"passed"}],"devices":[{"open":"b"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Read(bytes.NewReader(text))
		if err != nil {
			require.Nil(t, r)
			return
		}
		for _, format := range Formats {
			require.NoError(t, Output{W: &bytes.Buffer{}, Format: format}.Finished(r), format)
		}
		again, err := Read(strings.NewReader(written(t, r, JSON)))
		require.NoError(t, err)
		require.Equal(t, r.Cases, again.Cases)
		// So can a comparison with itself, if its names are unique.
		if base, list, err := Compare([]*Report{again}, []*Report{r}, CompareOptions{Margin: 0.02}); err == nil {
			r.Run.Command, r.Baseline, r.Comparisons = CommandCompare, base, list
			require.NoError(t, Output{W: &bytes.Buffer{}, Format: Table}.Finished(r))
		}
	})
}

// Reports that were measured can be read.
func TestReadMeasured(t *testing.T) {
	files := []string{}
	for _, pattern := range []string{
		"../../../../docs/benchmarks/*.json", "../../testdata/*/*.ndjson", "../../testdata/*/*.json", "testdata/*.ndjson", "testdata/*.json",
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	read := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !bytes.Contains(text, []byte(`"`+Schema+`"`)) {
			continue // what else there is
		}
		_, err = Read(bytes.NewReader(text))
		require.NoError(t, err, file)
		read++
	}
	require.GreaterOrEqual(t, read, 10)
}
