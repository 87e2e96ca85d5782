package hostengine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestRegistrationsAreChecked.
func TestRegistrationsAreChecked(t *testing.T) {
	var seen reports
	ranks := group(t, 1, Options{Report: seen.add})
	r := ranks[0]
	p := r.mem.Ptr()
	_, err := r.Register(p, 0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = r.Register(p, 1<<40)
	require.ErrorIs(t, err, vmm.ErrInvalid, "it is not mapped")
	require.Empty(t, seen.take())
	h, err := r.Register(p, 4096)
	require.NoError(t, err)
	_, err = r.Register(p+4095, 4096)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.Len(t, seen.take(), 1)
	beside, err := r.Register(p+4096, 4096)
	require.NoError(t, err)
	_, err = r.Register(p+8192, 4096)
	require.NoError(t, err, "left at the end")
	require.NoError(t, r.Deregister(h))
	require.ErrorIs(t, r.Deregister(h), vmm.ErrInvalid)
	require.ErrorIs(t, r.DeregisterWindow(beside), vmm.ErrInvalid)
	require.Len(t, seen.take(), 2)
	require.NoError(t, r.Abort())
	_, err = r.Register(p, 4096)
	require.ErrorIs(t, err, nccl.ErrFailed)
	require.NoError(t, r.Deregister(beside), "also after Abort, which need not be")
	require.NoError(t, r.Free())
	require.Empty(t, seen.take())
}

// TestRegistrationsThatAreLeft are reported, and so is a Free that comes too early.
func TestRegistrationsThatAreLeft(t *testing.T) {
	var seen reports
	r := group(t, 1, Options{Report: seen.add})[0]
	_, err := r.Register(r.mem.Ptr(), 4096)
	require.NoError(t, err)
	require.NoError(t, r.Free())
	all := seen.take()
	require.Len(t, all, 2)
	require.Contains(t, all[0], "are registered")
	require.Contains(t, all[1], "before Close was done")
	require.ErrorContains(t, r.Free(), "no module")
	require.Contains(t, seen.take()[0], "Free after Free")
}

// TestRegisteredMemoryThatWasUnmapped is reported when a call uses what is beside it.
func TestRegisteredMemoryThatWasUnmapped(t *testing.T) {
	var seen reports
	ranks := group(t, 1, Options{Report: seen.add})
	r := ranks[0]
	g, err := r.dev.NewRange(vmm.RangeOptions{Max: 64 << 20, Chunk: 2 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Grow(32<<20))
	h, err := r.Register(g.Ptr(), 32<<20)
	require.NoError(t, err)
	require.NoError(t, g.SetLen(1))
	require.NoError(t, g.Clip())
	st, _, release, err := r.st.Hold()
	require.NoError(t, err)
	c := nccl.Call{Operation: nccl.AllReduce, Kind: nccl.Uint8, Src: uint64(g.Ptr()), Dst: uint64(g.Ptr()), Count: 1}
	err = r.Run(st, []vmm.Span{{Addr: g.Ptr(), Size: 1, Access: vmm.AccessReadWrite}}, []nccl.Call{c})
	release()
	require.NoError(t, err)
	require.NoError(t, r.sync())
	require.Contains(t, seen.take()[0], "was unmapped while it was registered")
	require.NoError(t, r.Deregister(h))
	require.NoError(t, g.Close())
	end(t, ranks)
	require.Empty(t, seen.take())
}

// TestWindows: a window is there once all members have registered it, and calls use windows
// alike.
func TestWindows(t *testing.T) {
	var seen reports
	ranks := group(t, 2, Options{Report: seen.add})
	handles := make([]uint64, 2)
	together(ranks, func(r *rank) {
		var err error
		if handles[r.rank], err = r.RegisterWindow(r.mem.Ptr(), 4096); err != nil {
			t.Errorf("rank %d: %v", r.rank, err)
		}
	})
	_, err := ranks[0].Register(ranks[0].mem.Ptr(), 4096)
	require.NoError(t, err, "beside a window")
	c := nccl.Call{Operation: nccl.AllReduce, Kind: nccl.Uint8, Count: 16}
	for _, r := range ranks {
		require.NoError(t, r.queue(c))
	}
	for _, r := range ranks {
		require.NoError(t, r.sync())
	}
	require.Empty(t, seen.take())
	require.NoError(t, ranks[0].queue(c))
	c.Src = 8192
	require.NoError(t, ranks[1].queue(c))
	for _, r := range ranks {
		require.NoError(t, r.sync())
	}
	require.Contains(t, seen.take()[0], "windows")
	require.NoError(t, ranks[1].DeregisterWindow(handles[1]))
	require.NoError(t, ranks[0].DeregisterWindow(handles[0]))
	require.NoError(t, ranks[0].Deregister(2))
	end(t, ranks)
	require.Empty(t, seen.take())
}

// TestWindowsThatDiffer and members that do not come.
func TestWindowsThatDiffer(t *testing.T) {
	ranks := group(t, 2, Options{Report: new(reports).add})
	first := ranks[0].registering(t)
	_, err := ranks[1].RegisterWindow(ranks[1].mem.Ptr(), 8192)
	require.ErrorIs(t, err, nccl.ErrFailed)
	require.ErrorContains(t, <-first, "rank 0 registers a window of 4096 bytes, rank 1 one of 8192")

	ranks = group(t, 2, Options{Report: new(reports).add})
	first = ranks[0].registering(t)
	closed := ranks[1].closing(t)
	require.ErrorIs(t, <-first, nccl.ErrPeerGone)
	require.NoError(t, ranks[0].Abort())
	require.ErrorIs(t, <-closed, nccl.ErrPeerGone)

	ranks = group(t, 2, Options{Report: new(reports).add})
	first = ranks[0].registering(t)
	require.NoError(t, ranks[0].Abort())
	require.ErrorIs(t, <-first, nccl.ErrFailed)
}

// registering begins to register a window, and returns once the others know.
func (r *rank) registering(t *testing.T) <-chan error {
	t.Helper()
	registered := make(chan error, 1)
	go func() {
		_, err := r.RegisterWindow(r.mem.Ptr(), 4096)
		registered <- err
	}()
	require.Eventually(t, func() bool {
		r.w.mu.Lock()
		defer r.w.mu.Unlock()
		return len(r.w.windows) > 0
	}, 10*time.Second, time.Millisecond)
	return registered
}

// TestCallsAtOnce are reported.
func TestCallsAtOnce(t *testing.T) {
	var seen reports
	r := group(t, 1, Options{Report: seen.add})[0]
	r.begin("Run")
	require.NoError(t, r.Err())
	require.Contains(t, seen.take()[0], "Err while another call is made")
	require.NoError(t, r.Close())
	require.NoError(t, r.queue())
	require.Contains(t, seen.take()[0], "Run after Close")
}
