package memmap_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

func TestSnapshot(t *testing.T) {
	m, d, awake, p := everything(t)
	s := m.Snapshot()
	require.Equal(t, "everything", s.Title)
	require.EqualValues(t, 1, s.Seq)
	x := &s.Devices[0]
	require.Equal(t, []string{"host:0", "host memory"}, []string{x.Name, x.Model})
	require.EqualValues(t, 256*mib, x.Total)
	require.Equal(t, d.Stats().Committed, x.Total-x.Free)
	require.EqualValues(t, 3*mib, x.Unused)

	find := func(at vmm.Ptr) memmap.Range {
		i := slices.IndexFunc(x.Ranges, func(r memmap.Range) bool { return r.Addr == memmap.Addr(at) })
		require.GreaterOrEqual(t, i, 0)
		return x.Ranges[i]
	}
	r := find(awake.Ptr())
	require.Contains(t, r.Made, "harness_test.go:")
	require.Equal(t, []memmap.Run{{Size: 2 * mib, Count: 3, State: "accessible"}}, r.Chunks)
	require.Equal(t, []uint64{3 * mib, 6 * mib, 3 * mib}, []uint64{r.Len, r.Committed, r.Ahead})
	require.Len(t, r.Sharers, 1)
	require.Equal(t, "table", r.Sharers[0].Object)
	require.Len(t, s.Sharers, 1, "one at no address of these")
	i := slices.IndexFunc(x.Ranges, func(r memmap.Range) bool { return r.Asleep })
	require.Equal(t, []uint64{mib, 0, 0}, []uint64{x.Ranges[i].Len, x.Ranges[i].Committed, x.Ranges[i].Ahead})

	require.Equal(t, "p", find(p.Reservation().Ptr()).Pool)
	require.Len(t, x.Pools, 1)
	st, err := p.Stats()
	require.NoError(t, err)
	require.Equal(t, st, x.Pools[0].Stats)
	require.Equal(t, st.Used, x.Samples.Pools[0])
	require.Len(t, x.Pools[0].Streams, 1)
	require.Equal(t, x.Pools[0].Streams[0].InSlabs, st.InSlabs)

	require.Len(t, x.Events, 2)
	require.Equal(t, []string{"create", "release"}, []string{x.Events[0].Kind, x.Events[1].Kind})
	require.Contains(t, x.Events[0].Where, "schema_test.go:")
	require.NotEmpty(t, x.Events[0].Stack)
}

// TestClosedDevice: a device that has closed is shown with the error.
func TestClosedDevice(t *testing.T) {
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	s := memmap.New(memmap.Options{Devices: []*vmm.Device{d, nil}}).Snapshot()
	require.Contains(t, s.Devices[0].Error, "closed")
	require.NotEmpty(t, s.Devices[1].Error)
}

// TestEventsOnce: each event is shown once, and only the last 256 are, whatever the device keeps.
func TestEventsOnce(t *testing.T) {
	d := device(t)
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
	require.Empty(t, m.Snapshot().Devices[0].Events)
	d.SetHistory(vmm.HistoryOptions{Events: 1000})
	for i := range 150 {
		c, err := d.Create(2*mib, vmm.Prop{})
		require.NoError(t, err)
		require.NoError(t, c.Close())
		if i%7 == 0 || i == 149 {
			got := m.Snapshot().Devices[0].Events
			require.Len(t, got, min(2*i+2, 256))
			for k, e := range got {
				require.EqualValues(t, 2*i+2-len(got)+k+1, e.Seq)
			}
		}
	}
	d.SetHistory(vmm.HistoryOptions{})
	require.EqualValues(t, 300, m.Snapshot().Devices[0].Events[255].Seq)
}

// TestSamples: equal rows are one, and beyond the limit the older half gets thinner.
func TestSamples(t *testing.T) {
	d := device(t)
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}, Samples: 16})
	g := rangeOf(t, d, 2*mib, 0)
	for i := range 100 {
		require.NoError(t, g.SetLen(uint64(i)))
		m.Snapshot()
		m.Snapshot()
	}
	s := m.Snapshot().Devices[0].Samples
	require.LessOrEqual(t, len(s.Time), 16)
	require.GreaterOrEqual(t, len(s.Time), 8)
	require.Zero(t, s.Used[0], "the first stays")
	require.EqualValues(t, 99, s.Used[len(s.Used)-1])
	require.True(t, slices.IsSorted(s.Time))
	require.True(t, slices.IsSorted(s.Used))
}

