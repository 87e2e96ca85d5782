package collectivetest_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// newRange is a range of small chunks with n bytes in it.
func newRange(t *testing.T, dev *vmm.Device, n int) *vmm.Range {
	t.Helper()
	r, err := dev.NewRange(vmm.RangeOptions{Max: 16 << 20})
	require.NoError(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			_ = r.Close()
		}
	})
	require.NoError(t, r.Append(make([]byte, n)))
	return r
}

func newStream(t *testing.T, dev *vmm.Device) *vmm.Stream {
	t.Helper()
	st, err := dev.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			_ = st.Close()
		}
	})
	return st
}

// all has each member make a call, and returns their errors.
func all(groups []*collective.Group, call func(i int, g *collective.Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = call(i, g) })
	}
	wg.Wait()
	return errs
}

// TestPartHasTheElementsOfTheWhole: a part of a range fits all, as the range does.
func TestPartHasTheElementsOfTheWhole(t *testing.T) {
	groups := collectivetest.Groups(t, 2)
	var dsts []*growable.Vector[float32]
	var srcs []*vmm.Range
	var sts []*vmm.Stream
	for _, g := range groups {
		v, err := growable.New[float32](g.Device(), growable.Options{MaxLen: 1000})
		require.NoError(t, err)
		t.Cleanup(func() { _ = v.Close() })
		dsts, srcs, sts = append(dsts, v), append(srcs, newRange(t, g.Device(), 64)), append(sts, newStream(t, g.Device()))
	}
	for _, err := range all(groups, func(i int, g *collective.Group) error {
		_, err := g.AllGather(t.Context(), sts[i], dsts[i], collective.Part(srcs[i], 8, 16))
		return err
	}) {
		require.NoError(t, err)
	}
	// The part of a part, and a part of a vector of other elements.
	for _, err := range all(groups, func(i int, g *collective.Group) error {
		src := collective.Memory(srcs[i])
		if i == 0 {
			src = collective.Part(collective.Part(dsts[i], 0, 16), 0, 16)
		}
		_, err := g.AllGather(t.Context(), sts[i], dsts[i], collective.Part(src, 0, 16))
		return err
	}) {
		require.NoError(t, err)
	}
	require.Equal(t, 16, dsts[0].Len())
	require.NoError(t, groups[0].Sync(t.Context(), sts[0]))
	require.ErrorIs(t, groups[0].Do(t.Context(), sts[0],
		collective.AllReduce(collective.Part(dsts[0], 0, 16), collective.Part(dsts[0], 0, 16), collective.Int32, collective.Sum)), vmm.ErrInvalid)
}

// TestPartOfMemoryThatCannotBeUsed says why, not that the part is outside.
func TestPartOfMemoryThatCannotBeUsed(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	st, r := newStream(t, g.Device()), newRange(t, g.Device(), 64)
	sum := func(m collective.Memory) error {
		return g.Do(t.Context(), st, collective.AllReduce(m, m, collective.Uint8, collective.Sum))
	}
	require.ErrorIs(t, sum(collective.Part(r, 60, 8)), vmm.ErrBounds)
	require.ErrorIs(t, sum(collective.Part(r, 8, ^uint64(0))), vmm.ErrBounds)
	require.ErrorIs(t, sum(collective.Part(nil, 0, 1)), vmm.ErrInvalid)
	require.ErrorIs(t, sum(collective.Part((*vmm.Range)(nil), 0, 1)), vmm.ErrInvalid)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, r))
	require.ErrorIs(t, sum(collective.Part(r, 0, 8)), vmm.ErrAsleep)
	require.ErrorIs(t, sum(collective.Part(collective.Part(r, 0, 8), 0, 64)), vmm.ErrAsleep)
	require.NoError(t, vmm.Wake(r))
	require.NoError(t, sum(collective.Part(r, 0, 8)))
	require.NoError(t, g.Sync(t.Context(), st))
	require.NoError(t, r.SetLen(0))
	require.NoError(t, r.Close())
	require.ErrorIs(t, sum(collective.Part(r, 0, 8)), vmm.ErrClosed)
	require.NoError(t, g.Err())
}

