package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestAttachWaitsForTheStore: the store tells when an object is there, and when it is sealed.
func TestAttachWaitsForTheStore(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	type result struct {
		v   *shareable.View
		err error
	}
	attach := func(ctx context.Context, unsealed bool) <-chan result {
		dev := vmmtest.Device(t)
		done := make(chan result, 1)
		go func() {
			v, err := shareable.Attach(ctx, s.Path(), "x", dev, shareable.AttachOptions{Wait: true, Unsealed: unsealed})
			t.Cleanup(func() { _ = v.Close() })
			done <- result{v, err}
		}()
		return done
	}
	waiting := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return s.Stats().Waits == n }, inTime, step)
	}
	ctx, cancel := context.WithCancel(t.Context())
	there, whole, ended := attach(t.Context(), true), attach(t.Context(), false), attach(ctx, false)
	waiting(3)
	cancel()
	r := <-ended
	require.ErrorIs(t, r.err, context.Canceled)
	require.ErrorIs(t, r.err, shareable.ErrNotFound, "what it has waited for")

	w := writer(t, c, "x", CreateOptions{Size: 1000})
	r = <-there
	require.NoError(t, r.err)
	require.False(t, r.v.Sealed())
	late := attach(t.Context(), false) // the object is there, and not sealed
	waiting(2)
	require.NoError(t, w.Append([]byte("all")))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	for _, done := range []<-chan result{whole, late} {
		r = <-done
		require.NoError(t, r.err)
		require.True(t, r.v.Sealed())
		require.EqualValues(t, 3, r.v.Published())
	}
	require.Zero(t, s.Stats().Waits)

	// A writer that gives the object up ends the wait.
	require.NoError(t, c.Delete(t.Context(), "x", DeleteOptions{}))
	gone := attach(t.Context(), false)
	waiting(1)
	require.NoError(t, writer(t, c, "x", CreateOptions{Size: 1000}).Abort(t.Context()))
	require.ErrorIs(t, (<-gone).err, shareable.ErrAborted)
	_, err := shareable.Attach(t.Context(), s.Path(), "x", vmmtest.Device(t), shareable.AttachOptions{Wait: true, Token: make([]byte, 33)})
	require.ErrorIs(t, err, vmm.ErrInvalid)
}
