package shareable

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestTypedReaders: rows that one process appends are rows in the other, whatever their
// pitch, without a layout by hand.
func TestTypedReaders(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	rows, err := growable.NewRows[float32](dev, 3, growable.RowsOptions{
		Pitch: 16, MaxRows: 1 << 20, Range: vmm.RangeOptions{Share: vmm.ShareFD, Chunk: 2 << 20},
	})
	require.NoError(t, err)
	s, err := Listen(dev, socketAt(t), Options{})
	require.NoError(t, err)
	p, err := s.Publish("x", rows.Range(), PublishOptions{Layout: rows.Layout()})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, p.Close())
		require.NoError(t, rows.Close())
	})

	v := attached(t, s, AttachOptions{})
	r, err := growable.NewRowsReader[float32](v, 0)
	require.NoError(t, err)
	require.Equal(t, 3, r.Width())
	require.Equal(t, 16, r.Pitch())

	const each, times = 10_000, 30 // some chunks end inside an append
	appended := make(chan error, 1)
	go func() {
		part := make([]float32, 3*each)
		for k := range times {
			for i := range part {
				part[i] = float32(3*each*k + i)
			}
			if err := rows.Append(part...); err != nil {
				appended <- err
				return
			}
		}
		appended <- nil
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	buf := make([]float32, 3*1000)
	for n := 0; n < each*times; {
		changed := r.Changed()
		for n < r.Len() {
			got, err := r.ReadAt(buf, n)
			if !errors.Is(err, io.EOF) {
				require.NoError(t, err)
			}
			require.Positive(t, got)
			for i, x := range buf[:3*got] {
				if x != float32(3*n+i) {
					t.Fatalf("row %d has %v", n+i/3, x)
				}
			}
			n += got
		}
		if n == each*times {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%d rows of %d: %v", n, each*times, v.Err())
		}
	}
	require.NoError(t, <-appended)

	// A reader of something else is told what differs.
	_, err = growable.NewRowsReader[float32](v, 4)
	require.ErrorContains(t, err, "a layout of rows of 3 float32, 16 bytes apart, not rows of 4 float32: a shape of [3], not [4]")
	_, err = growable.NewReader[[3]float32](v)
	require.ErrorContains(t, err, "a pitch of 16 bytes, not 12")

	// The end is a change, and stays one.
	changed := r.Changed()
	require.NoError(t, v.Close())
	<-changed
	<-r.Changed()
	_, err = r.ReadAt(buf, 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
}
