package collectivetest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// queuedAlone is two members, of which the first has queued a call that the other never makes.
func queuedAlone(t *testing.T, o collectivetest.Options) (groups []*collective.Group, st *vmm.Stream, v *growable.Vector[uint64]) {
	t.Helper()
	groups = collectivetest.New(t, o, vmmtest.Device(t), vmmtest.Device(t))
	g := groups[0]
	st = newStream(t, g.Device())
	v, err := growable.New[uint64](g.Device(), growable.Options{MaxLen: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	require.NoError(t, g.Do(t.Context(), st, collective.AllReduce(v, v, collective.Uint64, collective.Sum)))
	return groups, st, v
}

// TestQueuedCallsEnd: whatever waits for a call that is queued ends with the call, if another
// member dies, and returns the error as long as the bytes are undefined.
func TestQueuedCallsEnd(t *testing.T) {
	buf := make([]uint64, 3)
	for name, wait := range map[string]func(*collective.Group, *vmm.Stream, *growable.Vector[uint64]) error{
		"Group.Sync": func(g *collective.Group, st *vmm.Stream, _ *growable.Vector[uint64]) error {
			return g.Sync(t.Context(), st)
		},
		"Stream.Sync": func(_ *collective.Group, st *vmm.Stream, _ *growable.Vector[uint64]) error { return st.Sync() },
		"Vector.ReadAt": func(_ *collective.Group, _ *vmm.Stream, v *growable.Vector[uint64]) error {
			_, err := v.ReadAt(buf, 0)
			return err
		},
	} {
		for how, silent := range map[string]bool{"its end is seen": false, "its end is not seen": true} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				kind := collective.ErrPeerGone
				o := collectivetest.Options{Silent: silent, Timeout: time.Minute}
				if silent {
					kind, o.Timeout = os.ErrDeadlineExceeded, 300*time.Millisecond
				}
				groups, st, v := queuedAlone(t, o)
				require.NoError(t, collectivetest.Kill(groups[1]))
				require.ErrorIs(t, wait(groups[0], st, v), kind)
				require.ErrorIs(t, groups[0].Err(), kind)
				require.NoError(t, groups[0].Abort())
				require.ErrorIs(t, wait(groups[0], st, v), collective.ErrAborted, "the bytes are still undefined")
				groups[0].Device().MarkWritten(vmm.Span{Addr: v.Range().Ptr(), Size: 24})
				require.NoError(t, st.Sync())
				_, err := v.ReadAt(buf, 0)
				require.NoError(t, err)
				require.NoError(t, errors.Join(v.Close(), st.Close()))
			})
		}
	}
}

// TestOwnWorkIsNotTimed: a call that is queued behind work of the program's own has its whole time,
// which is over several times meanwhile for calls whose other member is late. Those are no reason
// to say that a member is gone.
func TestOwnWorkIsNotTimed(t *testing.T) {
	o := collectivetest.Options{Timeout: 200 * time.Millisecond}
	ps := peers(t, o, 2)
	started, release := make(chan struct{}), make(chan struct{})
	m, _, err := ps[0].dev.LoadModule(vmm.Code{Host: map[string]vmm.HostKernel{"wait": {Run: func(*vmm.Launch) error {
		close(started)
		<-release
		return nil
	}}}})
	require.NoError(t, err)
	f, err := m.Function("wait")
	require.NoError(t, err)
	require.NoError(t, f.Launch(ps[0].st, &vmm.Launch{}, nil))
	<-started
	require.NoError(t, ps[0].sum())
	for range 3 {
		late := peers(t, o, 2)
		require.NoError(t, late[0].sum())
		err := late[0].sync()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, collective.ErrPeerGone)
	}
	require.NoError(t, ps[0].g.Err())
	close(release)
	require.NoError(t, ps[1].sum())
	for _, p := range ps {
		require.NoError(t, p.sync())
	}
	require.NoError(t, m.Close())
}