// TestSyncOfABadStream: what cannot be waited for is refused, and the group goes on.
func TestSyncOfABadStream(t *testing.T) {
	groups := collectivetest.Groups(t, 2)
	g, other := groups[0], newStream(t, groups[1].Device())
	closed := newStream(t, g.Device())
	require.NoError(t, closed.Close())
	require.ErrorIs(t, g.Sync(t.Context(), nil), vmm.ErrInvalid)
	require.ErrorIs(t, g.Sync(t.Context(), &vmm.Stream{}), vmm.ErrInvalid)
	require.ErrorIs(t, g.Sync(t.Context(), other), vmm.ErrInvalid)
	require.ErrorIs(t, g.Sync(t.Context(), closed), vmm.ErrClosed)
	captured := newStream(t, g.Device())
	require.NoError(t, captured.BeginCapture())
	require.ErrorIs(t, g.Sync(t.Context(), captured), vmm.ErrCapturing)
	graph, err := captured.EndCapture()
	require.NoError(t, err)
	require.NoError(t, graph.Close())
	require.NoError(t, g.Err())
}

// TestGrowingInMemoryOfAnotherDevice: the members that could make the call go on.
func TestGrowingInMemoryOfAnotherDevice(t *testing.T) {
	groups := collectivetest.Groups(t, 2)
	var sts []*vmm.Stream
	var rs []*vmm.Range
	for _, g := range groups {
		sts, rs = append(sts, newStream(t, g.Device())), append(rs, newRange(t, g.Device(), 10))
	}
	for name, calls := range map[string]func(dst, src *vmm.Range, i int, g *collective.Group) error{
		"dst": func(dst, src *vmm.Range, i int, g *collective.Group) error {
			_, err := g.AllGather(t.Context(), sts[i], dst, rs[i])
			return err
		},
		"src": func(dst, src *vmm.Range, i int, g *collective.Group) error {
			_, err := g.AllGather(t.Context(), sts[i], rs[i], src)
			return err
		},
		"rebalance": func(dst, src *vmm.Range, i int, g *collective.Group) error {
			return g.Rebalance(t.Context(), sts[i], dst)
		},
	} {
		errs := all(groups, func(i int, g *collective.Group) error {
			return calls(rs[1], rs[1], i, g)
		})
		require.Error(t, errs[0], name)
		require.NotErrorIs(t, errs[0], collective.ErrAborted, name)
		require.ErrorIs(t, errs[1], collective.ErrPeerFailed, name)
		require.NoError(t, groups[0].Err(), name)
	}
}

// TestClipWhileACallGrows: another goroutine gives memory back that the call needs.
func TestClipWhileACallGrows(t *testing.T) {
	var armed atomic.Bool
	var clip func()
	devs := []*vmm.Device{vmmtest.Device(t), vmmtest.Device(t, func(c drivertest.Call) error {
		if c.Name == "Create" && armed.CompareAndSwap(true, false) {
			clip()
		}
		return nil
	})}
	groups := collectivetest.GroupsOn(t, devs...)
	var sts []*vmm.Stream
	var dsts, srcs []*vmm.Range
	for _, g := range groups {
		sts = append(sts, newStream(t, g.Device()))
		dsts, srcs = append(dsts, newRange(t, g.Device(), 0)), append(srcs, newRange(t, g.Device(), 100))
	}
	var clipped error
	clip = func() { // once rank 0 has grown
		for dsts[0].Cap() == 0 {
			runtime.Gosched()
		}
		done := make(chan struct{})
		go func() { // not in the hook, which is called while memory of rank 1 is locked
			defer close(done)
			clipped = dsts[0].Clip()
		}()
		<-done
	}
	armed.Store(true)
	gather := func(i int, g *collective.Group) error {
		_, err := g.AllGather(t.Context(), sts[i], dsts[i], srcs[i])
		return err
	}
	for i, err := range all(groups, gather) {
		require.NoError(t, err, "rank %d; clip: %v", i, clipped)
		require.EqualValues(t, 200, dsts[i].Len())
	}
	require.False(t, armed.Load())
	if clipped != nil { // else it came before rank 0 held what it had grown, which then grew again
		require.ErrorIs(t, clipped, vmm.ErrBusy)
	}
	for _, g := range groups {
		require.NoError(t, g.Err())
	}
}

