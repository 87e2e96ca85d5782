package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// waitUnleased waits until the lease of an object has ended. Stats says so a moment before.
func waitUnleased(t *testing.T, s *Server, name string) {
	t.Helper()
	require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.byName[name].lease == nil }, inTime, step)
}

// TestWriterWithoutLease: what a process writes to its control page after its lease has ended
// is seen by no reader, and by no later writer. The negative control lets readers keep that
// page.
func TestWriterWithoutLease(t *testing.T) {
	t.Parallel()
	for _, control := range []bool{false, true} {
		t.Run(fmt.Sprintf("control=%v", control), func(t *testing.T) {
			o := Options{}
			o.hooks.keepPage = control
			s := listening(t, o)
			c := clientOf(t, s)
			first := connected(t, s)
			m, err := first.leaseWith(wire.TypeCreate, wire.Create{Name: "k", Size: 1 << 20, Flags: wire.StoreDurable}.Append(nil))
			require.NoError(t, err)
			require.NoError(t, first.grow(&m, 0))
			first.fill(m, waveAt(0, 1000))
			m.page.Publish(10)
			early := got(t, c, "k", GetOptions{Unsafe: true})
			require.EqualValues(t, 10, early.Len())
			first.Close() // and its process runs on
			waitUnleased(t, s, "k")
			if control {
				m.page.Publish(1000)
				require.Eventually(t, func() bool { return early.Len() == 1000 }, inTime, step)
				require.EqualValues(t, 1000, got(t, c, "k", GetOptions{Unsafe: true}).Len())
				return
			}
			m.page.Publish(1000)
			late := got(t, c, "k", GetOptions{Unsafe: true})
			require.EqualValues(t, 10, late.Len())
			w, err := c.Append(t.Context(), "k", AppendOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 10, w.Len())
			require.NoError(t, w.Append(waveAt(10, 5)))
			require.NoError(t, w.Close())
			require.ErrorIs(t, late.Wait(within(t), 15), shareable.ErrOwnerGone) // that memory is the first's still
			require.EqualValues(t, 10, late.Len())
			require.NoError(t, checkWave(got(t, c, "k", GetOptions{Unsafe: true}), 15))
		})
	}
}
