package collectivetest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/vmm"
)

func newRows(t *testing.T, dev *vmm.Device, width, pitch int, rows ...float32) *growable.Rows[float32] {
	t.Helper()
	r, err := growable.NewRows[float32](dev, width, growable.RowsOptions{MaxRows: 1000, Pitch: pitch})
	require.NoError(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			_ = r.Close()
		}
	})
	require.NoError(t, r.Append(rows...))
	return r
}

func TestRowsWithAPitch(t *testing.T) {
	groups := collectivetest.Groups(t, 3)
	rows := make([]*growable.Rows[float32], 3)
	sts := make([]*vmm.Stream, 3)
	for i, g := range groups {
		sts[i] = newStream(t, g.Device())
		rows[i] = newRows(t, g.Device(), 3, 64)
	}
	var want [][]float32
	for k := range 7 {
		row := []float32{float32(k), float32(k) + .5, -float32(k)}
		require.NoError(t, rows[2].Append(row...))
		want = append(want, row)
	}
	require.NoError(t, errors.Join(all(groups, func(i int, g *collective.Group) error { return g.Rebalance(t.Context(), sts[i], rows[i]) })...))
	var got [][]float32
	for i, r := range rows {
		t.Log(i, r.Len(), r.Range().Len())
		for row, err := range r.All() {
			require.NoError(t, err)
			got = append(got, append([]float32(nil), row...))
		}
	}
	require.Equal(t, want, got)
	dst := make([]*growable.Rows[float32], 3)
	for i, g := range groups {
		dst[i] = newRows(t, g.Device(), 3, 64, 9, 9, 9)
	}
	require.NoError(t, errors.Join(all(groups, func(i int, g *collective.Group) error {
		l, err := g.AllGather(t.Context(), sts[i], dst[i], rows[i])
		t.Log(l)
		return errors.Join(err, g.Sync(t.Context(), sts[i]))
	})...))
	for _, d := range dst {
		got = nil
		for row, err := range d.All() {
			require.NoError(t, err)
			got = append(got, append([]float32(nil), row...))
		}
		require.Equal(t, append([][]float32{{9, 9, 9}}, want...), got)
		require.NoError(t, d.Append(1, 2, 3))
	}
	// other pitch
	for i, g := range groups {
		dst[i] = newRows(t, g.Device(), 3, 128, 9, 9, 9)
	}
	for _, err := range all(groups, func(i int, g *collective.Group) error {
		_, err := g.AllGather(t.Context(), sts[i], dst[i], rows[i])
		return err
	}) {
		t.Log(err)
		if err == nil {
			t.Error("another pitch is taken")
		}
	}
	// pitches that differ between members
	for i, g := range groups {
		dst[i] = newRows(t, g.Device(), 3, 64<<i, 9, 9, 9)
	}
	for _, err := range all(groups, func(i int, g *collective.Group) error {
		_, err := g.AllGather(t.Context(), sts[i], dst[i], dst[i])
		return err
	}) {
		t.Log(err)
		if err == nil {
			t.Error("another pitch is taken")
		}
	}
	for _, err := range all(groups, func(i int, g *collective.Group) error {
		return g.Rebalance(t.Context(), sts[i], dst[i])
	}) {
		t.Log(err)
		if err == nil {
			t.Error("another pitch is taken")
		}
	}
}