// TestEarlier: what the history tells of the time before the first sample.
func TestEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device(t)
		before := func(o memmap.Options) memmap.Earlier {
			o.Devices = []*vmm.Device{d}
			return memmap.New(o).Snapshot().Devices[0].Earlier
		}
		require.Equal(t, memmap.Earlier{Time: []int64{}, Committed: []uint64{}}, before(memmap.Options{}), "no history is kept")
		d.SetHistory(vmm.HistoryOptions{Events: 1000})
		g := rangeOf(t, d, 2*mib, 0)
		// next has the next change come in another millisecond.
		next := func() {
			<-time.After(time.Millisecond)
		}
		next()
		require.NoError(t, g.Grow(6*mib))
		next()
		require.NoError(t, g.SetLen(3*mib))
		require.NoError(t, g.Clip())
		next()
		m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
		e := m.Snapshot().Devices[0].Earlier
		require.Equal(t, d.Stats().Committed, e.Committed[len(e.Committed)-1])
		require.Len(t, e.Time, len(e.Committed))
		require.Contains(t, e.Committed, uint64(6*mib))
		require.True(t, slices.IsSorted(e.Time))
		require.LessOrEqual(t, e.Time[len(e.Time)-1], m.Snapshot().Devices[0].Samples.Time[0])
		require.NoError(t, g.Grow(20*mib))
		require.Equal(t, e, m.Snapshot().Devices[0].Earlier, "it is read once")
		for range 100 {
			require.NoError(t, g.Clip())
			next()
			require.NoError(t, g.Grow(20*mib))
		}
		require.LessOrEqual(t, len(before(memmap.Options{Samples: 16}).Time), 16)
	})
}

// TestRecord: samples are taken while no page looks, until Close.
func TestRecord(t *testing.T) {
	d := device(t)
	p := poolOf(t, d)
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}, Pools: pools(map[string]*pool.Pool{"p": p})})
	done := make(chan error)
	go func() { done <- m.Record(t.Context(), time.Millisecond) }()
	g := rangeOf(t, d, 2*mib, 0)
	n := 1
	require.Eventually(t, func() bool {
		require.NoError(t, g.SetLen(uint64(n)))
		n++
		return len(m.Snapshot().Devices[0].Samples.Time) > 20
	}, time.Minute, time.Millisecond)
	require.NoError(t, m.Close())
	require.NoError(t, <-done)
	s := m.Snapshot().Devices[0].Samples
	require.Equal(t, s.Pools[0], s.Pools[len(s.Pools)-1])
	require.NotZero(t, s.Pools[0])
}

// BenchmarkSnapshot: a snapshot of 10,000 ranges of two or three chunks each, without a driver: as
// it is taken while pages watch, with what has changed, and in full.
func BenchmarkSnapshot(b *testing.B) {
	for name, moved := range map[string]int{"changed=0": 0, "changed=100": 100, "changed=10000": 10_000} {
		b.Run(name, func(b *testing.B) {
			d, all := manyRanges(b)
			m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
			release := m.WatchForTest()
			defer release()
			n := uint64(0)
			for b.Loop() {
				n++
				for _, g := range all[:moved] {
					require.NoError(b, g.SetLen(n%1000+1))
				}
				m.Snapshot()
			}
		})
	}
	b.Run("full", func(b *testing.B) {
		d, _ := manyRanges(b)
		m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
		for b.Loop() {
			var text strings.Builder
			require.NoError(b, m.WriteHTML(&text))
			b.SetBytes(int64(text.Len()))
		}
	})
}

func manyRanges(b *testing.B) (*vmm.Device, []*vmm.Range) {
	b.Helper()
	d, err := vmm.OpenDriver(nulldriver.New(), 0)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, d.Close()) })
	all := make([]*vmm.Range, 10_000)
	for i := range all {
		g, err := d.NewRange(vmm.RangeOptions{Max: 64 * mib})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, g.Close()) })
		require.NoError(b, g.Grow(2*mib))
		require.NoError(b, g.Grow(uint64(6+i%2*8)*mib))
		require.NoError(b, g.SetLen(5*mib))
		all[i] = g
	}
	return d, all
}

