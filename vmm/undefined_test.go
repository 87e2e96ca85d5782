package vmm_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestUndefined: what only reads bytes that stopped work was to write fails, until they are
// written again, dropped, or unmapped.
func TestUndefined(t *testing.T) {
	dev := vmmtest.Device(t)
	s, other := newStream(t, dev), newStream(t, dev)
	t.Cleanup(func() { require.NoError(t, errors.Join(s.Close(), other.Close())) })
	stopped := errors.New("a member is gone")
	filled := func(t *testing.T) *vmm.Range {
		t.Helper()
		g, err := dev.NewRange(vmm.RangeOptions{Max: 64 << 20})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, g.Close()) })
		require.NoError(t, g.Append(make([]byte, 1000)))
		return g
	}
	mark := func(t *testing.T) *vmm.Range {
		t.Helper()
		g := filled(t)
		s.MarkUndefined(stopped, 0, vmm.Span{Addr: g.Ptr() + 100, Size: 100}, vmm.Span{})
		return g
	}
	b := make([]byte, 10)
	read := func(g *vmm.Range, off int64) error { _, err := g.ReadAt(b, off); return err }

	t.Run("reads", func(t *testing.T) {
		g, to := mark(t), filled(t)
		for name, err := range map[string]error{
			"first":           read(g, 91),
			"last":            read(g, 199),
			"copy out":        dev.CopyOut(b, g.Ptr()+150),
			"stream copy out": other.CopyOut(b, g.Ptr()+150),
			"copy":            other.Copy(to.Ptr(), g.Ptr()+150, 10),
			"sync":            s.Sync(),
		} {
			require.ErrorIs(t, err, stopped, name)
		}
		_, err := other.LockSpans(vmm.Span{Addr: g.Ptr() + 150, Size: 1, Access: vmm.AccessRead})
		require.ErrorIs(t, err, stopped)
		require.NoError(t, read(g, 90))
		require.NoError(t, read(g, 200))
		require.NoError(t, other.Sync())
		require.NoError(t, other.Copy(g.Ptr()+150, to.Ptr(), 10), "it may be written again")

		dev.MarkWritten(vmm.Span{Addr: g.Ptr() + 120, Size: 30})
		require.NoError(t, read(g, 130))
		require.ErrorIs(t, read(g, 115), stopped)
		require.ErrorIs(t, read(g, 145), stopped)
		require.ErrorIs(t, s.Sync(), stopped)
		dev.MarkWritten(vmm.Span{Addr: g.Ptr(), Size: 1000})
		require.NoError(t, read(g, 115))
		require.NoError(t, s.Sync())
	})
	t.Run("dropped", func(t *testing.T) {
		g := mark(t)
		require.NoError(t, g.SetLen(150))
		require.ErrorIs(t, read(g, 140), stopped)
		require.NoError(t, g.Append(make([]byte, 50)))
		require.NoError(t, read(g, 150))
		require.NoError(t, g.SetLen(100))
		require.NoError(t, s.Sync())
	})
	t.Run("unmapped", func(t *testing.T) {
		c, err := dev.Create(2<<20, vmm.Prop{})
		require.NoError(t, err)
		r, err := dev.Reserve(c.Size(), vmm.ReserveOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, errors.Join(r.Close(), c.Close())) })
		require.NoError(t, r.Map(0, c))
		s.MarkUndefined(stopped, 0, vmm.Span{Addr: r.Ptr(), Size: 100})
		require.ErrorIs(t, dev.CopyOut(b, r.Ptr()), stopped)
		require.NoError(t, r.Unmap(0, c.Size()))
		require.NoError(t, s.Sync())
		require.NoError(t, r.Map(0, c))
		require.NoError(t, dev.CopyOut(b, r.Ptr()), "what is mapped may be other memory")
	})
	t.Run("closed", func(t *testing.T) {
		g := mark(t)
		require.NoError(t, g.Close())
		require.NoError(t, s.Sync())
	})
	t.Run("closed asleep", func(t *testing.T) {
		g := mark(t)
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		require.ErrorIs(t, s.Sync(), stopped)
		require.NoError(t, g.Close())
		require.NoError(t, s.Sync(), "another reservation may get the addresses")
	})
	t.Run("nothing", func(t *testing.T) {
		g := filled(t)
		s.MarkUndefined(nil, 0, vmm.Span{Addr: g.Ptr(), Size: 1})
		(*vmm.Stream)(nil).MarkUndefined(stopped, 0, vmm.Span{Addr: g.Ptr(), Size: 1})
		(*vmm.Device)(nil).MarkWritten(vmm.Span{Addr: g.Ptr(), Size: 1})
		require.NoError(t, s.Sync())
	})
}

