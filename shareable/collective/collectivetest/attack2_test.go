package collectivetest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

var _ = fmt.Sprint
var _ = growable.DevicePitch

func TestStormRegister(t *testing.T) {
	// Registration.Close and Group.Close at once
	for range 30 {
		groups := collectivetest.Groups(t, 2)
		var regs []*collective.Registration
		for _, g := range groups {
			for range 3 {
				r := newRange(t, g.Device(), 8<<20)
				reg, err := g.Register(t.Context(), r, collective.RegisterOptions{})
				require.NoError(t, err)
				regs = append(regs, reg)
			}
		}
		var wg sync.WaitGroup
		for _, g := range groups {
			wg.Go(func() { _ = g.Close() })
		}
		for _, r := range regs {
			wg.Go(func() { _ = r.Close() })
		}
		wg.Wait()
		for _, g := range groups {
			require.Equal(t, g.Stats().Registered, g.Stats().Deregistered)
		}
	}
}

func TestStormClose(t *testing.T) {
	for range 30 {
		groups := collectivetest.Groups(t, 2)
		var wg sync.WaitGroup
		for _, g := range groups {
			r := newRange(t, g.Device(), 1<<20)
			wg.Go(func() { _ = g.Close() })
			wg.Go(func() { _ = g.Close() })
			wg.Go(func() {
				reg, err := g.Register(t.Context(), r, collective.RegisterOptions{})
				if err == nil {
					_ = reg.Close()
				}
			})
		}
		wg.Wait()
	}
}

func TestStormAbortClose(t *testing.T) {
	for range 100 {
		groups := collectivetest.Groups(t, 2)
		var wg sync.WaitGroup
		for _, g := range groups {
			wg.Go(func() { _ = g.Close() })
			wg.Go(func() { _ = g.Abort() })
		}
		wg.Wait()
	}
}

func TestStormAll(t *testing.T) {
	for round := range 30 {
		groups := collectivetest.New(t, collectivetest.Options{Timeout: time.Second}, vmmtest.Device(t), vmmtest.Device(t), vmmtest.Device(t))
		var wg sync.WaitGroup
		for i, g := range groups {
			dst, src := newRange(t, g.Device(), 100), newRange(t, g.Device(), 3<<20)
			st := newStream(t, g.Device())
			for range 3 {
				wg.Go(func() {
					for g.Err() == nil {
						_, _ = g.AllGather(t.Context(), st, dst, collective.Part(src, 0, 100))
					}
				})
			}
			wg.Go(func() {
				for g.Err() == nil {
					reg, err := g.Register(t.Context(), src, collective.RegisterOptions{})
					if err == nil {
						_ = reg.Err()
						_ = reg.Close()
					}
				}
			})
			wg.Go(func() {
				for g.Err() == nil {
					_ = g.Sync(t.Context(), st)
				}
			})
			d := time.Duration(rand.IntN(3000)) * time.Microsecond
			wg.Go(func() {
				time.Sleep(d)
				if (round+i)%2 == 0 {
					_ = g.Abort()
				} else {
					_ = g.Close()
				}
			})
		}
		wg.Wait()
	}
}

func TestRegisterRaces(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	dev := g.Device()
	for range 5 {
		r := newRange(t, dev, 10)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		var wg sync.WaitGroup
		t.Cleanup(cancel)
		loop := func(f func()) {
			wg.Go(func() {
				for ctx.Err() == nil {
					f()
				}
			})
		}
		loop(func() { _ = r.Grow(4 << 20) })
		loop(func() { _ = r.Clip() })
		loop(func() { _ = r.Append(make([]byte, 1000)) })
		loop(func() { _ = r.SetLen(0) })
		loop(func() {
			_ = vmm.Sleep(vmm.SleepDrop, r)
			_ = vmm.Wake(r)
		})
		loop(func() {
			reg, err := g.Register(ctx, r, collective.RegisterOptions{})
			if err == nil {
				if e := reg.Err(); e != nil {
					t.Error(e)
				}
				_ = reg.Chunks()
				_ = reg.Close()
				if reg.Chunks() != 0 {
					t.Error("chunks after close")
				}
			}
		})
		wg.Wait()
		_ = vmm.Wake(r)
		require.NoError(t, r.Close())
		require.Equal(t, g.Stats().Registered, g.Stats().Deregistered)
		t.Log(g.Stats())
	}
}

