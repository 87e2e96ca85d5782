package memtrace_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memtrace"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

const mib = 1 << 20

// busy is a device with a history of a range that slept, a pool with one block left, and a refusal.
func busy(t *testing.T) *vmm.Device {
	t.Helper()
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	d.SetHistory(vmm.HistoryOptions{Events: 1000, Blocks: true})
	g, err := d.NewRange(vmm.RangeOptions{Max: 64 * mib, Chunk: 2 * mib})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	require.NoError(t, g.Grow(4*mib))
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
	require.NoError(t, vmm.Wake(g))
	p, err := pool.New(d, pool.Options{Max: 1 << 30})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for range 3 {
		b, err := p.Alloc(s, 5*mib)
		require.NoError(t, err)
		require.NoError(t, p.Free(s, b))
	}
	long, err := p.Alloc(s, 8*mib)
	require.NoError(t, err)
	long, err = p.Resize(s, long, mib)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, long))
	for range 2 { // at one address, mostly: closed while it sleeps
		h, err := d.NewRange(vmm.RangeOptions{Max: 64 * mib})
		require.NoError(t, err)
		require.NoError(t, h.Grow(mib))
		require.NoError(t, vmm.Sleep(vmm.SleepDrop, h))
		require.NoError(t, h.Close())
	}
	small, err := p.Alloc(s, 100)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.FreeNow(small)) })
	d.SetLimit(d.Stats().Committed)
	require.ErrorIs(t, g.Grow(32*mib), vmm.ErrOutOfMemory)
	d.SetLimit(0)
	return d
}

// TestLines: each line is an event, in order, with the line of the program that made the call.
func TestLines(t *testing.T) {
	d := busy(t)
	var out bytes.Buffer
	require.NoError(t, memtrace.WriteLines(&out, d))
	var all []memtrace.Event
	lines := bufio.NewScanner(&out)
	for lines.Scan() {
		var e memtrace.Event
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		require.Contains(t, e.Where, "memtrace_test.go:", e.Kind)
		require.Greater(t, len(e.Stack), 1)
		require.Contains(t, e.Stack[0], "github.com/cuvmm/cuvmm/vmm", "the call of the library")
		require.Contains(t, e.Stack[1], e.Where, "who made it")
		all = append(all, e)
	}
	require.Len(t, all, len(d.History(0)))
	for i := range all {
		require.EqualValues(t, i+1, all[i].Seq)
	}
	count := func(kind string) (n int) {
		for _, e := range all {
			if e.Kind == kind {
				n++
			}
		}
		return n
	}
	require.Equal(t, []int{5, 4, 3, 1, 1}, []int{count("alloc"), count("free"), count("sleep"), count("wake"), count("refused")})
}

// TestTrace: the trace events are as the Trace Event Format asks: every event has a name, a phase,
// a process and a thread; what is not metadata has a time, in order; instants have a scope,
// counters numbers, and what begins ends once. At the end the counters are what the device has.
func TestTrace(t *testing.T) {
	d := busy(t)
	var out bytes.Buffer
	require.NoError(t, memtrace.WriteTrace(&out, d))
	require.NoError(t, checkTrace(out.Bytes()))
	var file struct {
		TraceEvents []struct {
			Name string
			PH   string
			Args map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &file))
	last := map[string]float64{}
	for _, e := range file.TraceEvents {
		if e.PH == "C" {
			last[e.Name] = e.Args["bytes"].(float64)
		}
	}
	st := d.Stats()
	require.Equal(t, map[string]float64{"physical memory, change": float64(st.Committed), "mapped, change": float64(st.Committed), "in blocks of pools, change": 100}, last)
	require.Contains(t, out.String(), `"name":"stream 0x`)
}

// TestTraceRefuses is the control: what is not a trace is found.
func TestTraceRefuses(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, memtrace.WriteTrace(&out, busy(t)))
	for _, change := range [][2]string{
		{`"ph":"i"`, `"ph":"Z"`}, {`"s":"t",`, ``}, {`"ph":"b"`, `"ph":"e"`}, {`"bytes":4194304`, `"bytes":"4"`}, {`"name":"map"`, `"name":""`},
	} {
		text := strings.Replace(out.String(), change[0], change[1], 1)
		require.NotEqual(t, out.String(), text, change[0])
		require.Error(t, checkTrace([]byte(text)), change[1])
	}
}