// TestUndefinedButForDrops: what was given up since work was queued is not undefined if the work is
// stopped; what was appended since, and all that is not remembered any more, is.
func TestUndefinedButForDrops(t *testing.T) {
	dev := vmmtest.Device(t)
	s := newStream(t, dev)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	stopped := errors.New("a member is gone")
	drops := dev.NewDrops()
	t.Cleanup(drops.Close)
	long := func(t *testing.T) (*vmm.Range, vmm.Span) {
		t.Helper()
		g, err := dev.NewRange(vmm.RangeOptions{Max: 64 << 20})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, g.Close()) })
		require.NoError(t, g.Append(make([]byte, 1000)))
		return g, vmm.Span{Addr: g.Ptr(), Size: 1000}
	}
	undefined := func(g *vmm.Range) (at []int) {
		for i := range int(g.Len()) {
			if _, err := g.ReadAt(make([]byte, 1), int64(i)); err != nil {
				at = append(at, i)
			}
		}
		if len(at) == 0 {
			return nil
		}
		return []int{at[0], at[len(at)-1] + 1, len(at)}
	}
	for name, c := range map[string]struct {
		do   func(t *testing.T, g *vmm.Range)
		want []int
	}{
		"nothing":  {func(*testing.T, *vmm.Range) {}, []int{0, 1000, 1000}},
		"dropped":  {func(t *testing.T, g *vmm.Range) { require.NoError(t, g.SetLen(400)) }, []int{0, 400, 400}},
		"anew":     {func(t *testing.T, g *vmm.Range) { require.NoError(t, errors.Join(g.SetLen(400), g.SetLen(700))) }, []int{0, 400, 400}},
		"appended": {func(t *testing.T, g *vmm.Range) { require.NoError(t, g.SetLen(1500)) }, []int{0, 1000, 1000}},
		"written": {func(_ *testing.T, g *vmm.Range) {
			dev.MarkWritten(vmm.Span{Addr: g.Ptr() + 200, Size: 100}, vmm.Span{Addr: g.Ptr() + 500, Size: 100})
		}, []int{0, 1000, 800}},
		"forgotten": {func(t *testing.T, g *vmm.Range) {
			require.NoError(t, g.SetLen(400))
			drops.Forget(drops.Now())
			require.NoError(t, g.SetLen(1000))
		}, []int{0, 1000, 1000}},
		"too many": {func(t *testing.T, g *vmm.Range) {
			require.NoError(t, g.SetLen(400))
			for range 1 << 17 {
				dev.MarkWritten(vmm.Span{Addr: g.Ptr() + 500, Size: 1})
			}
			require.NoError(t, g.SetLen(1000))
		}, []int{0, 1000, 999}},
	} {
		t.Run(name, func(t *testing.T) {
			g, all := long(t)
			require.NoError(t, g.SetLen(900))
			before := drops.Now()
			require.NoError(t, g.SetLen(1000))
			since := drops.Now()
			c.do(t, g)
			s.MarkUndefined(stopped, since, all)
			require.Equal(t, c.want, undefined(g))
			dev.MarkWritten(all)
			s.MarkUndefined(stopped, before, all)
			require.Nil(t, undefined(g), "all was given up by MarkWritten")
			s.MarkUndefined(stopped, 0, all)
			require.Equal(t, int(min(g.Len(), 1000)), undefined(g)[2], "since now")
		})
	}
	t.Run("closed", func(t *testing.T) {
		g, all := long(t)
		since := drops.Now()
		require.NoError(t, g.Close())
		s.MarkUndefined(stopped, since, all)
		require.NoError(t, s.Undefined(), "another may have the addresses")
	})
	t.Run("no device", func(t *testing.T) {
		none := (*vmm.Device)(nil).NewDrops()
		require.Zero(t, none.Now())
		none.Forget(1)
		none.Close()
		require.Zero(t, (&vmm.Drops{}).Now())
	})
}

// TestOnGraphLaunch: a function is called around each launch, also of a graph that took over
// another's work, and of none that was captured without it.
func TestOnGraphLaunch(t *testing.T) {
	dev := vmmtest.Device(t)
	s, on := newStream(t, dev), newStream(t, dev)
	t.Cleanup(func() { require.NoError(t, errors.Join(s.Close(), on.Close())) })
	var calls []string
	refused := errors.New("refused")
	var refuse error
	watch := func(of *vmm.Stream) (func(), error) {
		if refuse != nil {
			return nil, refuse
		}
		require.Same(t, on, of)
		e, err := of.Record()
		require.NoError(t, err)
		calls = append(calls, "before")
		return func() {
			require.NoError(t, e.Close())
			calls = append(calls, "after")
		}, nil
	}
	require.ErrorIs(t, s.OnGraphLaunch(watch), vmm.ErrInvalid)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 2 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 100)))
	capture := func(watched bool) *vmm.GraphExec {
		require.NoError(t, s.BeginCapture())
		if watched {
			require.NoError(t, s.OnGraphLaunch(watch))
		}
		require.NoError(t, s.Fill(g.Ptr(), 7, 1, 100))
		graph, err := s.EndCapture()
		require.NoError(t, err)
		x, err := graph.Instantiate()
		require.NoError(t, err)
		if watched {
			require.NoError(t, x.Update(graph))
		}
		require.NoError(t, graph.Close())
		return x
	}
	watched, plain := capture(true), capture(false)
	require.NoError(t, plain.Launch(on))
	require.Empty(t, calls)
	require.NoError(t, watched.Launch(on))
	require.NoError(t, watched.Launch(on))
	require.Equal(t, []string{"before", "after", "before", "after"}, calls)
	refuse = refused
	require.ErrorIs(t, watched.Launch(on), refused)
	require.Len(t, calls, 4)
	require.NoError(t, errors.Join(on.Sync(), watched.Close(), plain.Close(), g.Close()))
}