// TestClipWhileACallWaits: another goroutine gives memory back that the others were told of.
func TestClipWhileACallWaits(t *testing.T) {
	groups := collectivetest.Groups(t, 2)
	var sts []*vmm.Stream
	var dsts, srcs []*vmm.Range
	for _, g := range groups {
		sts = append(sts, newStream(t, g.Device()))
		dsts, srcs = append(dsts, newRange(t, g.Device(), 0)), append(srcs, newRange(t, g.Device(), 100))
		require.NoError(t, dsts[len(dsts)-1].Grow(1000))
	}
	for i, err := range all(groups, func(i int, g *collective.Group) error {
		if i == 1 {
			for groups[0].Stats().Calls == 0 {
				runtime.Gosched()
			}
			require.ErrorIs(t, dsts[0].Clip(), vmm.ErrBusy)
			require.ErrorIs(t, srcs[0].Close(), vmm.ErrBusy)
		}
		_, err := g.AllGather(t.Context(), sts[i], dsts[i], srcs[i])
		return err
	}) {
		require.NoError(t, err, "rank %d", i)
	}
	for i, g := range groups {
		require.NoError(t, g.Sync(t.Context(), sts[i]))
		require.NoError(t, dsts[i].Clip())
		require.NoError(t, srcs[i].Close())
	}
}

// TestSpansThatAreTooLong are refused.
func TestSpansThatAreTooLong(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	st, r := newStream(t, g.Device()), newRange(t, g.Device(), 64)
	for _, n := range []uint64{1 << 63, ^uint64(0), ^uint64(0) - uint64(r.Ptr()) + 1, 1 << 62} {
		s := collective.Span{Addr: r.Ptr(), Size: n, Access: vmm.AccessReadWrite}
		require.Error(t, g.Do(t.Context(), st, collective.AllReduce(s, s, collective.Uint8, collective.Sum)), "%#x", n)
		_, err := g.AllGather(t.Context(), st, r, s)
		require.Error(t, err, "%#x", n)
		_, err = g.Exchange(t.Context(), st, r, s, []uint64{n})
		require.Error(t, err, "%#x", n)
	}
	require.NoError(t, g.Err())
	two := collectivetest.Groups(t, 2)[0]
	st, r = newStream(t, two.Device()), newRange(t, two.Device(), 64)
	s := collective.Span{Addr: r.Ptr(), Size: 1 << 63, Access: vmm.AccessRead}
	require.Error(t, two.Do(t.Context(), st, collective.AllGatherInto(collective.Part(r, 0, 0), s)))
	require.NoError(t, two.Err())
}