// TestNames: ranges, pools and events have their names in the data and in the page, where none is markup.
func TestNames(t *testing.T) {
	const name = "<img src=x onerror=alert(1)>\n\xff\""
	const inJSON = `"name":"\u003cimg src=x onerror=alert(1)\u003e\n\ufffd\""`
	d := device(t)
	d.SetHistory(vmm.HistoryOptions{Events: 10})
	g, err := d.NewRange(vmm.RangeOptions{Name: name, Max: 8 * mib})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	p, err := pool.New(d, pool.Options{Name: "batch"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}, Pools: pools(map[string]*pool.Pool{"p": p})})
	s := m.Snapshot()
	have := map[memmap.Addr]string{}
	for _, r := range s.Devices[0].Ranges {
		have[r.Addr] = r.Name
	}
	require.Equal(t, map[memmap.Addr]string{memmap.Addr(g.Ptr()): name, memmap.Addr(p.Reservation().Ptr()): "batch"}, have)
	require.Equal(t, name, s.Devices[0].Events[0].Name)
	data := get(t, m, "/data.json").Body.Bytes()
	require.NoError(t, conforms(t, schema(t, ""), data))
	require.Equal(t, 2, bytes.Count(data, []byte(inJSON)), "the range and its event")
	require.NoError(t, conforms(t, schema(t, "#/$defs/report"), asJSON(t, d.Report())))
	var page bytes.Buffer
	require.NoError(t, m.WriteHTML(&page))
	require.Contains(t, page.String(), inJSON)
	require.NotContains(t, page.String(), "<img src=x")
}

// TestOtherName: another range at the same address, of the same line and moment, differs by its name.
func TestOtherName(t *testing.T) {
	r := memmap.Range{Name: "a"}
	same, other := r, r
	other.Name = "b"
	require.True(t, memmap.SameRange(&r, &same))
	require.False(t, memmap.SameRange(&r, &other))
}

// TestNoInventedMemory: while ranges grow and shrink, and memory is made and released, nothing is on
// the map that no one has.
func TestNoInventedMemory(t *testing.T) {
	d := device(t)
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
	ctx, stop := context.WithCancel(t.Context())
	var growers sync.WaitGroup
	defer growers.Wait()
	defer stop()
	for range 4 {
		g := rangeOf(t, d, 0, 0)
		growers.Go(func() {
			for ctx.Err() == nil {
				assert.NoError(t, g.Grow(2*mib))
				assert.NoError(t, g.SetLen(mib))
				assert.NoError(t, g.SetLen(0))
				assert.NoError(t, g.Clip())
			}
		})
	}
	creates := d.Stats().Creates
	for range 60 {
		for d.Stats().Creates == creates {
			runtime.Gosched()
		}
		x := &m.Snapshot().Devices[0]
		creates = x.Stats.Creates
		require.Equal(t, []uint64{0, 0, 0}, []uint64{x.Mapped, x.Unmapped, x.Others})
	}
	stop()
	growers.Wait()

	// What there is, is there.
	c, err := d.Create(2*mib, vmm.Prop{})
	require.NoError(t, err)
	require.EqualValues(t, 2*mib, m.Snapshot().Devices[0].Unmapped)
	r, err := d.Reserve(4*mib, vmm.ReserveOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, c))
	x := &m.Snapshot().Devices[0]
	require.Equal(t, []uint64{2 * mib, 0}, []uint64{x.Mapped, x.Unmapped})
	require.NoError(t, r.Close())
	require.NoError(t, c.Close())
}

