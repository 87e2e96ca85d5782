package collective

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// alone is the first of two members that do not learn of each other, with a call that it alone has
// queued.
func alone(t *testing.T, h hooks) (*Group, *vmm.Stream) {
	t.Helper()
	worlds := &hostengine.Worlds{Options: hostengine.Options{Silent: true}}
	o := Options{Size: 2, Timeout: 100 * time.Millisecond, hooks: h}
	g, err := forTests{}.JoinOn(t.Context(), vmmtest.Device(t), o, worlds, nil)
	require.NoError(t, err)
	st, err := g.Device().NewStream()
	require.NoError(t, err)
	r, err := g.Device().NewRange(vmm.RangeOptions{Max: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, r.Append(make([]byte, 8)))
	t.Cleanup(func() {
		require.NoError(t, g.Abort())
		require.NoError(t, st.Sync())
		require.NoError(t, r.Close())
		require.NoError(t, st.Close())
	})
	require.NoError(t, g.Do(t.Context(), st, AllReduce(r, r, Uint32, Sum)))
	return g, st
}

// TestWatchControl: without the watch a call that is queued has no end, though its time is over
// several times for calls with it.
func TestWatchControl(t *testing.T) {
	t.Parallel()
	unwatched, _ := alone(t, hooks{noWatch: true})
	for range 3 {
		_, st := alone(t, hooks{})
		require.ErrorIs(t, st.Sync(), os.ErrDeadlineExceeded)
	}
	require.NoError(t, unwatched.Err())
}

// TestGraphsAreWatched: a call that was captured is watched in each launch of the graph, not at the
// capture. After the end of the group the graph is not launched.
func TestGraphsAreWatched(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	g, err := forTests{}.JoinOn(t.Context(), dev, Options{Size: 1, Timeout: time.Minute}, idle{}, nil)
	require.NoError(t, err)
	st, err := dev.NewStream()
	require.NoError(t, err)
	r, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, r.Append(make([]byte, 8)))
	watched := func() (n uint64) {
		g.waits.mu.Lock()
		defer g.waits.mu.Unlock()
		for _, q := range g.waits.queued {
			for _, s := range q.writes {
				n += s.Size
			}
		}
		return n
	}

	require.NoError(t, st.BeginCapture())
	require.NoError(t, g.Do(t.Context(), st, AllReduce(r, r, Uint32, Sum)))
	graph, err := st.EndCapture()
	require.NoError(t, err)
	exec, err := graph.Instantiate()
	require.NoError(t, err)
	require.Zero(t, watched())
	require.NoError(t, exec.Launch(st))
	require.NoError(t, exec.Launch(st))
	require.EqualValues(t, 16, watched())
	require.NoError(t, st.Sync())
	require.Eventually(t, func() bool { return watched() == 0 }, 10*time.Second, time.Millisecond, "they have run")

	require.NoError(t, g.Abort())
	require.ErrorIs(t, exec.Launch(st), ErrAborted)
	require.NoError(t, errors.Join(st.Sync(), exec.Close(), graph.Close(), r.Close(), st.Close()))
}
