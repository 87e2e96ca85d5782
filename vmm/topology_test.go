package vmm_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// golden compares text with a file of testdata.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile("testdata/"+file, []byte(got), 0o600))
	}
	want, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "%s: run this test with -update", file)
}

// opened opens n devices of a driver until the test ends.
func opened(t *testing.T, drv driver.Driver, n int) (devs []*vmm.Device) {
	t.Helper()
	for i := range n {
		d, err := vmm.OpenDriver(drv, i)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		devs = append(devs, d)
	}
	return devs
}

func TestTopology(t *testing.T) {
	devs := opened(t, host.New(host.Config{Devices: 4, Memory: 64 * mib, NoPeer: [][2]int{{0, 2}}}), 3)
	l, err := devs[0].Topology()
	require.NoError(t, err)
	require.Len(t, l.Devices, 4, "all of the driver")
	require.Len(t, l.Pairs, 4*3)

	l, err = vmm.Topology(devs[2], devs[0], devs[1])
	require.NoError(t, err)
	require.Len(t, l.Devices, 3)
	require.Len(t, l.Pairs, 3*2)
	require.Equal(t, &vmm.Link{From: 0, To: 1, Access: true, Kind: "host", Atomics: true}, l.Link(0, 1))
	require.Equal(t, &vmm.Link{From: 2, To: 0, Kind: "none", Rank: -1}, l.Link(2, 0))
	require.Nil(t, l.Link(0, 0))
	require.Nil(t, l.Link(0, 3))
	golden(t, "topology.txt", l.String())
}

func TestTopologyOfTheMachine(t *testing.T) {
	l, err := vmm.Topology()
	require.NoError(t, err)
	require.NotEmpty(t, l.Devices)
	require.Len(t, l.Pairs, len(l.Devices)*(len(l.Devices)-1))
	for _, p := range l.Pairs {
		require.NotEqual(t, p.From, p.To)
		if !p.Access {
			require.Equal(t, "none", p.Kind)
		}
	}
}

// plainDriver is a driver without optional interfaces.
type plainDriver struct{ driver.Driver }

// refuser has the optional interface, which returns ErrNotSupported.
type refuser struct{ driver.Driver }

func (refuser) Peering(int, int) (driver.Peering, error) {
	return driver.Peering{}, &driver.CallError{Call: "Peering", Kind: driver.ErrNotSupported}
}

func TestTopologyWithoutPeerInfo(t *testing.T) {
	inner := host.New(host.Config{Devices: 2, Memory: 64 * mib, NoPeer: [][2]int{{0, 1}}})
	free := host.New(host.Config{Devices: 2, Memory: 64 * mib})
	for _, c := range []struct {
		drv  driver.Driver
		want vmm.Link
	}{
		{&plainDriver{inner}, vmm.Link{From: 1, To: 0, Kind: "none", Rank: -1}},
		{&refuser{inner}, vmm.Link{From: 1, To: 0, Kind: "none", Rank: -1}},
		{&plainDriver{free}, vmm.Link{From: 1, To: 0, Access: true, Rank: -1}},
		{&refuser{free}, vmm.Link{From: 1, To: 0, Access: true, Rank: -1}},
	} {
		l, err := opened(t, c.drv, 1)[0].Topology()
		require.NoError(t, err)
		require.Equal(t, &c.want, l.Link(1, 0))
		if c.want.Access {
			require.Contains(t, l.String(), "access")
		}
	}
}

func TestTopologyJSON(t *testing.T) {
	l := vmm.Links{
		Devices: []vmm.Info{
			{Ordinal: 0, Open: "cuda:0", Name: "NVIDIA H200", PCI: "0000:3b:00.0", UUID: [16]byte{1, 2, 3}},
			{Ordinal: 1, Open: "cuda:1", Name: "NVIDIA H200", MIG: "MIG-1", UUID: [16]byte{4}},
		},
		Pairs: []vmm.Link{
			{From: 0, To: 1, Access: true, Kind: "nvlink", Atomics: true},
			{From: 1, To: 0, Kind: "none", Rank: -1},
		},
	}
	for _, v := range []any{l, &l} {
		b, err := json.MarshalIndent(v, "", "  ")
		require.NoError(t, err)
		golden(t, "topology.json", string(b)+"\n")
	}
	require.Contains(t, l.String(), "nvlink 0 +")
	var none *vmm.Links
	require.Nil(t, none.Link(0, 1))
	require.Equal(t, "no links", none.String())
	b, err := json.Marshal(vmm.Links{})
	require.NoError(t, err)
	require.JSONEq(t, `{"devices":[],"pairs":[]}`, string(b))
}

func TestTopologyBadInput(t *testing.T) {
	drv := host.New(host.Config{Devices: 2, Memory: 64 * mib})
	devs := opened(t, drv, 2)
	twice, err := vmm.OpenDriver(drv, 1)
	require.NoError(t, err)
	other := opened(t, host.New(host.Config{Memory: 64 * mib}), 1)[0]
	for name, devs := range map[string][]*vmm.Device{
		"nil":            {devs[0], nil},
		"twice":          {devs[0], devs[1], twice},
		"another driver": {devs[0], other},
	} {
		_, err := vmm.Topology(devs...)
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		require.NotContains(t, err.Error(), "to memory of", name)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, name)
	}
	require.NoError(t, twice.Close())
	_, err = vmm.Topology(devs[0], twice)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = twice.Topology()
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = (*vmm.Device)(nil).Topology()
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// A lost device does not hide the others.
func TestTopologyWithALostDevice(t *testing.T) {
	drv := drivertest.Inject(host.New(host.Config{Devices: 3, Memory: 1 << 30}), func(c drivertest.Call) error {
		if c.Name == "Peering" && c.Dev == 1 {
			return driver.ErrDeviceLost
		}
		return nil
	})
	d, err := vmm.OpenDriver(drv, 0)
	require.NoError(t, err)
	l, err := d.Topology()
	require.NoError(t, err)
	require.Equal(t, "lost", l.Link(1, 0).Kind)
	require.False(t, l.Link(1, 2).Access)
	require.Equal(t, "host", l.Link(0, 2).Kind)
	require.True(t, l.Link(2, 0).Access)
	require.Contains(t, l.String(), "lost")
	require.NoError(t, d.Close())
}