func TestWindowOfMemoryWithoutLength(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	r, err := g.Device().NewRange(vmm.RangeOptions{Max: 2 << 20, Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, r.Grow(1))
	reg, err := g.Register(t.Context(), r, collective.RegisterOptions{Window: true})
	require.NoError(t, err)
	require.ErrorIs(t, r.Clip(), vmm.ErrBusy)
	require.ErrorIs(t, vmm.Sleep(vmm.SleepDrop, r), vmm.ErrBusy)
	require.ErrorIs(t, r.Close(), vmm.ErrBusy)
	require.NoError(t, reg.Close())
	require.NoError(t, r.Close())
}

func TestRegisterMemoryOfAnotherDevice(t *testing.T) {
	devs := vmmtest.Devices(t, 2)
	g := collectivetest.GroupsOn(t, devs[0])[0]
	r := newRange(t, devs[1], 10)
	_, err := g.Register(t.Context(), r, collective.RegisterOptions{})
	t.Log(err)
	require.Error(t, err)
	require.NoError(t, g.Err())
	other := vmmtest.Device(t)
	r = newRange(t, other, 10)
	_, err = g.Register(t.Context(), r, collective.RegisterOptions{})
	t.Log(err)
	require.Error(t, err)
	require.NoError(t, g.Err())
}

func TestRegisterTwice(t *testing.T) {
	g := collectivetest.Groups(t, 1)[0]
	r := newRange(t, g.Device(), 10)
	a, err := g.Register(t.Context(), r, collective.RegisterOptions{})
	require.NoError(t, err)
	_, err = g.Register(t.Context(), r, collective.RegisterOptions{})
	t.Log(err)
	_ = a
}

func TestRebalanceWaitsForItsStreamAlone(t *testing.T) {
	devs := []*vmm.Device{vmmtest.Device(t), vmmtest.Device(t)}
	a, b := collectivetest.GroupsOn(t, devs...), collectivetest.GroupsOn(t, devs...)
	small := newRange(t, devs[0], 100)
	sb := newStream(t, devs[0])
	require.NoError(t, b[0].Do(t.Context(), sb, collective.Send(small, 1))) // waits
	done := make(chan []error)
	go func() {
		done <- all(a, func(i int, g *collective.Group) error {
			st := newStream(t, g.Device())
			v := newRange(t, g.Device(), 100+i*100)
			return errors.Join(g.Rebalance(t.Context(), st, v))
		})
	}()
	select {
	case errs := <-done:
		require.NoError(t, errors.Join(errs...))
	case <-time.After(5 * time.Second):
		t.Error("hangs")
	}
	sc := newStream(t, devs[1])
	r := newRange(t, devs[1], 100)
	require.NoError(t, b[1].Do(t.Context(), sc, collective.Recv(r, 0)))
	require.NoError(t, b[1].Sync(t.Context(), sc))
	require.NoError(t, b[0].Sync(t.Context(), sb))
}

// killer is a member that is killed at its n-th engine call.
type killer struct {
	*hostengine.Member
	mu    sync.Mutex
	n     int
	calls []string
	kill  func()
}

func (k *killer) step(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, name)
	if k.n--; k.n == 0 {
		k.kill()
	}
}

func (k *killer) Run(st driver.Stream, m []driver.Span, c []nccl.Call) error {
	k.step("run")
	return k.Member.Run(st, m, c)
}
func (k *killer) Register(p vmm.Ptr, n uint64) (uint64, error) {
	k.step("register")
	return k.Member.Register(p, n)
}
func (k *killer) Deregister(h uint64) error { k.step("deregister"); return k.Member.Deregister(h) }

func TestKillAtEachStep(t *testing.T) {
	for _, silent := range []bool{false, true} {
		for _, name := range []string{"allgather", "exchange", "gather", "scatter", "append", "rebalance"} {
			for n := 1; n < 12; n++ {
				if !killAt(t, name, n, silent) {
					break
				}
			}
		}
	}
}

