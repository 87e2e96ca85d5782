package collectivetest_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// recorder is a test that notes its errors, and ends when it is told to.
type recorder struct {
	testing.TB
	mu   sync.Mutex
	errs []string
	last []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, fmt.Sprintf(format, args...))
}

func (r *recorder) Cleanup(f func()) { r.last = append(r.last, f) }

// end runs the cleanups and returns the errors.
func (r *recorder) end() []string {
	for _, f := range slices.Backward(r.last) {
		f()
	}
	return r.errs
}

// peers are members of a new group, each with memory.
func peers(t *testing.T, o collectivetest.Options, n int) []*peer {
	t.Helper()
	ps, devs := make([]*peer, n), make([]*vmm.Device, n)
	for i := range ps {
		devs[i] = vmmtest.Device(t)
		ps[i] = newPeer(t, devs[i])
	}
	for i, g := range collectivetest.New(t, o, devs...) {
		ps[i].g = g
	}
	return ps
}

func (p *peer) sum() error {
	return p.g.Do(p.t.Context(), p.st, collective.AllReduce(p.f, p.f, collective.Float32, collective.Sum))
}

func (p *peer) sync() error { return p.g.Sync(p.t.Context(), p.st) }

// TestGroups: each member has a device of its own, and the groups end with the test.
func TestGroups(t *testing.T) {
	r := &recorder{TB: t}
	groups := collectivetest.Groups(r, 3)
	for i, g := range groups {
		require.Equal(t, i, g.Rank())
		require.Equal(t, 3, g.Size())
		require.NotSame(t, groups[(i+1)%3].Device(), g.Device())
		require.Equal(t, "host", g.Engine())
	}
	require.Empty(t, r.end())
	for _, g := range groups {
		require.ErrorIs(t, g.Err(), vmm.ErrClosed)
		require.ErrorIs(t, g.Device().Sync(), vmm.ErrClosed)
	}
}

// TestGroupsOnOneDevice.
func TestGroupsOnOneDevice(t *testing.T) {
	dev := vmmtest.Device(t)
	ps := []*peer{newPeer(t, dev), newPeer(t, dev)}
	for i, g := range collectivetest.GroupsOn(t, dev, dev) {
		ps[i].g = g
		require.NoError(t, dev.CopyIn(ps[i].f.Ptr(), []byte{byte(i + 1)}))
	}
	together(ps, func(i int, p *peer) {
		op := collective.AllReduce(p.f, p.f, collective.Uint8, collective.Sum)
		require.NoError(t, p.g.Do(t.Context(), p.st, op), i)
		require.NoError(t, p.sync(), i)
	})
	require.Equal(t, byte(3), contents(t, ps[0].f)[0])
	require.Equal(t, byte(3), contents(t, ps[1].f)[0])
}

// TestKillOnOneDevice: it does not wait for what the other member has queued on the device.
func TestKillOnOneDevice(t *testing.T) {
	dev := vmmtest.Device(t)
	ps := []*peer{newPeer(t, dev), newPeer(t, dev)}
	for i, g := range collectivetest.GroupsOn(t, dev, dev) {
		ps[i].g = g
	}
	require.NoError(t, ps[1].sum())
	require.NoError(t, collectivetest.Kill(ps[0].g))
	require.ErrorIs(t, ps[1].sync(), collective.ErrPeerGone)
}

// TestMembersThatDisagree: all learn of it at once, and who calls what.
func TestMembersThatDisagree(t *testing.T) {
	ps := peers(t, collectivetest.Options{}, 2)
	together(ps, func(i int, p *peer) {
		k := collective.Float32
		if i == 1 {
			k = collective.Int32
		}
		require.NoError(t, p.g.Do(t.Context(), p.st, collective.AllReduce(p.f, p.f, k, collective.Sum)))
		err := p.sync()
		require.ErrorIs(t, err, collective.ErrFailed)
		require.ErrorContains(t, err, "rank 0")
		require.ErrorContains(t, err, "rank 1")
		require.ErrorContains(t, err, "float32")
		require.ErrorContains(t, err, "int32")
		require.ErrorIs(t, p.g.Err(), collective.ErrAborted)
		require.ErrorIs(t, p.st.Sync(), collective.ErrFailed, "the stream is free")
	})
}