func TestOddArguments(t *testing.T) {
	groups := collectivetest.Groups(t, 2)
	sts := []*vmm.Stream{newStream(t, groups[0].Device()), newStream(t, groups[1].Device())}
	r := []*vmm.Range{newRange(t, groups[0].Device(), 100), newRange(t, groups[1].Device(), 60)}
	check := func(name string, call func(i int, g *collective.Group) error) []error {
		begun := time.Now()
		errs := all(groups, call)
		for i, err := range errs {
			t.Log(name, i, err, time.Since(begun).Round(time.Millisecond), r[i].Len())
		}
		for _, g := range groups {
			require.NoError(t, g.Err(), name)
		}
		return errs
	}
	ctx := t.Context()
	check("zero counts", func(i int, g *collective.Group) error {
		_, err := g.Exchange(ctx, sts[i], r[i], collective.Part(r[i], 0, 0), []uint64{0, 0})
		return err
	})
	check("wrong counts at 0", func(i int, g *collective.Group) error {
		_, err := g.Exchange(ctx, sts[i], r[i], collective.Part(r[i], 0, 0), []uint64{0, 0, 0}[:3-i])
		return err
	})
	check("no counts", func(i int, g *collective.Group) error {
		_, err := g.Exchange(ctx, sts[i], r[i], collective.Part(r[i], 0, 0), nil)
		return err
	})
	check("overflow counts", func(i int, g *collective.Group) error {
		_, err := g.Exchange(ctx, sts[i], r[i], r[i], []uint64{^uint64(0), 101})
		return err
	})
	check("huge span", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[i], r[i], collective.Span{Addr: r[i].Ptr(), Size: 1 << 63})
		return err
	})
	check("huge span at 0", func(i int, g *collective.Group) error {
		if i == 1 {
			_, err := g.AllGather(ctx, sts[i], r[i], r[i])
			return err
		}
		_, err := g.AllGather(ctx, sts[i], r[i], collective.Span{Addr: r[i].Ptr(), Size: ^uint64(0)})
		return err
	})
	check("roots differ", func(i int, g *collective.Group) error {
		_, err := g.Gather(ctx, sts[i], i, r[i], r[i])
		return err
	})
	check("root -1", func(i int, g *collective.Group) error {
		_, err := g.Gather(ctx, sts[i], -1, r[i], r[i])
		return err
	})
	check("scatter root 2", func(i int, g *collective.Group) error {
		_, err := g.Scatter(ctx, sts[i], 2, r[i], r[i], []uint64{1, 2})
		return err
	})
	check("append root 9", func(i int, g *collective.Group) error {
		_, err := g.AppendFrom(ctx, sts[i], 9, r[i], r[i])
		return err
	})
	check("other calls", func(i int, g *collective.Group) error {
		if i == 0 {
			return g.Rebalance(ctx, sts[i], r[i])
		}
		_, err := g.AppendFrom(ctx, sts[i], 0, r[i], r[i])
		return err
	})
	check("stream of another", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[0], r[i], r[i])
		return err
	})
	check("no stream", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, nil, r[i], r[i])
		return err
	})
	check("nil dst", func(i int, g *collective.Group) error { return g.Rebalance(ctx, sts[i], nil) })
	check("part", func(i int, g *collective.Group) error { return g.Rebalance(ctx, sts[i], collective.Part(r[i], 0, 1)) })
	check("memory of another", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[i], r[0], r[0])
		return err
	})
	check("do with memory of another", func(i int, g *collective.Group) error {
		if i == 0 {
			return nil
		}
		return g.Do(ctx, sts[i], collective.Send(r[0], 1), collective.Recv(r[0], 1))
	})
	check("rebalance range and vector", func(i int, g *collective.Group) error {
		if i == 0 {
			return g.Rebalance(ctx, sts[i], r[0])
		}
		v, err := growable.FromRange[uint32](r[1])
		if err != nil {
			return err
		}
		return g.Rebalance(ctx, sts[i], v)
	})
	require.NoError(t, sts[0].BeginCapture())
	errs := check("captured at 0", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[i], r[i], r[i])
		return err
	})
	require.ErrorIs(t, errs[0], vmm.ErrCapturing)
	require.ErrorIs(t, errs[1], collective.ErrPeerFailed)
	check("captured rebalance", func(i int, g *collective.Group) error { return g.Rebalance(ctx, sts[i], r[i]) })
	check("captured do", func(i int, g *collective.Group) error {
		if i == 1 {
			return nil
		}
		return g.Do(ctx, sts[i], collective.AllReduce(r[i], r[i], collective.Uint8, collective.Sum))
	})
	gr, err := sts[0].EndCapture()
	t.Log(gr, err)
	if gr != nil {
		_ = gr.Close()
	}
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, r[0]))
	check("asleep at 0", func(i int, g *collective.Group) error { return g.Rebalance(ctx, sts[i], r[i]) })
	check("asleep at 0", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[i], r[i], r[i])
		return err
	})
	require.NoError(t, vmm.Wake(r[0]))
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	check("ended", func(i int, g *collective.Group) error {
		_, err := g.AllGather(cancelled, sts[i], r[i], r[i])
		return err
	})
	check("do ended", func(i int, g *collective.Group) error {
		return g.Do(cancelled, sts[i], collective.AllReduce(r[i], r[i], collective.Uint8, collective.Sum))
	})
	for _, n := range []uint64{0, 1, 2, 3} {
		require.NoError(t, r[0].SetLen(n))
		require.NoError(t, r[1].SetLen(0))
		for _, err := range check("rebalance few", func(i int, g *collective.Group) error { return g.Rebalance(ctx, sts[i], r[i]) }) {
			require.NoError(t, err)
		}
	}
	r[0].SetLen(0)
	for _, err := range check("empty allgather", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[i], r[i], r[i])
		return err
	}) {
		require.NoError(t, err)
	}
	fresh := []*vmm.Range{}
	for _, g := range groups {
		f, err := g.Device().NewRange(vmm.RangeOptions{Max: 1 << 20})
		require.NoError(t, err)
		defer f.Close()
		fresh = append(fresh, f)
	}
	for _, err := range check("fresh", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[i], fresh[i], fresh[i])
		return errors.Join(err, g.Rebalance(ctx, sts[i], fresh[i]))
	}) {
		require.NoError(t, err)
	}
	// beyond Max at one
	require.NoError(t, r[0].SetLen(100))
	require.NoError(t, fresh[1].Grow(1<<20))
	require.NoError(t, fresh[1].SetLen(1<<20))
	check("no room at 1", func(i int, g *collective.Group) error {
		_, err := g.AllGather(ctx, sts[i], fresh[i], r[i])
		return err
	})
	require.NoError(t, r[0].Close())
	check("closed at 0", func(i int, g *collective.Group) error { return g.Rebalance(ctx, sts[i], r[i]) })
	// ctx during
	ctx2, cancel2 := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel2()
	_, err = groups[1].AllGather(ctx2, sts[1], r[1], r[1])
	t.Log(err, groups[1].Err())
	t.Log(groups[0].Rebalance(ctx, sts[0], fresh[0]))
	t.Log(groups[0].Close(), groups[1].Close())
}