// TestGivenUpInFlight: what the program gives up while a call that writes it is queued is not
// undefined once the call is stopped, and can be other memory by then.
func TestGivenUpInFlight(t *testing.T) {
	const size = 512
	for name, drop := range map[string]func(*pool.Pool, *peer, pool.Block, *growable.Vector[uint64]) error{
		"freed":     func(p *pool.Pool, m *peer, b pool.Block, _ *growable.Vector[uint64]) error { return p.Free(m.st, b) },
		"freed now": func(p *pool.Pool, _ *peer, b pool.Block, _ *growable.Vector[uint64]) error { return p.FreeNow(b) },
		"dropped":   func(_ *pool.Pool, _ *peer, _ pool.Block, v *growable.Vector[uint64]) error { return v.SetLen(0) },
	} {
		t.Run(name, func(t *testing.T) {
			ps := peers(t, collectivetest.Options{}, 2)
			m := ps[0]
			p, err := pool.New(m.dev, pool.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			neighbour, err := p.Alloc(m.st, size) // keeps the memory mapped
			require.NoError(t, err)
			b, err := p.Alloc(m.st, size)
			require.NoError(t, err)
			v, err := growable.New[uint64](m.dev, growable.Options{MaxLen: 1 << 20})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, v.Close()) })
			require.NoError(t, v.Append(make([]uint64, size/8)...))
			var of collective.Memory = b
			if name == "dropped" {
				of = v
			}
			require.NoError(t, m.g.Do(t.Context(), m.st, collective.Recv(of, 1)))
			require.NoError(t, drop(p, m, b, v))
			require.NoError(t, collectivetest.Kill(ps[1].g))
			require.ErrorIs(t, m.sync(), collective.ErrPeerGone)
			require.NoError(t, m.g.Abort())
			require.NoError(t, m.st.Sync())
			next := b
			if name != "dropped" {
				next, err = p.Alloc(m.st, size)
				require.NoError(t, err)
				require.Equal(t, b.Ptr(), next.Ptr())
				require.NoError(t, m.dev.CopyOut(make([]byte, size), next.Ptr()))
			}
			require.NoError(t, errors.Join(p.Free(m.st, next), p.Free(m.st, neighbour)))
		})
	}
}

// TestOthersUndefinedBytes: a group that goes on says of bytes that another one left undefined what
// they are, and not that a member of its own is gone.
func TestOthersUndefinedBytes(t *testing.T) {
	devs := []*vmm.Device{vmmtest.Device(t), vmmtest.Device(t)}
	dies, lives := collectivetest.GroupsOn(t, devs...), collectivetest.GroupsOn(t, devs...)
	m := newPeer(t, devs[0])
	require.NoError(t, dies[0].Do(t.Context(), m.st, collective.AllReduce(m.f, m.f, collective.Float32, collective.Sum)))
	require.NoError(t, collectivetest.Kill(dies[1]))
	require.ErrorIs(t, dies[0].Sync(t.Context(), m.st), collective.ErrPeerGone)
	err := lives[0].Sync(t.Context(), m.st)
	require.ErrorContains(t, err, "another group")
	require.NotErrorIs(t, err, collective.ErrPeerGone)
	require.NotErrorIs(t, err, collective.ErrAborted)
	require.NoError(t, lives[0].Err())
	devs[0].MarkWritten(vmm.Span{Addr: m.f.Ptr(), Size: m.f.Len()})
	require.NoError(t, lives[0].Sync(t.Context(), m.st))
}

// neverJoins is an engine's maker that waits for a member for ever.
type neverJoins struct{ *hostengine.Worlds }

func (neverJoins) Join(ctx context.Context, _ *vmm.Device, _ nccl.ID, _, _ int) (engine.Engine, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestJoinTakesTooLong: members that have met and do not connect are late, for each of them.
func TestJoinTakesTooLong(t *testing.T) {
	at, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	errs := make([]error, 3)
	var all sync.WaitGroup
	for rank := range errs {
		dev := vmmtest.Device(t)
		all.Go(func() {
			_, errs[rank] = collective.JoinOn(t.Context(), dev, collective.Options{Rank: rank, Size: len(errs), Timeout: 500 * time.Millisecond}, neverJoins{}, at)
		})
	}
	all.Wait()
	for _, err := range errs {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, collective.ErrPeerGone)
	}
}
