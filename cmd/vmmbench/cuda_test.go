//go:build cgo && linux

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// fakeDriver is the fake CUDA driver with some small devices. Its streams cannot be held back,
// and its kernels do nothing.
func fakeDriver(t *testing.T, devices int) (*fakecuda.Library, driver.Driver) {
	t.Helper()
	path := fakecuda.Build(t, fakecuda.Missing("cuStreamWaitValue32_v2", "cuFuncGetParamInfo"))
	fake := fakecuda.Open(t, path)
	fake.Configure(devices, 128<<20)
	drv, err := cuda.Load(path)
	require.NoError(t, err)
	t.Cleanup(fake.Clean)
	return fake, drv
}

// What the host does not have, the fake CUDA driver has: a pool, and memory that
// the CPU cannot address.
func TestCommandsOnFakeCUDA(t *testing.T) {
	t.Parallel()
	_, drv := fakeDriver(t, 1)
	dev := openDriver(t, drv, 0)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })

	less := func(mib uint64) size.List {
		return testgate.Effort(size.List{mib << 19}, size.List{mib << 20}, size.List{mib << 20})
	}
	ops := newOpsPlan()
	ops.sizes = size.List{2 << 20, 32 << 20}
	ops.busy = testgate.Effort(counts{0}, counts{0, 1}, counts{0, 1})
	copies := newBWPlan()
	copies.hosts.values, copies.intos.values, copies.sizes, copies.steps = copies.hosts.of, copies.intos.of, less(4), testgate.Effort(size.List{1 << 20}, size.List{0, 1 << 20}, size.List{0, 1 << 20})
	growths := newGrowPlan()
	growths.targets, growths.step = less(8), 2<<20
	growths.busy = testgate.Effort(counts{1}, counts{0, 1}, counts{0, 1})
	growths.mems.values = []string{memVMM, "ahead", "kept", memPlain, memAsync}
	sleeps := newSleepPlan()
	sleeps.sizes = less(4)
	for name, plan := range map[string]plan{"ops": ops, "bw": copies, "grow": growths, "sleep": sleeps} {
		s := newRunner()
		s.flags.samples = 1
		s.run(t.Context(), t, dev, plan)
		require.NotEmpty(t, s.report.Cases)
		for _, c := range s.report.Cases {
			require.Equal(t, report.Passed, c.Status, "%s: %s: %s", name, c.ID, c.Reason)
		}
	}
}

// The fake driver tells plain memory with peer access from that without, and
// mapped memory from both.
func TestP2POnFakeCUDA(t *testing.T) {
	t.Parallel()
	fake, drv := fakeDriver(t, 2)
	s := p2pOn(t, drv, noPeer, legacyPeer, memVMM)
	require.NotEmpty(t, s.report.Cases)
	for _, c := range s.report.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
	}
	require.Zero(t, fake.Live().Peers, "peer access is never left on")
}

// The fake driver's kernels do nothing, and that is noticed.
func TestKernelsOfFakeCUDA(t *testing.T) {
	_, drv := fakeDriver(t, 1)
	dev := openDriver(t, drv, 0)
	dev.settings = userSettings()
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	_, err := dev.ownKernels()
	require.ErrorIs(t, err, errWrongKernels)
}

// The topology on CUDA: the fake driver connects pairs by NVLink, by PCIe and not at all.
func TestTopologyOnFakeCUDA(t *testing.T) {
	t.Parallel()
	fake, drv := fakeDriver(t, 3)
	fake.Link(0, 1, fakecuda.PCIe)
	fake.Link(2, 0, fakecuda.NoPath)
	devs := opened(t, drv, 0, 1, 2)

	r := &runner{report: report.New(report.Run{}, report.Host{})}
	r.addDevices([]device{devs[0], devs[2]})
	require.True(t, r.report.Devices[0].Unified)
	list := r.report.Topology
	require.Len(t, list, 2, "of the devices that are described")
	require.Equal(t, "cuda:0 cuda:2", list[0].From+" "+list[0].To)
	require.True(t, *list[0].Access)
	require.False(t, *list[1].Access)
	require.Nil(t, list[1].Rank)
	require.Contains(t, list[0].Reason, "path: ", "there is no NVML for the fake driver")

	links, err := devs[0].Topology()
	require.NoError(t, err)
	kinds := map[string]report.Text{}
	for _, l := range topology(links) {
		kinds[l.From+" "+l.To] = l.Kind
		require.Equal(t, l.Kind == "nvlink", *l.Atomics)
	}
	require.Equal(t, report.Text("pcie"), kinds["cuda:0 cuda:1"])
	require.Equal(t, report.Text("nvlink"), kinds["cuda:1 cuda:2"])
}

// nvbandwidth's copies by copy engines, between contexts, from and to pinned memory.
func TestNVBandwidthOnFakeCUDA(t *testing.T) {
	t.Parallel()
	fake, drv := fakeDriver(t, 3)
	devs := opened(t, drv, 0, 1, 2)
	groups, err := (&nvPlan{size.List{64 << 10}}).groups(devs, 1)
	require.NoError(t, err)
	groups = slices.DeleteFunc(groups, func(g group) bool { return strings.Contains(g.name, "_sm/") })
	s := newRunner()
	s.flags.samples = 1
	s.measureGroups(t.Context(), groups)
	for _, c := range s.report.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
	}
	require.Len(t, s.report.Cases, 2*(3*13+6*4))
	require.Zero(t, fake.Live().Peers, "peer access is never left on")
}

// opened opens devices of a driver.
func opened(t *testing.T, drv driver.Driver, ordinals ...int) []device {
	t.Helper()
	var devs []device
	for _, n := range ordinals {
		dev := openDriver(t, drv, n)
		t.Cleanup(func() { require.NoError(t, dev.Close(), "nothing may be left open") })
		devs = append(devs, dev)
	}
	return devs
}
