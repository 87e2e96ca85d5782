package store

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPingTellsWhatEnded: the context of the caller, or the time that the options give.
func TestPingTellsWhatEnded(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	s.mu.Lock() // it replies no more
	defer s.mu.Unlock()
	for _, timeout := range []time.Duration{0, time.Hour} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		require.ErrorIs(t, Ping(ctx, s.Path(), ClientOptions{Timeout: timeout}), context.DeadlineExceeded)
		cancel()
	}
	for _, timeout := range []time.Duration{1, 50 * time.Millisecond} {
		err := Ping(t.Context(), s.Path(), ClientOptions{Timeout: timeout})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
	//nolint:staticcheck // what a caller may do
	require.ErrorContains(t, Ping(nil, s.Path(), ClientOptions{}), "ping store")
}

// TestWritableOnlyWhileItFollows: a View that is closed, or whose owner is gone, is not Writable.
func TestWritableOnlyWhileItFollows(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "x", CreateOptions{Growable: true})
	require.NoError(t, w.Append([]byte{1}))
	v, err := c.Get(t.Context(), "x", GetOptions{Unsafe: true, Write: true})
	require.NoError(t, err)
	require.True(t, v.Writable())
	require.NoError(t, v.Close())
	require.False(t, v.Writable())
}
