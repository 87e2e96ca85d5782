package memmap_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memmap"
)

// noLender lends nothing.
type noLender struct{}

func (noLender) Borrow(uint64, bool, time.Time) error { return nil }

func (noLender) Near() {}

// TestLease: the map has the lease of a budget, what is created of it, and the events of both.
func TestLease(t *testing.T) {
	d := device(t)
	d.SetHistory(vmm.HistoryOptions{Events: 100})
	m := memmap.New(memmap.Options{Devices: []*vmm.Device{d}})
	c, err := d.Create(2*mib, vmm.Prop{})
	require.NoError(t, err)
	x := &m.Snapshot().Devices[0]
	require.Equal(t, []uint64{0, 2 * mib}, []uint64{x.Stats.Lease, x.Created}, "without a budget")
	l, err := inside.VMM.Lend(d, noLender{})
	require.NoError(t, err)
	l.Raise(6 * mib)
	s := m.Snapshot()
	x = &s.Devices[0]
	require.Equal(t, []uint64{8 * mib, 2 * mib}, []uint64{x.Stats.Lease, x.Created})
	require.Equal(t, "lend", x.Events[len(x.Events)-1].Kind)
	require.EqualValues(t, 6*mib, x.Events[len(x.Events)-1].Size)
	b, err := json.Marshal(s)
	require.NoError(t, err)
	require.Contains(t, string(b), `"lease":8388608`)
	require.NoError(t, c.Close())
	require.NoError(t, l.End())
	x = &m.Snapshot().Devices[0]
	require.Equal(t, "give", x.Events[len(x.Events)-1].Kind)
	require.Zero(t, x.Stats.Lease)
}
