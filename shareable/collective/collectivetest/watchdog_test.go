package collectivetest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
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
// member dies, and returns the error until the group is closed, which says what was not written.
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
				require.ErrorIs(t, wait(groups[0], st, v), kind, "as often as it is asked")
				// The group knows before the work is stopped. Until then it is not done.
				done, err := st.Done()
				for ; !done && err == nil; done, err = st.Done() {
					runtime.Gosched()
				}
				require.ErrorIs(t, err, kind)
				require.NoError(t, groups[0].Abort())
				written := groups[0].Unwritten()
				require.Len(t, written, 1)
				require.Equal(t, v.Range().Ptr(), written[0].Addr)
				require.EqualValues(t, 24, written[0].Size)
				require.NoError(t, st.Sync())
				_, err = v.ReadAt(buf, 0)
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

// TestOthersStop: a group that goes on says of work that another one has stopped what it is, and not that
// a member of its own is gone.
func TestOthersStop(t *testing.T) {
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
	require.NoError(t, dies[0].Abort())
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
			_, errs[rank] = collectivetest.JoinOn(t.Context(), dev, collective.Options{Rank: rank, Size: len(errs), Timeout: 500 * time.Millisecond}, neverJoins{}, at)
		})
	}
	all.Wait()
	for _, err := range errs {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, collective.ErrPeerGone)
	}
}