// TestImportedIsItsOwners: who maps memory of others, here a device its own, counts it apart from its own,
// wherever it is: in a reservation, in a range with a Supplier, or nowhere.
func TestImportedIsItsOwners(t *testing.T) {
	d := device(t)
	d.SetHistory(vmm.HistoryOptions{Events: 1000})
	d.SetLimit(4 * mib)
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
	c, err := d.Create(4*mib, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd, err := c.Export()
	require.NoError(t, err)
	imported := importer{d, fd}
	var all []*vmm.Chunk
	for range 3 {
		i, err := imported.Chunks(t.Context(), 0, 4*mib)
		require.NoError(t, err)
		all = append(all, i...)
	}
	r, err := d.Reserve(4*mib, vmm.ReserveOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, all[0]))
	g, err := d.NewRange(vmm.RangeOptions{Max: 4 * mib, Supplier: imported})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 3*mib)))

	x := &m.Snapshot().Devices[0]
	require.Equal(t, []uint64{4 * mib, 16 * mib, 0}, []uint64{x.Stats.Committed, x.Stats.Imported, x.Stats.Used})
	require.LessOrEqual(t, x.Stats.Committed, x.Stats.Limit)
	require.Equal(t, x.Total-x.Free, x.Stats.Committed, "what the device has given")
	require.Equal(t, []uint64{0, 4 * mib, 0, 0}, []uint64{x.Mapped, x.Unmapped, x.Unused, x.Others})
	require.Len(t, x.Ranges, 2)
	for _, r := range x.Ranges {
		require.Equal(t, []uint64{4 * mib, 4 * mib}, []uint64{r.Committed, r.Imported})
	}
	require.NoError(t, g.SetLen(mib))
	require.Zero(t, d.Stats().Used)

	require.NoError(t, errors.Join(r.Close(), g.Close(), all[0].Close(), all[1].Close(), all[2].Close()))
	freed, err := d.Trim(0)
	require.NoError(t, err)
	require.Zero(t, freed)
	st := d.Stats()
	require.Equal(t, []uint64{4 * mib, 0, 0}, []uint64{st.Committed, st.Imported, st.Used})
	late := memmap.New(memmap.Options{Devices: []*vmm.Device{d}}).Snapshot().Devices[0].Earlier
	for _, n := range late.Committed {
		require.EqualValues(t, 4*mib, n)
	}
	require.NoError(t, errors.Join(c.Close(), os.NewFile(uintptr(fd), "").Close()))
	require.Zero(t, d.Stats().Committed)
}

// importer is a Supplier of memory that a descriptor shows.
type importer struct {
	d  *vmm.Device
	fd int
}

func (i importer) Chunks(_ context.Context, _, need uint64) ([]*vmm.Chunk, error) {
	c, err := i.d.Import(i.fd, need, vmm.Prop{Share: vmm.ShareFD})
	return []*vmm.Chunk{c}, err
}

// TestChartOfMany: what costs little is told each interval, also where reading the ranges takes long.
func TestChartOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device(t)
		g := rangeOf(t, d, 2*mib, 0)
		m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}, Processes: func(*vmm.Device) []memmap.Process {
			<-time.After(50 * time.Millisecond) // as 10,000 ranges take
			return nil
		}})
		defer m.WatchForTest()()
		m.Snapshot()
		_, _, seq, _ := m.NextForTest(0)
		var changes int
		late := seq
		begun := time.Now()
		for i := uint64(1); time.Since(begun) < 9*time.Second; i++ {
			require.NoError(t, g.SetLen(i))
			kind, data, now, due := m.NextForTest(seq)
			seq = now
			if kind == "change" {
				changes++
				require.NoError(t, conforms(t, schema(t, "#/$defs/change"), data))
				require.Contains(t, string(data), `"samples"`)
			}
			<-time.After(time.Until(due))
		}
		require.GreaterOrEqual(t, changes, 9, "one a second")
		for late != seq { // a page that reads slowly is told all of them, and at once
			kind, _, now, due := m.NextForTest(late)
			require.Equal(t, "change", kind)
			require.Equal(t, now == seq, time.Until(due) > 0)
			late = now
		}
		_, data, _, _ := m.NextForTest(0)
		var s memmap.Snapshot
		require.NoError(t, json.Unmarshal(data, &s))
		require.Greater(t, s.Time.Sub(s.RangesTime), 8*time.Second)
	})
}

// TestRowsOfOneMoment: rows that are taken at once are told once each.
func TestRowsOfOneMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes
		d := device(t)
		g := rangeOf(t, d, 2*mib, 0)
		m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
		for i := range uint64(5) {
			require.NoError(t, g.SetLen(i+1))
			m.Snapshot()
		}
		s := m.Snapshot().Devices[0].Samples
		require.Equal(t, []uint64{1, 2, 3, 4, 5}, s.Used)
		require.Len(t, slices.Compact(s.Time), 5)
	})
}
