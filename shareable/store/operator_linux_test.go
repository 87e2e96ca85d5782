package store

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestOperatorHasAPlace: where clients have all connections, the server's user can still look, and
// delete, but make nothing, and has no more places than a few.
func TestOperatorHasAPlace(t *testing.T) {
	t.Parallel()
	const conns = 6
	s := listening(t, Options{MaxConns: conns, Timeout: 500 * time.Millisecond})
	c := clientOf(t, s)
	sealed(t, c, "x", []byte{1})
	w := writer(t, c, "w", CreateOptions{Size: 1})
	for s.Stats().Clients < conns {
		connected(t, s)
	}
	operator := clientOf(t, s)
	require.Equal(t, []string{"x", "w"}, names(t, operator))
	_, err := operator.Create(t.Context(), "y", CreateOptions{Size: 1})
	require.ErrorIs(t, err, vmm.ErrLimit)
	_, err = operator.Get(t.Context(), "x", GetOptions{})
	require.ErrorIs(t, err, vmm.ErrLimit)
	require.NoError(t, operator.Delete(t.Context(), "x", DeleteOptions{}))
	require.NoError(t, w.Err())

	require.Eventually(t, func() bool { return s.Stats().Clients == conns }, inTime, step, "those that ask for nothing end")
	var all []*Client
	for len(all) < 9 {
		one, err := Connect(t.Context(), s.Path(), vmmtest.Device(t), ClientOptions{})
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrLimit)
			break
		}
		all = append(all, one)
	}
	require.NotEmpty(t, all)
	require.LessOrEqual(t, len(all), 8, "a connection that is about to end may still have a place")
	for _, one := range all {
		require.NoError(t, one.Close())
	}
}

// TestIdleConnectionsEnd: a connection that has nothing ends in time, one with a lease, a request
// that waits or events does not. A Client ends its own before that, and notices nothing.
func TestIdleConnectionsEnd(t *testing.T) {
	was := idleTime
	idleTime = 50 * time.Millisecond
	t.Cleanup(func() { idleTime = was })
	s := listening(t, Options{Timeout: 300 * time.Millisecond}) // each has so long for its first request, beside other work too
	idle, waits, watches := connected(t, s), connected(t, s), connected(t, s)
	c := clientOf(t, s)
	w := writer(t, c, "w", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	waited := make(chan error, 1)
	go func() {
		waited <- waits.Call(t.Context(), wire.TypeWait, wire.Wait{Name: "x"}.Append(nil), wire.TypeObject, ignore)
	}()
	require.NoError(t, watches.ask(wire.TypeWatch, wire.Watch{}.Append(nil)))
	require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
	select {
	case <-idle.Ended():
	case <-time.After(inTime):
		require.Fail(t, "it stays")
	}
	require.Eventually(t, func() bool { return s.Stats().Clients == 3 }, inTime, step, "the writer's, and those of the two others")
	require.Equal(t, []string{"w"}, names(t, c))
	require.NoError(t, w.Append([]byte{1}))
	require.NoError(t, w.Flush(t.Context()))
	require.NoError(t, errors.Join(waits.Err(), watches.Err()))
	sealed(t, c, "x", []byte{1})
	require.NoError(t, <-waited)
}
