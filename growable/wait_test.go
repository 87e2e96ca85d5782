package growable_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// followed is a Source that can wait itself, as a shareable.View does.
type followed struct {
	memory
	wait func(context.Context, uint64) error
}

func (f *followed) Wait(ctx context.Context, n uint64) error { return f.wait(ctx, n) }

// TestReaderWaits: of a Range the elements are waited for as they come.
func TestReaderWaits(t *testing.T) {
	v := vector[int32](t, vmmtest.Device(t), growable.Options{MaxLen: 1000})
	r, err := growable.NewReader[int32](v.Range())
	require.NoError(t, err)
	require.NoError(t, r.Wait(t.Context(), 0))
	done := make(chan error, 1)
	go func() { done <- r.Wait(t.Context(), 500) }()
	for v.Len() < 500 {
		require.Empty(t, done)
		require.NoError(t, v.Append(make([]int32, 100)...))
	}
	require.NoError(t, <-done)

	require.ErrorIs(t, r.Wait(t.Context(), 1<<20), vmm.ErrBounds)
	require.ErrorIs(t, r.Wait(t.Context(), math.MaxInt), vmm.ErrBounds)
	require.ErrorIs(t, r.Wait(t.Context(), -1), vmm.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- r.Wait(ctx, 501) }()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	go func() { done <- r.Wait(t.Context(), 501) }()
	require.NoError(t, v.Close())
	require.ErrorIs(t, <-done, vmm.ErrClosed)
}

// TestRowsReaderWaits: a row counts once it is whole, its padding included.
func TestRowsReaderWaits(t *testing.T) {
	d := &described{layout: vmm.Layout{Kind: vmm.ElemInt, Bits: 32, Size: 4, Shape: []int{3}, Pitch: 16}}
	plain, err := growable.LayoutOf[int32](3)
	require.NoError(t, err)
	d.layout.Hash = plain.Hash
	r, err := growable.NewRowsReader[int32](d, 0)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Wait(t.Context(), 2) }()
	for n := range 32 {
		require.Empty(t, done)
		d.set(make([]byte, n))
	}
	d.set(make([]byte, 32))
	require.NoError(t, <-done)
	require.Equal(t, 2, r.Len())
}

// TestReaderWaitsAsItsSourceDoes: a Source with a method Wait says why nothing more comes.
func TestReaderWaitsAsItsSourceDoes(t *testing.T) {
	src := &followed{wait: func(_ context.Context, n uint64) error {
		if n > 12 {
			return vmm.ErrFull
		}
		return nil
	}}
	r, err := growable.NewRowsReader[int32](src, 3)
	require.NoError(t, err)
	require.NoError(t, r.Wait(t.Context(), 1))
	require.ErrorIs(t, r.Wait(t.Context(), 2), vmm.ErrFull)
	require.ErrorContains(t, r.Wait(t.Context(), 2), "wait for 2 rows")
}

// TestReaderWaitEnds: a Source whose Changed stays closed ends the wait, also without a reason.
func TestReaderWaitEnds(t *testing.T) {
	m := &memory{changed: make(chan struct{})}
	close(m.changed)
	r, err := growable.NewReader[byte](m)
	require.NoError(t, err)
	require.ErrorIs(t, r.Wait(t.Context(), 1), vmm.ErrClosed)
}