func killAt(t *testing.T, name string, n int, silent bool) (killed bool) {
	const size = 3
	devs := make([]*vmm.Device, size)
	w, err := hostengine.NewWorld(size, hostengine.Options{Silent: silent, Report: t.Errorf})
	require.NoError(t, err)
	groups := make([]*collective.Group, size)
	var wg sync.WaitGroup
	var k *killer
	for i := range groups {
		devs[i] = vmmtest.Device(t)
		m, err := w.Join(i, devs[i])
		require.NoError(t, err)
		if i == 1 {
			k = &killer{Member: m}
			k.kill = func() {
				killed = true
				wg.Go(func() { _ = groups[i].Abort() })
				for groups[i].Err() == nil {
					time.Sleep(time.Microsecond)
				}
			}
			groups[i], err = collective.NewGroup(devs[i], i, size, k, collective.Options{Timeout: 300 * time.Millisecond})
		} else {
			groups[i], err = collective.NewGroup(devs[i], i, size, m, collective.Options{Timeout: 300 * time.Millisecond})
		}
		require.NoError(t, err)
	}
	dsts, srcs, sts := make([]*vmm.Range, size), make([]*vmm.Range, size), make([]*vmm.Stream, size)
	for i := range groups {
		dsts[i], srcs[i], sts[i] = newRange(t, devs[i], 100+50*i), newRange(t, devs[i], 3*(900<<10)), newStream(t, devs[i])
		_, err = dsts[i].WriteAt(make([]byte, 100), 0)
		require.NoError(t, err)
		if i == 1 && n > 0 {
			_, err := groups[i].Register(t.Context(), dsts[i], collective.RegisterOptions{})
			require.NoError(t, err)
		}
	}
	k.n, k.calls = n, nil
	begun := time.Now()
	errs := all(groups, func(i int, g *collective.Group) (err error) {
		third := uint64(900 << 10)
		counts := []uint64{third, third, third}
		ctx, st, dst, src := t.Context(), sts[i], dsts[i], srcs[i]
		switch name {
		case "allgather":
			_, err = g.AllGather(ctx, st, dst, collective.Part(src, 0, 900<<10))
		case "exchange":
			_, err = g.Exchange(ctx, st, dst, src, counts)
		case "gather":
			_, err = g.Gather(ctx, st, 1, dst, src)
		case "scatter":
			_, err = g.Scatter(ctx, st, 1, dst, src, counts)
		case "append":
			_, err = g.AppendFrom(ctx, st, 1, dst, src)
		case "rebalance":
			err = g.Rebalance(ctx, st, dst)
		}
		if err == nil {
			err = g.Sync(ctx, st)
			if err != nil {
				err = fmt.Errorf("in sync: %w", err)
			}
		}
		return err
	})
	if d := time.Since(begun); d > 1300*time.Millisecond {
		t.Errorf("%s %d silent %v: %v", name, n, silent, d)
	}
	wg.Wait()
	for i, g := range groups {
		l := dsts[i].Len()
		was := uint64(100 + 50*i)
		t.Logf("%s %d silent %v: rank %d: len %d -> %d, %v %v", name, n, silent, i, was, l, errs[i], k.calls)
		if killed && errs[i] == nil {
			t.Logf("NO ERROR")
		}
		_ = g.Abort()
		require.Equal(t, g.Stats().Registered, g.Stats().Deregistered)
	}
	if killed {
		again := collectivetest.GroupsOn(t, devs...)
		require.NoError(t, errors.Join(all(again, func(i int, g *collective.Group) error {
			_, err := g.AllGather(t.Context(), sts[i], dsts[i], collective.Part(srcs[i], 0, 1000))
			return errors.Join(err, g.Sync(t.Context(), sts[i]))
		})...))
	}
	return killed
}

// slowEngine takes a while to undo a registration.
type slowEngine struct {
	*hostengine.Member
	begun chan struct{}
	once  sync.Once
}

func (e *slowEngine) Deregister(handle uint64) error {
	e.once.Do(func() { close(e.begun) })
	time.Sleep(2 * time.Millisecond)
	return e.Member.Deregister(handle)
}

func TestCloseWhileARegistrationCloses(t *testing.T) {
	dev := vmmtest.Device(t)
	w, err := hostengine.NewWorld(1, hostengine.Options{Report: t.Errorf})
	require.NoError(t, err)
	m, err := w.Join(0, dev)
	require.NoError(t, err)
	e := &slowEngine{Member: m, begun: make(chan struct{})}
	g, err := collective.NewGroup(dev, 0, 1, e, collective.Options{})
	require.NoError(t, err)
	r := newRange(t, dev, 1)
	for range 7 {
		require.NoError(t, r.SetLen(r.Cap()))
		require.NoError(t, r.Grow(1))
	}
	reg, err := g.Register(t.Context(), r, collective.RegisterOptions{})
	require.NoError(t, err)
	closed := make(chan error)
	go func() { closed <- reg.Close() }()
	<-e.begun
	require.NoError(t, g.Close())
	require.NoError(t, <-closed)
	require.Equal(t, collective.Stats{Registered: 8, Deregistered: 8}, g.Stats())
}
