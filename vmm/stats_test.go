package vmm_test

import (
	"bytes"
	"encoding/json"
	"expvar"
	"flag"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

var update = flag.Bool("update", false, "write testdata")

// numbered sets every number of a struct to a different one, so that a golden file shows
// each field under its name.
func numbered[T any](t *testing.T) T {
	t.Helper()
	var v T
	n := uint64(0)
	var fill func(reflect.Value)
	fill = func(v reflect.Value) {
		for i := range v.NumField() {
			f := v.Field(i)
			n++
			switch f.Kind() {
			case reflect.Struct:
				fill(f)
			case reflect.Uint64:
				f.SetUint(n)
			case reflect.Int, reflect.Int64:
				f.SetInt(int64(n))
			case reflect.Bool:
				f.SetBool(true)
			default:
				t.Fatalf("a %v", f.Kind())
			}
		}
	}
	fill(reflect.ValueOf(&v).Elem())
	return v
}

// TestStatsSchema: dashboards rely on the JSON names. A new one is added to the golden file
// with -update. None is removed or changed.
func TestStatsSchema(t *testing.T) {
	for file, v := range map[string]any{
		"testdata/stats.json":      numbered[vmm.Stats](t),
		"testdata/rangestats.json": numbered[vmm.RangeStats](t),
	} {
		got, err := json.MarshalIndent(v, "", "  ")
		require.NoError(t, err)
		got = append(got, '\n')
		if *update {
			require.NoError(t, os.WriteFile(file, got, 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s: run this test with -update", file)

		// expvar and slog have the same names and numbers.
		var plain, parsed map[string]any
		require.NoError(t, json.Unmarshal(want, &plain))
		require.NoError(t, json.Unmarshal([]byte(v.(expvar.Var).String()), &parsed))
		require.Equal(t, plain, parsed)
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("memory", "stats", v)
		var line map[string]any
		require.NoError(t, json.Unmarshal(log.Bytes(), &line))
		require.Equal(t, plain, line["stats"])
	}
}

func TestReportSchema(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	b, err := json.Marshal(w.devs[0].Report())
	require.NoError(t, err)
	var rep struct {
		Device string
		Stats  vmm.Stats
		Open   []map[string]any
	}
	require.NoError(t, json.Unmarshal(b, &rep))
	require.Equal(t, w.devs[0].Stats(), rep.Stats)
	require.Len(t, rep.Open, 1)
	for _, name := range []string{"kind", "made", "addr", "size", "chunks"} {
		require.Contains(t, rep.Open[0], name)
	}
	require.NoError(t, g.Close())
	w.end()
}

// TestStatsMakeNoDriverCall, whatever the device is doing.
func TestStatsMakeNoDriverCall(t *testing.T) {
	w := newWorld(t, 1)
	g, s, open := queuedClip(t, w)
	vmm.SetNoWorker(w.devs[0], true)
	for n, _ := vmm.Working(w.devs[0]); n; n, _ = vmm.Working(w.devs[0]) {
		open() // until the goroutine is gone
	}
	w.arm()
	_ = w.devs[0].Stats().String()
	_ = g.Stats().String()
	w.devs[0].Report()
	w.devs[0].ResetPeaks()
	g.ResetPeaks()
	require.Empty(t, w.disarm())
	require.Zero(t, (*vmm.Device)(nil).Stats())
	require.Zero(t, (*vmm.Range)(nil).Stats())
	(*vmm.Device)(nil).ResetPeaks()
	(*vmm.Range)(nil).ResetPeaks()
	vmm.SetNoWorker(w.devs[0], false)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestStatsFollow one range through its life, number by number.
func TestStatsFollow(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	vmm.SetNoWorker(d, true)
	d.SetReleaseThreshold(2 * page)
	d.SetLimit(100 * page)
	want := vmm.Stats{Limit: 100 * page, ReleaseThreshold: 2 * page, AddressLimit: d.Stats().AddressLimit}
	step := func(what string, change func(*vmm.Stats)) {
		t.Helper()
		change(&want)
		want.PeakReserved = max(want.PeakReserved, want.Reserved)
		want.PeakCommitted = max(want.PeakCommitted, want.Committed)
		want.PeakUsed = max(want.PeakUsed, want.Used)
		want.PeakCached = max(want.PeakCached, want.Cached)
		want.PeakRetiring = max(want.PeakRetiring, want.Retiring)
		got := d.Stats()
		got.WorkTime = 0
		require.Equal(t, want, got, what)
	}
	step("open", func(*vmm.Stats) {})
	g := newRange(t, d, vmm.RangeOptions{Max: 16 * page, Chunk: page})
	step("reserve", func(s *vmm.Stats) { s.Reserved = 16 * page })
	require.NoError(t, g.Append(pattern(4*page, 1)))
	step("append", func(s *vmm.Stats) { s.Committed, s.Used, s.Creates, s.Maps, s.Growths = 4*page, 4*page, 4, 4, 1 })
	s := stream(t, d)
	require.NoError(t, g.UsedBy(s))
	require.NoError(t, g.SetLen(page/2))
	step("shorten", func(s *vmm.Stats) { s.Used = page / 2 })
	require.NoError(t, g.Clip())
	step("clip", func(s *vmm.Stats) { s.Retiring = 3 * page })
	require.NoError(t, g.Grow(page))
	step("take back", func(s *vmm.Stats) { s.Retiring, s.Reclaimed, s.Growths = 2*page, page, 2 })
	require.NoError(t, g.Clip())
	step("clip again", func(s *vmm.Stats) { s.Retiring = 3 * page })
	require.NoError(t, vmm.Drain(d))
	step("unmap", func(s *vmm.Stats) {
		s.Retiring, s.Cached, s.Committed, s.Unmaps, s.Releases = 0, 2*page, 3*page, 3, 1
		s.PeakCached = 2 * page // the oldest went first
	})
	require.NoError(t, g.Grow(3*page/2))
	step("grow", func(s *vmm.Stats) { s.Cached, s.Hits, s.Maps, s.Growths = page, 1, 5, 3 })
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	step("sleep", func(s *vmm.Stats) {
		s.Used, s.Asleep, s.Committed, s.Releases, s.Unmaps = 0, page/2, page, 3, 5
		s.HostCopies = max(page/2, 4<<10) // in whole pages of the host
		s.PeakRetiring = 3 * page
	})
	require.NoError(t, vmm.Wake(g))
	step("wake", func(s *vmm.Stats) {
		s.Used, s.Asleep, s.Committed, s.Cached, s.Creates, s.Maps = page/2, 0, 2*page, 0, 5, 7
		s.HostCopies = 0
	})
	d.ResetPeaks()
	now := d.Stats()
	require.Equal(t, []uint64{now.Reserved, now.Committed, now.Used, now.Cached, now.Retiring},
		[]uint64{now.PeakReserved, now.PeakCommitted, now.PeakUsed, now.PeakCached, now.PeakRetiring})
	st := g.Stats()
	require.EqualValues(t, 4*page, st.PeakCommitted)
	require.EqualValues(t, 4*page, st.PeakUsed)
	require.EqualValues(t, 3, st.Growths)
	require.EqualValues(t, page, st.Reclaimed)
	require.EqualValues(t, 1, st.Hits)
	g.ResetPeaks()
	st = g.Stats()
	require.EqualValues(t, 2*page, st.PeakCommitted)
	require.EqualValues(t, page/2, st.PeakUsed)
	vmm.SetNoWorker(d, false)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestStatsAreOfOneMoment: in every snapshot under load the parts fit into the whole, and
// no peak is below the current value.
func TestStatsAreOfOneMoment(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(8 * page)
	var users, watchers sync.WaitGroup
	done := make(chan struct{})
	s := stream(t, d)
	for i := range 3 {
		users.Go(func() {
			o := vmm.RangeOptions{Max: 64 * page}
			if i == 0 {
				o.GrowAhead = 4 * page
			}
			g := newRange(t, d, o)
			if i > 0 {
				if err := g.UsedBy(s); err != nil {
					t.Error(err)
				}
			}
			for n := range 80 {
				for _, err := range []error{g.Append(pattern((n%7)*page, 1)), g.SetLen(uint64(n%3) * min(page, g.Len()) / 3), g.Clip()} {
					if err != nil {
						t.Error(err)
					}
				}
				if n%20 == 0 {
					if err := vmm.Sleep(vmm.SleepKeep, g); err != nil {
						t.Error(err)
					}
					if err := vmm.Wake(g); err != nil {
						t.Error(err)
					}
				}
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 2 {
		watchers.Go(func() {
			var last vmm.Stats
			for {
				st := d.Stats()
				switch {
				case st.Cached+st.Retiring > st.Committed, st.Quarantined > 0,
					st.Used > st.Committed, st.Cached > st.ReleaseThreshold, st.Committed > st.Reserved+st.ReleaseThreshold+64*page,
					st.PeakCommitted < st.Committed, st.PeakUsed < st.Used, st.PeakCached < st.Cached,
					st.PeakRetiring < st.Retiring, st.PeakReserved < st.Reserved,
					st.Creates < st.Releases, st.Maps < st.Unmaps, st.Maps < last.Maps, st.Creates < last.Creates:
					t.Errorf("%v after %v", st, last)
					return
				}
				last = st
				if i == 0 {
					d.ResetPeaks()
				}
				select {
				case <-done:
					return
				case <-time.After(10 * time.Microsecond):
				}
			}
		})
	}
	users.Wait()
	close(done)
	watchers.Wait()
	require.NoError(t, s.Close())
	w.end()
}

// read parses an expvar, as its readers do.
func read(v expvar.Var, into any) {
	if err := json.Unmarshal([]byte(v.String()), into); err != nil {
		panic(err)
	}
}
