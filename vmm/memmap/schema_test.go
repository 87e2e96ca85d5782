package memmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// everything is a map of a device on which every field has a value: a range that sleeps and one
// that others map, a reservation, a pool and one that is none, another process and an event.
func everything(t *testing.T) (m *memmap.Map, d *vmm.Device, awake *vmm.Range, p *pool.Pool) {
	t.Helper()
	d = device(t)
	awake = namedRange(t, d, "<b>awake</b>", 6*mib, 3*mib)
	asleep := rangeOf(t, d, 2*mib, mib)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, asleep))
	res, err := d.Reserve(8*mib, vmm.ReserveOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, res.Close()) })
	p = poolOf(t, d)
	d.SetHistory(vmm.HistoryOptions{Events: 10})
	c, err := d.Create(2*mib, vmm.Prop{})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	m = memmap.New(memmap.Options{
		Title: "everything", Devices: []*vmm.Device{d},
		Pools: pools(map[string]*pool.Pool{"p": p, "none": nil}),
		Sharers: func() []memmap.Sharer {
			return []memmap.Sharer{
				{Addr: memmap.Addr(awake.Ptr()) + 5, Object: "table", Instance: "i", PID: 7, UID: 8, Bytes: 9, Behind: 10, Note: "slow"},
				{Object: "elsewhere", UID: -1},
			}
		},
		Processes: func(*vmm.Device) []memmap.Process { return []memmap.Process{{PID: 5, Name: "python3", Bytes: mib}} },
	})
	return m, d, awake, p
}

// What a map serves, and what the packages report, is what the schema says.
func TestDataConformToTheSchema(t *testing.T) {
	m, d, awake, p := everything(t)
	require.NoError(t, conforms(t, schema(t, ""), get(t, m, "/data.json").Body.Bytes()))
	require.NoError(t, conforms(t, schema(t, ""), get(t, memmap.New(memmap.Options{}), "/data.json").Body.Bytes()))
	require.NoError(t, conforms(t, schema(t, "#/$defs/report"), asJSON(t, d.Report())))
	require.NoError(t, conforms(t, schema(t, "#/$defs/stats"), asJSON(t, d.Stats())))
	require.NoError(t, conforms(t, schema(t, "#/$defs/range_stats"), asJSON(t, awake.Stats())))
	u, err := p.Usage()
	require.NoError(t, err)
	require.NoError(t, conforms(t, schema(t, "#/$defs/pool_usage"), asJSON(t, u)))
	require.NoError(t, conforms(t, schema(t, "#/$defs/pool_stats"), asJSON(t, u.Stats)))
}

// TestSchemaRefuses is the control: data that are wrong somewhere do not pass.
func TestSchemaRefuses(t *testing.T) {
	m, _, _, _ := everything(t)
	s := schema(t, "")
	for name, change := range map[string]func(*memmap.Snapshot){
		"version": func(s *memmap.Snapshot) { s.Schema = "memmap/0" },
		"list":    func(s *memmap.Snapshot) { s.Sharers = nil },
		"state":   func(s *memmap.Snapshot) { s.Devices[0].Ranges[0].Chunks = []memmap.Run{{State: "lost"}} },
		"columns": func(s *memmap.Snapshot) { s.Devices[0].Samples.Used = nil },
	} {
		x := m.Snapshot()
		require.NoError(t, conforms(t, s, asJSON(t, x)))
		other := *x
		other.Devices = []memmap.Device{x.Devices[0]}
		other.Devices[0].Ranges = []memmap.Range{x.Devices[0].Ranges[0]}
		change(&other)
		require.Error(t, conforms(t, s, asJSON(t, other)), name)
	}
	text := asJSON(t, m.Snapshot())
	require.Error(t, conforms(t, s, append(text[:len(text)-1], `,"unknown":1}`...)), "a field that is not described")
}
