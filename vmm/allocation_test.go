package vmm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// plainGraph is a graph that fills n bytes of the driver's memory.
func plainGraph(t *testing.T, s *vmm.Stream, p vmm.Ptr, n uint64) *vmm.GraphExec {
	t.Helper()
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(p+vmm.Ptr(n/2), 7, 1, n/2))
	g, err := s.EndCapture()
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	return executable(t, g)
}

// TestGraphOutlivesAllocation: a graph whose memory the driver has taken back is refused, and can be
// launched again if the free has failed. Without the check the device is lost.
func TestGraphOutlivesAllocation(t *testing.T) {
	for _, off := range []bool{false, true} {
		if off && onCUDA {
			continue // a GPU that is lost does not come back in this process
		}
		w := newWorld(t, 1)
		d := w.devs[0]
		vmm.SetNoAllocationCheck(d, off)
		s := stream(t, d)
		raw, err := d.Raw()
		require.NoError(t, err)
		p, err := raw.(driver.Allocator).AllocPlain(page)
		require.NoError(t, err)
		a := inside.VMM.NoteAllocation(d, p, page)
		x := plainGraph(t, s, p, page)
		require.NoError(t, x.Launch(s))
		a.Retire()
		if !off {
			require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
		}
		a.Restore()
		require.NoError(t, x.Launch(s))
		again := plainGraph(t, s, p, page)

		// Noted twice, it is freed with the second.
		require.Same(t, a, inside.VMM.NoteAllocation(d, p, page))
		a.Retire()
		require.NoError(t, x.Launch(s))
		require.NoError(t, s.Sync())
		a.Retire()
		require.NoError(t, raw.(driver.Allocator).FreePlain(p))
		if off {
			require.NoError(t, again.Launch(s))
			require.ErrorIs(t, s.Sync(), vmm.ErrDeviceLost)
			continue
		}
		for _, x := range []*vmm.GraphExec{x, again} {
			err := x.Launch(s)
			require.ErrorIs(t, err, vmm.ErrClosed)
			require.ErrorContains(t, err, "was freed")
		}
		// Other memory, perhaps at the same address, does not make the graph usable.
		require.NotSame(t, a, inside.VMM.NoteAllocation(d, p, page))
		require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
		require.NoError(t, s.Sync())
	}
}

// TestRetireWaitsForLaunch: memory is not given up before a launch under way has queued the graph.
func TestRetireWaitsForLaunch(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	raw, err := d.Raw()
	require.NoError(t, err)
	p, err := raw.(driver.Allocator).AllocPlain(page)
	require.NoError(t, err)
	a := inside.VMM.NoteAllocation(d, p, page)
	x := plainGraph(t, s, p, page)
	launching, goOn := make(chan bool), make(chan bool)
	w.before = func(c drivertest.Call) error {
		if c.Name == "LaunchGraph" {
			launching <- true
			<-goOn
		}
		return nil
	}
	launched := make(chan error)
	go func() { launched <- x.Launch(s) }()
	<-launching
	retired := make(chan bool)
	go func() { a.Retire(); close(retired) }()
	require.Eventually(t, func() bool { return vmm.Awaited(a) }, time.Minute, time.Millisecond)
	select {
	case <-retired:
		t.Fatal("the launch is under way")
	default:
	}
	close(goOn)
	require.NoError(t, <-launched)
	<-retired
	w.before = nil
	require.NoError(t, s.Sync())
	require.NoError(t, raw.(driver.Allocator).FreePlain(p))
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
}

// TestGraphOutlivesPinned: once page-locked memory is given back, the next AllocPinned may have it.
func TestGraphOutlivesPinned(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	s := stream(t, d)
	pinned, err := d.AllocPinned(page)
	require.NoError(t, err)
	x := plainGraph(t, s, pinned.Ptr(), page)
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Sync())
	require.EqualValues(t, 7, pinned.Bytes()[page-1])
	require.NoError(t, pinned.Close())
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed)
	next, err := d.AllocPinned(page)
	require.NoError(t, err)
	require.ErrorIs(t, x.Launch(s), vmm.ErrClosed, "the memory is another's")
	require.NoError(t, next.Close())
}