// TestKill: the others get ErrPeerGone with the rank, and the memory of all can be used.
func TestKill(t *testing.T) {
	ps := peers(t, collectivetest.Options{}, 3)
	require.NoError(t, ps[2].sum())
	require.NoError(t, collectivetest.Kill(ps[2].g))
	require.NoError(t, ps[2].st.Sync(), "the stream is free")
	require.NotEmpty(t, ps[2].g.Unwritten())
	together(ps[:2], func(_ int, p *peer) {
		err := p.sum()
		if err == nil { // it has not been heard of yet
			err = p.sync()
		}
		require.ErrorIs(t, err, collective.ErrPeerGone)
		require.ErrorContains(t, err, "rank 2")
		_, err = p.g.AllGather(t.Context(), p.st, p.x, p.y)
		require.ErrorIs(t, err, collective.ErrPeerGone)
		require.ErrorIs(t, err, collective.ErrAborted)
	})
	for _, p := range ps {
		require.NoError(t, p.g.Abort())
		require.Len(t, contents(t, p.f), fixedSize)
	}
}

// TestAbortDuringACall: a member that is aborted while it waits learns that, and does not take
// its stream, which is free then, for one that has done its work.
func TestAbortDuringACall(t *testing.T) {
	for range 100 {
		ps := peers(t, collectivetest.Options{}, 2)
		together(ps, func(i int, p *peer) {
			if i == 1 {
				for ps[0].g.Stats().Calls == 0 { // then it waits for this member
					runtime.Gosched()
				}
				require.NoError(t, ps[0].g.Abort())
				return
			}
			_, err := p.g.AllGather(t.Context(), p.st, p.x, p.y)
			require.ErrorIs(t, err, collective.ErrAborted)
			require.NotErrorIs(t, err, collective.ErrMismatch)
		})
	}
}

// TestSyncDuringClose: Sync of a stream that works on when the group is closed ends with the
// stream, and Close does not wait for it.
func TestSyncDuringClose(t *testing.T) {
	p := peers(t, collectivetest.Options{}, 1)[0]
	started, release := make(chan struct{}), make(chan struct{})
	m, _, err := p.dev.LoadModule(vmm.Code{Host: map[string]vmm.HostKernel{"wait": {Run: func(*vmm.Launch) error {
		close(started)
		<-release
		return nil
	}}}})
	require.NoError(t, err)
	f, err := m.Function("wait")
	require.NoError(t, err)
	require.NoError(t, f.Launch(p.st, &vmm.Launch{}, nil))
	<-started
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	synced := make(chan error, 1)
	go func() { synced <- p.g.Sync(ctx, p.st) }()
	require.NoError(t, p.g.Close())
	close(release)
	if err := <-synced; err != nil { // unless it began before
		require.ErrorIs(t, err, vmm.ErrClosed)
	}
	require.NoError(t, m.Close())
}

// TestSilent: the others wait until their time is over, or their context.
func TestSilent(t *testing.T) {
	ps := peers(t, collectivetest.Options{Silent: true, Timeout: 50 * time.Millisecond}, 3)
	require.NoError(t, collectivetest.Kill(ps[2].g))
	require.NoError(t, ps[0].sum())
	require.ErrorIs(t, ps[0].sync(), os.ErrDeadlineExceeded)
	require.NoError(t, ps[1].sum())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ps[1].g.Sync(ctx, ps[1].st), context.Canceled)
	require.ErrorIs(t, ps[1].st.Sync(), context.Canceled, "the stream is free, and its bytes are undefined")
}

