//go:build cgo && linux

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/internal/fakecuda"
)

// What the host does not have, the fake CUDA driver has: a pool, and memory that
// the CPU cannot address.
func TestOnFakeCUDA(t *testing.T) {
	path := fakecuda.Build(t, fakecuda.Missing("wait_value32")) // its streams cannot be held back
	fake := fakecuda.Open(t, path)
	fake.Configure(1, 512<<20)
	drv, err := cuda.Load(path)
	require.NoError(t, err)
	t.Cleanup(fake.Clean)
	dev := openDriver(t, drv, 0)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })

	ops := newOpsPlan()
	ops.busy = counts{0, 1}
	copies := newBWPlan()
	copies.hosts.values, copies.sizes, copies.steps = copies.hosts.of, size.List{16 << 20}, size.List{0, 1 << 20}
	growths := newGrowPlan()
	growths.targets, growths.step, growths.busy = size.List{16 << 20}, growStep{bytes: 2 << 20}, counts{0, 1}
	growths.mems.values = []string{growVMM, growAhead, growKept, growPlain, growAsync}
	for name, plan := range map[string]plan{"ops": ops, "bw": copies, "grow": growths} {
		s := newRunner()
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
	path := fakecuda.Build(t, fakecuda.Missing("wait_value32"))
	fake := fakecuda.Open(t, path)
	fake.Configure(2, 512<<20)
	drv, err := cuda.Load(path)
	require.NoError(t, err)
	t.Cleanup(fake.Clean)
	s := p2pOn(t, drv, noPeer, legacyPeer, memVMM)
	require.NotEmpty(t, s.report.Cases)
	for _, c := range s.report.Cases {
		require.Equal(t, report.Passed, c.Status, "%s: %s", c.ID, c.Reason)
	}
	require.Zero(t, fake.Live().Peers, "peer access is never left on")
}
