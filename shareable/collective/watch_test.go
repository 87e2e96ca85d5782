package collective

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// alone is the first of two members that do not learn of each other, with a call that it alone has queued.
func alone(t *testing.T, h hooks) (*Group, *vmm.Stream) {
	t.Helper()
	worlds := &hostengine.Worlds{Options: hostengine.Options{Silent: true}}
	o := Options{Size: 2, Timeout: 100 * time.Millisecond, hooks: h}
	g, err := JoinOn(t.Context(), vmmtest.Device(t), o, worlds, nil)
	require.NoError(t, err)
	st, err := g.Device().NewStream()
	require.NoError(t, err)
	r, err := g.Device().NewRange(vmm.RangeOptions{Max: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, r.Append(make([]byte, 8)))
	t.Cleanup(func() {
		require.NoError(t, g.Abort())
		g.Device().MarkWritten(vmm.Span{Size: math.MaxUint64})
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