// TestGroupThatHasEnded: calls return why, and nothing else happens.
func TestGroupThatHasEnded(t *testing.T) {
	for _, end := range []struct {
		name string
		do   func(*collective.Group) error
		want error
	}{
		{"Close", (*collective.Group).Close, vmm.ErrClosed},
		{"Abort", (*collective.Group).Abort, collective.ErrAborted},
		{"Kill", collectivetest.Kill, collective.ErrAborted},
	} {
		p := peers(t, collectivetest.Options{}, 1)[0]
		require.NoError(t, p.sum())
		require.NoError(t, p.sync())
		require.NoError(t, end.do(p.g), end.name)
		require.ErrorIs(t, p.sum(), end.want, end.name)
		require.ErrorIs(t, p.sync(), end.want, end.name)
		_, err := p.g.AllGather(t.Context(), p.st, p.x, p.f)
		require.ErrorIs(t, err, end.want, end.name)
		_, err = p.g.Register(t.Context(), p.x, collective.RegisterOptions{})
		require.ErrorIs(t, err, end.want, end.name)
		require.ErrorIs(t, p.g.Rebalance(t.Context(), p.st, p.x), end.want, end.name)
		require.NoError(t, p.g.Close(), end.name)
		require.NoError(t, p.g.Abort(), end.name)
		require.Zero(t, p.x.Len())
	}
}

// TestMemoryThatCannotBeUsed: ranges that sleep and streams that are captured; the group goes
// on.
func TestMemoryThatCannotBeUsed(t *testing.T) {
	ps := peers(t, collectivetest.Options{}, 2)
	p := ps[0]
	require.NoError(t, p.y.Append(make([]byte, 8)))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, p.y))
	together(ps, func(i int, p *peer) {
		_, err := p.g.AllGather(t.Context(), p.st, p.x, p.y)
		if want := []error{vmm.ErrAsleep, collective.ErrPeerFailed}[i]; err == nil {
			t.Errorf("rank %d: no error, not %v", i, want)
		} else {
			require.ErrorIs(t, err, want)
		}
	})
	require.ErrorIs(t, p.g.Do(t.Context(), p.st, collective.Broadcast(0, p.y, p.y)), vmm.ErrAsleep)
	require.NoError(t, vmm.Wake(p.y))
	require.NoError(t, p.st.BeginCapture())
	require.ErrorIs(t, p.sum(), vmm.ErrNotSupported)
	g, err := p.st.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	together(ps, func(i int, p *peer) {
		got, err := p.g.AllGather(t.Context(), p.st, p.x, p.y)
		require.NoError(t, err, i)
		require.Equal(t, []uint64{8, 0}, got)
		require.NoError(t, p.sync(), i)
	})
}

// TestRegistrations: growth registers and Clip undoes that, and nothing is left at the end.
func TestRegistrations(t *testing.T) {
	ps := peers(t, collectivetest.Options{}, 2)
	together(ps, func(i int, p *peer) {
		v, err := p.dev.NewRange(vmm.RangeOptions{Max: 64 << 20, Chunk: 2 << 20})
		require.NoError(t, err)
		reg, err := p.g.Register(t.Context(), v, collective.RegisterOptions{})
		require.NoError(t, err)
		require.NoError(t, v.Append(make([]byte, 3<<20)))
		for range 2 {
			got, err := p.g.AllGather(t.Context(), p.st, v, v)
			require.NoError(t, err, i)
			require.Len(t, got, 2)
			require.NoError(t, p.sync(), i)
		}
		require.NoError(t, v.SetLen(1))
		require.NoError(t, v.Clip())
		s := p.g.Stats()
		require.Greater(t, s.Registered, s.Deregistered)
		_, err = p.g.AllGather(t.Context(), p.st, v, v)
		require.NoError(t, err)
		require.NoError(t, p.sync())
		if i == 0 {
			require.NoError(t, reg.Close())
			require.NoError(t, v.Close())
		} else {
			require.NoError(t, v.Close())
		}
		s = p.g.Stats()
		require.Equal(t, s.Registered, s.Deregistered)
	})
}

// TestTooManyMembers and none: the test ends.
func TestTooManyMembers(t *testing.T) {
	for _, n := range []int{0, 65} {
		f := &fatal{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			collectivetest.GroupsOn(f, make([]*vmm.Device, n)...)
		}()
		<-done
		require.Contains(t, f.why, fmt.Sprintf("%d members", n))
	}
}

// fatal is a test that records why it was ended.
type fatal struct {
	testing.TB
	why string
}

func (f *fatal) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
