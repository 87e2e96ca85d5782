package collectivetest_test

import (
	"context"
	"errors"
	"fmt"
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

// TestRegisterWhileMemoryComesAndGoes: each chunk that was registered is undone once.
func TestRegisterWhileMemoryComesAndGoes(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	for range 3 {
		r := newRange(t, g.Device(), 10)
		var wg sync.WaitGroup
		often := func(f func()) {
			wg.Go(func() {
				for range 100 {
					f()
				}
			})
		}
		often(func() { _ = r.Grow(4 << 20) })
		often(func() { _ = errors.Join(r.SetLen(0), r.Clip()) })
		often(func() { _ = r.Append(make([]byte, 1000)) })
		often(func() { _ = errors.Join(vmm.Sleep(vmm.SleepDrop, r), vmm.Wake(r)) })
		often(func() {
			reg, err := g.Register(t.Context(), r, collective.RegisterOptions{})
			if err != nil { // it sleeps
				return
			}
			if err := errors.Join(reg.Err(), reg.Close()); err != nil || reg.Chunks() != 0 {
				t.Errorf("%d chunks are registered: %v", reg.Chunks(), err)
			}
		})
		wg.Wait()
		reg, err := g.Register(t.Context(), newRange(t, g.Device(), 10), collective.RegisterOptions{})
		require.NoError(t, err)
		require.NoError(t, errors.Join(vmm.Wake(r), r.Close(), reg.Close()))
		require.Equal(t, g.Stats().Registered, g.Stats().Deregistered)
	}
}

// TestWindowOfMemoryWithoutLength: memory of a window stays mapped, whatever its length is.
func TestWindowOfMemoryWithoutLength(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	r, err := g.Device().NewRange(vmm.RangeOptions{Max: 2 << 20, Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, r.Grow(1))
	reg, err := g.Register(t.Context(), r, collective.RegisterOptions{Window: true})
	require.NoError(t, err)
	for _, err := range []error{r.Clip(), vmm.Sleep(vmm.SleepDrop, r), r.Close()} {
		require.ErrorIs(t, err, vmm.ErrBusy)
	}
	require.NoError(t, reg.Close())
	require.NoError(t, r.Close())
}

func TestRegisterMemoryOfAnotherDevice(t *testing.T) {
	devs := vmmtest.Devices(t, 2)
	g := collectivetest.GroupsOn(t, devs[0])[0]
	r := newRange(t, devs[1], 10)
	_, err := g.Register(t.Context(), r, collective.RegisterOptions{})
	require.ErrorIs(t, err, vmm.ErrPermission)
	require.NoError(t, g.Err())
	require.NoError(t, r.Grant(vmm.AccessRead, devs[0]))
	reg, err := g.Register(t.Context(), r, collective.RegisterOptions{})
	require.NoError(t, err)
	require.NoError(t, reg.Close())
}

// onEngine is a group of one member, with an engine made of the host's.
func onEngine(t *testing.T, with func(*hostengine.Member) engine.Engine) *collective.Group {
	t.Helper()
	dev := vmmtest.Device(t)
	worlds := &hostengine.Worlds{Options: hostengine.Options{Report: t.Errorf}, Wrap: func(_ int, m *hostengine.Member) engine.Engine { return with(m) }}
	g, err := collectivetest.JoinOn(t.Context(), dev, collective.Options{Size: 1, Timeout: time.Minute}, worlds, nil)
	require.NoError(t, err)
	return g
}

// slow is a member whose engine takes a while to undo a registration.
type slow struct {
	*hostengine.Member
	begun func()
}

func (e *slow) Deregister(handle uint64) error {
	e.begun()
	<-time.After(2 * time.Millisecond)
	return e.Member.Deregister(handle)
}

// TestCloseWhileARegistrationCloses: the group is not closed before that is done.
func TestCloseWhileARegistrationCloses(t *testing.T) {
	begun := make(chan struct{})
	g := onEngine(t, func(m *hostengine.Member) engine.Engine {
		return &slow{m, sync.OnceFunc(func() { close(begun) })}
	})
	r := newRange(t, g.Device(), 1)
	for range 7 {
		require.NoError(t, r.SetLen(r.Cap()))
		require.NoError(t, r.Grow(1))
	}
	reg, err := g.Register(t.Context(), r, collective.RegisterOptions{})
	require.NoError(t, err)
	closed := make(chan error)
	go func() { closed <- reg.Close() }()
	<-begun
	require.NoError(t, g.Close())
	require.NoError(t, <-closed)
	require.Equal(t, collective.Stats{Registered: 8, Deregistered: 8}, g.Stats())
}

// refusing is a member whose engine cannot register memory from some chunk on.
type refusing struct {
	*hostengine.Member
	left int
}

func (e *refusing) Register(p vmm.Ptr, n uint64) (uint64, error) {
	if e.left--; e.left < 0 {
		return 0, fmt.Errorf("%w: no memory can be locked", nccl.ErrFailed)
	}
	return e.Member.Register(p, n)
}

// TestChunksThatCannotBeRegistered: the group goes on, and the memory is used without.
func TestChunksThatCannotBeRegistered(t *testing.T) {
	g := onEngine(t, func(m *hostengine.Member) engine.Engine { return &refusing{Member: m, left: 1} })
	r := newRange(t, g.Device(), 1)
	reg, err := g.Register(t.Context(), r, collective.RegisterOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Append(make([]byte, r.Cap())))
	require.ErrorIs(t, reg.Err(), collective.ErrFailed)
	require.NoError(t, g.Err())
	require.Equal(t, 1, reg.Chunks())
	_, err = g.Register(t.Context(), newRange(t, g.Device(), 1), collective.RegisterOptions{})
	require.ErrorIs(t, err, collective.ErrFailed)
	st := newStream(t, g.Device())
	_, err = g.AllGather(t.Context(), st, r, r)
	require.NoError(t, err)
	require.NoError(t, g.Sync(t.Context(), st))
	require.NoError(t, reg.Close())
	require.NoError(t, g.Close())
	require.Equal(t, collective.Stats{Calls: g.Stats().Calls, Registered: 1, Deregistered: 1}, g.Stats())
}

// TestRebalanceWaitsForItsStreamAlone: not for what another stream of the device waits for.
func TestRebalanceWaitsForItsStreamAlone(t *testing.T) {
	devs := []*vmm.Device{vmmtest.Device(t), vmmtest.Device(t)}
	groups, others := collectivetest.GroupsOn(t, devs...), collectivetest.GroupsOn(t, devs...)
	sent, received := newRange(t, devs[0], 100), newRange(t, devs[1], 100)
	waits, comes := newStream(t, devs[0]), newStream(t, devs[1])
	require.NoError(t, others[0].Do(t.Context(), waits, collective.Send(sent, 1)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan []error, 1)
	go func() {
		done <- all(groups, func(i int, g *collective.Group) error {
			return g.Rebalance(ctx, newStream(t, g.Device()), newRange(t, g.Device(), 100+i*100))
		})
	}()
	select {
	case errs := <-done:
		require.NoError(t, errors.Join(errs...))
	case <-ctx.Done():
		t.Error("Rebalance waits for another stream")
	}
	require.NoError(t, others[1].Do(t.Context(), comes, collective.Recv(received, 0)))
	require.NoError(t, others[1].Sync(t.Context(), comes))
	require.NoError(t, others[0].Sync(t.Context(), waits))
}

// TestElementsAreNotTorn: what would leave a vector with a part of an element is refused.
func TestElementsAreNotTorn(t *testing.T) {
	groups := collectivetest.Groups(t, 2)
	vs, sts := make([]*growable.Vector[uint32], 2), make([]*vmm.Stream, 2)
	for i, g := range groups {
		v, err := growable.FromRange[uint32](newRange(t, g.Device(), 8+32*i))
		require.NoError(t, err)
		vs[i], sts[i] = v, newStream(t, g.Device())
	}
	check := func(name string, call func(i int, g *collective.Group) error) {
		t.Helper()
		lens := []uint64{vs[0].Range().Len(), vs[1].Range().Len()}
		errs := all(groups, call)
		require.ErrorIs(t, errs[0], vmm.ErrInvalid, name)
		require.ErrorIs(t, errs[1], collective.ErrPeerFailed, name)
		require.Equal(t, lens, []uint64{vs[0].Range().Len(), vs[1].Range().Len()}, name)
	}
	check("counts", func(i int, g *collective.Group) error {
		_, err := g.Exchange(t.Context(), sts[i], vs[i], vs[i], [][]uint64{{2, 6}, {8, 32}}[i])
		return err
	})
	check("a part", func(i int, g *collective.Group) error {
		_, err := g.AllGather(t.Context(), sts[i], vs[i], collective.Part(vs[i], 0, uint64(3+i)))
		return err
	})
	require.NoError(t, vs[0].Range().SetLen(7))
	check("torn before", func(i int, g *collective.Group) error {
		_, err := g.AllGather(t.Context(), sts[i], vs[i], vs[i])
		return err
	})
	check("Rebalance", func(i int, g *collective.Group) error { return g.Rebalance(t.Context(), sts[i], vs[i]) })
}

// ending is a test that ends when it is told to, and at Fatal.
type ending struct{ recorder }

func (e *ending) Fatal(...any) { runtime.Goexit() }

// TestGroupsThatCannotBeMade: the members that were made wait for no others at the end of the test.
func TestGroupsThatCannotBeMade(t *testing.T) {
	closed, err := vmm.Open("host:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	dev, r := vmmtest.Device(t), &ending{recorder{TB: t}}
	var wg sync.WaitGroup
	wg.Go(func() { collectivetest.New(r, collectivetest.Options{Timeout: time.Hour}, dev, closed) })
	wg.Wait()
	require.Empty(t, r.end())
}
