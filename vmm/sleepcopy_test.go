package vmm_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestSleepersShareLanes: contents of ranges of all lengths, on two devices, come back.
func TestSleepersShareLanes(t *testing.T) {
	w := newWorld(t, 2)
	for _, d := range w.devs {
		vmm.SetStaging(d, &vmm.Staging{Block: edge, Lanes: 3})
	}
	defer vmm.SetSavedAtOnce(vmm.SetSavedAtOnce(7 * edge))
	for _, kept := range []bool{false, true} {
		var all []*vmm.Range
		var want [][]byte
		for i, n := range []int{1, edge - 1, 5*edge + 3, 0, edge, 33*edge + 7, 2} {
			g := newRange(t, w.devs[i/2%2], vmm.RangeOptions{Max: 512 * page, KeepHostMemory: kept})
			want = append(want, noise(n, uint64(i+1)))
			require.NoError(t, g.Append(want[i]))
			all = append(all, g)
		}
		copies := w.made("CopyIn") + w.made("CopyOut")
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, all...))
		asleep := w.devs[0].Stats().HostCopies + w.devs[1].Stats().HostCopies
		require.NotZero(t, asleep)
		require.NoError(t, vmm.Wake(all...))
		awake := w.devs[0].Stats().HostCopies + w.devs[1].Stats().HostCopies
		if kept {
			require.Equal(t, asleep, awake, "all of it was written, so all is kept")
		} else {
			require.Zero(t, awake)
		}
		for i, g := range all {
			got := make([]byte, len(want[i]))
			n, _ := g.ReadAt(got, 0)
			require.True(t, bytes.Equal(want[i], got[:n]))
			require.NoError(t, g.Close())
		}
		require.Equal(t, copies, w.made("CopyIn")+w.made("CopyOut"), "all of it was staged")
	}
	w.end()
}

// TestWakeNamesWhatItCouldNotCopy, and the ranges of the other device have nothing to wait for.
func TestWakeNamesWhatItCouldNotCopy(t *testing.T) {
	w := newWorld(t, 2)
	for _, d := range w.devs {
		vmm.SetStaging(d, nil)
	}
	first, second := newRange(t, w.devs[0], vmm.RangeOptions{Max: page}), newRange(t, w.devs[1], vmm.RangeOptions{Max: page})
	for _, g := range []*vmm.Range{first, second} {
		require.NoError(t, g.Append([]byte{1, 2, 3}))
	}
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, second, first))
	s := stream(t, w.devs[1])
	require.NoError(t, s.BeginCapture()) // so that a wait for the work of this device is refused
	w.refuse("CopyIn", 1, errInjected)
	err := vmm.Wake(second, first)
	require.ErrorIs(t, err, errInjected)
	var op *vmm.OpError
	require.ErrorAs(t, err, &op)
	require.Equal(t, first.Ptr(), op.Addr)
	require.Zero(t, w.devs[1].Stats().Quarantined)
	graph, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, graph.Close())
	require.NoError(t, s.Close())
	require.NoError(t, vmm.Wake(first, second))
	for _, g := range []*vmm.Range{first, second} {
		got := make([]byte, 3)
		_, err := g.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, []byte{1, 2, 3}, got)
		require.NoError(t, g.Close())
	}
	w.end()
}

// TestWakeOfNothing: a range without memory has no access to set, and the others that its owner may only
// read have theirs as before.
func TestWakeOfNothing(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	var all []*vmm.Range
	for n := range 3 {
		g := newRange(t, d, vmm.RangeOptions{Max: 4 * page, Zero: true})
		require.NoError(t, g.Append(make([]byte, n)))
		require.NoError(t, g.Grant(vmm.AccessRead, d))
		all = append(all, g)
	}
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, all...))
	require.NoError(t, vmm.Wake(all...))
	for i, g := range all {
		require.EqualValues(t, i, g.Len())
		if i > 0 {
			require.ErrorIs(t, d.CopyIn(g.Ptr(), []byte{1}), vmm.ErrPermission)
		}
		require.NoError(t, g.Close())
	}
	w.end()
}