// checkTrace checks a file by what "Trace Event Format" says of objects, metadata, instants,
// counters and nestable slices.
func checkTrace(text []byte) error {
	var file struct {
		TraceEvents []map[string]any `json:"traceEvents"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return err
	}
	var before float64
	open := map[string]int{}
	for _, e := range file.TraceEvents {
		name, _ := e["name"].(string)
		phase, _ := e["ph"].(string)
		_, pid := e["pid"].(float64)
		_, tid := e["tid"].(float64)
		ts, timed := e["ts"].(float64)
		if name == "" || !pid || !tid || !timed || ts < 0 {
			return errors.New("name, pid, tid or ts is missing")
		}
		args, _ := e["args"].(map[string]any)
		switch phase {
		case "M":
			if _, ok := args["name"].(string); !ok {
				return errors.New("metadata without a name")
			}
			continue
		case "i":
			if !slices.Contains([]any{"t", "p", "g"}, e["s"]) {
				return errors.New("an instant without a scope")
			}
		case "C":
			for _, v := range args {
				if _, ok := v.(float64); !ok {
					return errors.New("a counter that is no number")
				}
			}
		case "b", "e":
			id, _ := e["id"].(string)
			if id == "" || e["cat"] == nil {
				return errors.New("a slice without an id")
			}
			open[id] += map[string]int{"b": 1, "e": -1}[phase]
			if open[id] < 0 || open[id] > 1 {
				return errors.New("a slice that ends and has not begun")
			}
		default:
			return errors.New("unknown phase " + phase)
		}
		if ts < before {
			return errors.New("out of order")
		}
		before = ts
	}
	return nil
}

// TestHandler serves both forms, of the device that is named.
func TestHandler(t *testing.T) {
	d := busy(t)
	h := memtrace.Handler(d)
	get := func(query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+query, nil))
		return w
	}
	require.Equal(t, len(d.History(0)), strings.Count(get("").Body.String(), "\n"))
	require.NoError(t, checkTrace(get("?format=trace&device="+d.String()).Body.Bytes()))
	require.Equal(t, len(d.History(0))-5, strings.Count(get("?after=5").Body.String(), "\n"))
	require.Equal(t, http.StatusNotFound, get("?device=cuda:9").Code)
	require.Contains(t, get("?device=cuda:9").Body.String(), d.String())
	for _, query := range []string{"?format=csv", "?after=x", "?after=-1"} {
		require.Equal(t, http.StatusBadRequest, get(query).Code, query)
	}
	h = memtrace.Handler(nil, d)
	require.Equal(t, http.StatusOK, get("").Code)
	d.SetHistory(vmm.HistoryOptions{})
	require.Equal(t, http.StatusNotFound, get("").Code)
	require.Contains(t, get("").Body.String(), "SetHistory")
	require.Equal(t, http.StatusNotFound, func() int { h = memtrace.Handler(); return get("").Code }())
}

// failing fails to write after some bytes.
type failing int

func (f *failing) Write(p []byte) (int, error) {
	if *f -= failing(len(p)); *f < 0 {
		return 0, errors.New("full")
	}
	return len(p), nil
}

// TestFullDisk: an error of the writer comes back.
func TestFullDisk(t *testing.T) {
	d := busy(t)
	for _, n := range []failing{0, 5000} {
		f := n
		require.EqualError(t, memtrace.WriteTrace(&f, d), "full")
		f = n
		require.EqualError(t, memtrace.WriteLines(&f, d), "full")
	}
}

// deadlines is a client for whose writes there is a deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.last = t
	return nil
}

func (d *deadlines) Write(b []byte) (int, error) {
	if d.last.IsZero() {
		return 0, errors.New("a write that may take for ever")
	}
	d.last = time.Time{}
	return d.ResponseRecorder.Write(b)
}

// TestEachWriteHasADeadline: a client that takes nothing does not stay.
func TestEachWriteHasADeadline(t *testing.T) {
	d := busy(t)
	for _, format := range []string{"lines", "trace"} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		memtrace.Handler(d).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?format="+format, nil))
		require.Equal(t, http.StatusOK, w.Code)
		require.Greater(t, w.Body.Len(), 4096, "more than one write")
		require.True(t, strings.HasSuffix(w.Body.String(), "}\n"))
	}
}

// TestNames: lines and instants have the names of ranges and pools, as JSON, and nothing where there is none.
func TestNames(t *testing.T) {
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	d.SetHistory(vmm.HistoryOptions{Events: 1000, Blocks: true})
	const name = "a\n\x00\xff\""
	const inJSON = `"name":"a\n\u0000\ufffd\""`
	g, err := d.NewRange(vmm.RangeOptions{Name: name, Max: 64 * mib})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	p, err := pool.New(d, pool.Options{Name: "batch", Max: 1 << 30})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	b, err := p.Alloc(s, 100)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, b))
	require.NoError(t, errors.Join(s.Close(), p.Close()))
	c, err := d.Create(2*mib, vmm.Prop{})
	require.NoError(t, err)
	require.NoError(t, errors.Join(c.Close(), d.Close()))
	var lines, trace bytes.Buffer
	require.NoError(t, memtrace.WriteLines(&lines, d))
	require.NoError(t, memtrace.WriteTrace(&trace, d))
	for line := range strings.Lines(lines.String()) {
		var e memtrace.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		switch {
		case e.Addr == memtrace.Addr(g.Ptr()) && e.Size == 64*mib:
			require.Contains(t, line, inJSON)
		case e.Kind == "alloc" || e.Kind == "free" || e.Kind == "map":
			require.Equal(t, "batch", e.Name)
		case e.Kind == "release":
			require.NotContains(t, line, `"name"`)
		}
	}
	require.Equal(t, 2, strings.Count(lines.String(), inJSON), "reserve and close")
	require.Equal(t, 2, strings.Count(trace.String(), inJSON))
	require.Contains(t, trace.String(), `"name":"batch"`)
}

// TestTraceEndsWithItsWriter: what cannot be written is not made.
func TestTraceEndsWithItsWriter(t *testing.T) {
	const events = 10_000
	d := vmmtest.Device(t)
	d.SetHistory(vmm.HistoryOptions{Events: events})
	c, err := d.Create(2<<20, vmm.Prop{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	for range events / 2 {
		r, err := d.Reserve(2<<20, vmm.ReserveOptions{})
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	made := testing.AllocsPerRun(1, func() { require.ErrorIs(t, memtrace.WriteTrace(goneWriter{}, d), io.ErrClosedPipe) })
	require.Less(t, made, float64(events))
}

type goneWriter struct{}

func (goneWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