// TestNilPointers: nil pointers of each kind are refused.
func TestNilPointers(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	st, r := newStream(t, g.Device()), newRange(t, g.Device(), 64)
	for _, m := range []collective.Memory{
		nil, (*vmm.Range)(nil), &vmm.Range{}, (*growable.Vector[int32])(nil), &growable.Vector[int32]{}, (*growable.Rows[int32])(nil),
		collective.Span{}, collective.Part(nil, 0, 0), collective.Part((*growable.Rows[int32])(nil), 0, 0),
	} {
		for _, op := range []collective.Op{
			{},
			collective.AllReduce(m, r, collective.Uint8, collective.Sum), collective.AllReduce(r, m, collective.Uint8, collective.Sum),
			collective.Reduce(0, m, r, collective.Uint8, collective.Sum), collective.Broadcast(0, r, m),
			collective.AllGatherInto(m, r), collective.AllGatherInto(r, m), collective.ReduceScatter(m, r, collective.Uint8, collective.Sum),
			collective.Send(m, 0), collective.Recv(m, 0), collective.Send(r, 1), collective.Recv(r, -1), collective.Broadcast(1, r, r),
			collective.AllReduce(r, r, collective.Kind(77), collective.Sum), collective.AllReduce(r, r, collective.Uint8, collective.Reduction(77)),
		} {
			require.ErrorIs(t, g.Do(t.Context(), st, op), vmm.ErrInvalid, "%T", m)
		}
		_, err := g.AllGather(t.Context(), st, m, r)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.AllGather(t.Context(), st, r, m)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.AllGather(t.Context(), nil, r, r)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.Exchange(t.Context(), st, m, r, []uint64{64})
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.Gather(t.Context(), st, 0, m, r)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.Gather(t.Context(), st, 1, r, r)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.Scatter(t.Context(), st, 0, m, r, []uint64{64})
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.Scatter(t.Context(), st, -1, r, r, []uint64{64})
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, err = g.AppendFrom(t.Context(), st, 0, r, m)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.ErrorIs(t, g.Rebalance(t.Context(), st, m), vmm.ErrInvalid)
		_, err = g.Register(t.Context(), m, collective.RegisterOptions{})
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	require.NoError(t, g.Err())
	require.EqualValues(t, 64, r.Len())
}

// TestDriverFailsWhileMembersAgree: the driver fails while the members exchange what they send.
// That ends the group of this member: else its next call would meet the others' last one.
func TestDriverFailsWhileMembersAgree(t *testing.T) {
	for _, from := range []string{"Launch", "Create"} { // of what is told first, and after growth
		t.Run(from, func(t *testing.T) {
			var armed, fails atomic.Bool
			hook := func(c drivertest.Call) error {
				if armed.Load() && c.Name == from {
					fails.Store(true)
				}
				if fails.Load() && c.Name == "SyncStream" {
					armed.Store(false)
					fails.Store(false)
					return vmm.ErrOutOfMemory
				}
				return nil
			}
			groups := collectivetest.GroupsOn(t, vmmtest.Device(t, hook), vmmtest.Device(t))
			var sts []*vmm.Stream
			var dsts, srcs []*vmm.Range
			for _, g := range groups {
				sts = append(sts, newStream(t, g.Device()))
				dsts, srcs = append(dsts, newRange(t, g.Device(), 0)), append(srcs, newRange(t, g.Device(), 100))
			}
			armed.Store(true)
			errs := all(groups, func(i int, g *collective.Group) error {
				_, err := g.AllGather(t.Context(), sts[i], dsts[i], srcs[i])
				if i == 0 && err != nil && g.Err() == nil {
					_ = groups[1].Abort() // which waits for this member
				}
				if i == 1 && err == nil { // all was told, so it waits for what is moved
					err = g.Sync(t.Context(), sts[i])
				}
				return err
			})
			require.ErrorIs(t, errs[0], vmm.ErrOutOfMemory)
			require.ErrorIs(t, groups[0].Err(), collective.ErrAborted)
			require.ErrorIs(t, errs[1], collective.ErrPeerGone)
			require.Zero(t, dsts[0].Len())
		})
	}
}

// TestOperationsThatMeet: what one operation of a call writes no other one may use, and what they
// only send several may.
func TestOperationsThatMeet(t *testing.T) {
	t.Parallel()
	ps := peers(t, collectivetest.Options{}, 2)
	first, second, both := func(p *peer) collective.Memory { return collective.Part(p.f, 0, 8) },
		func(p *peer) collective.Memory { return collective.Part(p.f, 8, 8) }, func(p *peer) collective.Memory { return collective.Part(p.f, 4, 8) }
	for name, ops := range map[string][]collective.Op{
		"received twice":    {collective.Recv(first(ps[0]), 1), collective.Recv(both(ps[0]), 1)},
		"received and sent": {collective.Recv(first(ps[0]), 1), collective.Send(both(ps[0]), 1)},
		"sent and received": {collective.Send(both(ps[0]), 1), collective.Recv(second(ps[0]), 1)},
		"summed twice": {
			collective.AllReduce(ps[0].f, ps[0].f, collective.Float32, collective.Sum), collective.AllReduce(first(ps[0]), first(ps[0]), collective.Float32, collective.Sum),
		},
	} {
		require.ErrorIs(t, ps[0].g.Do(t.Context(), ps[0].st, ops...), vmm.ErrInvalid, name)
	}
	for i, p := range ps {
		require.NoError(t, p.g.Do(t.Context(), p.st, collective.Send(first(p), 1-i), collective.Send(first(p), 1-i),
			collective.Recv(second(p), 1-i), collective.Recv(collective.Part(p.f, 16, 8), 1-i)))
	}
	for _, p := range ps {
		require.NoError(t, p.sync())
	}
}
