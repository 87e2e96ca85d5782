package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
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
			require.NoError(t, late.Wait(within(t), 15))
			require.EqualValues(t, 15, late.Len())
			require.NoError(t, checkWave(late, 15))
		})
	}
}

// TestHandoverStopsConnections: the state of a handover is that of connections that stand
// still. The negative control lets them go on after it was taken.
func TestHandoverStopsConnections(t *testing.T) {
	t.Parallel()
	for _, control := range []bool{false, true} {
		t.Run(fmt.Sprintf("control=%v", control), func(t *testing.T) {
			o := Options{}
			ready := make(chan *Writer, 1)
			if control {
				o.hooks.earlyState = func() { assert.NoError(t, (<-ready).Grow(4<<20)) }
			}
			s := listening(t, o)
			w := writer(t, clientOf(t, s), "k", CreateOptions{Size: 16 << 20, Growable: true, Durable: true})
			ready <- w
			next, err := takeOverFrom(t, s, t.Context(), vmmtest.Device(t), Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, next.Close()) })
			require.True(t, s.Wait())
			err = w.Grow(8 << 20)
			if control {
				require.Error(t, err)
				require.Eventually(t, func() bool { return w.Err() != nil }, inTime, step)
				return
			}
			require.NoError(t, err)
			require.NoError(t, w.Append([]byte("x")))
			require.NoError(t, w.Flush(within(t)))
		})
	}
}
