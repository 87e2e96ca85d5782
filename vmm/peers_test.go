package vmm_test

import (
	"cmp"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// hostWorld is host devices with small pages, wherever the test runs.
func hostWorld(t *testing.T, n int, noPeer ...[2]int) *world {
	t.Helper()
	return worldOn(t, n, host.Config{Devices: n, Memory: 64 * mib, Granularity: 4096, NoPeer: noPeer})
}

// rangeOn is a range of device n with chunks of 4 KiB.
func rangeOn(t *testing.T, w *world, n, chunks int) *vmm.Range {
	t.Helper()
	g, err := w.devs[n].NewRange(vmm.RangeOptions{Max: 1024 * 4096, Chunk: 4096})
	require.NoError(t, err)
	require.NoError(t, g.Append(pattern(chunks*4096, byte(n))))
	return g
}

// allows checks that each device has the wanted access to all that is mapped, as the driver
// says.
func (w *world) allows(g *vmm.Range, want map[int]vmm.Access) {
	w.t.Helper()
	for _, s := range g.Segments() {
		for i := range w.devs {
			a, err := w.drv.Access(s.Addr, vmm.Location{Kind: vmm.LocationDevice, ID: i})
			require.NoError(w.t, err)
			require.Equal(w.t, want[i], a, "device %d at %v", i, s.Addr)
		}
	}
}

func TestPlanWithoutAPath(t *testing.T) {
	w := hostWorld(t, 3, [2]int{0, 2})
	g, h, empty := rangeOn(t, w, 0, 3), rangeOn(t, w, 1, 1), rangeOn(t, w, 1, 0)
	require.NoError(t, h.Grant(vmm.AccessReadWrite, w.devs[2]))
	p, err := vmm.PlanPeers(vmm.AccessReadWrite, w.devs, g, h, empty)
	require.NoError(t, err)
	golden(t, "plan_no_path.txt", p.String())

	require.Equal(t, 3, p.Memory[0].Chunks)
	require.EqualValues(t, 3*4096, p.Memory[0].Bytes)
	require.Equal(t, 1, p.Memory[0].Calls)
	require.Same(t, g, p.Memory[0].Of)
	before := []picture{w.picture(g), w.picture(h)}
	for _, do := range []func() error{p.Err, p.Apply, func() error { return vmm.EnablePeers(vmm.AccessReadWrite, w.devs, g, h, empty) }} {
		w.arm()
		err := do()
		require.NotContains(t, w.disarm(), "SetAccess")
		require.ErrorIs(t, err, vmm.ErrNotSupported)
		var pair *vmm.PairError
		require.ErrorAs(t, err, &pair)
		require.Equal(t, "host:2 to memory of host:0", pair.From+" to memory of "+pair.To)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, "host:0", op.Device)
		require.Equal(t, before, []picture{w.picture(g), w.picture(h)})
	}

	// What can be done can be planned without the rest.
	p, err = vmm.PlanPeers(vmm.AccessReadWrite, w.devs[:2], g, h, empty)
	require.NoError(t, err)
	require.NoError(t, p.Err())
	require.NoError(t, p.Apply())
	w.allows(g, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessReadWrite})
	require.NoError(t, p.Apply(), "twice is fine")
	closeAll(t, g, h, empty)
	w.end()
}

func closeAll(t *testing.T, ranges ...*vmm.Range) {
	t.Helper()
	for _, g := range ranges {
		require.NoError(t, g.Close())
	}
}

// TestNoPeersAtAll is a machine whose IOMMU or ACS keeps devices apart.
func TestNoPeersAtAll(t *testing.T) {
	w := hostWorld(t, 3, [2]int{0, 1}, [2]int{0, 2}, [2]int{1, 2})
	g := rangeOn(t, w, 0, 2)
	before := w.picture(g)
	for name, do := range map[string]func() error{
		"enable": func() error { return vmm.EnablePeers(vmm.AccessRead, w.devs, g) },
		"grant":  func() error { return g.Grant(vmm.AccessRead, w.devs[1]) },
		"legacy": func() error { _, err := vmm.EnableLegacyPeers(w.devs...); return err },
	} {
		err := do()
		require.ErrorIs(t, err, vmm.ErrNotSupported, name)
		var pair *vmm.PairError
		require.ErrorAs(t, err, &pair, name)
		require.Contains(t, err.Error(), pair.From+" to memory of "+pair.To, name)
		require.Equal(t, before, w.picture(g))
	}
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs[:1], g), "the owner alone needs no path")
	closeAll(t, g)
	w.end()
}

// TestOwnerMayReadOnly: what a device may not write for want of access is ErrPermission, by whatever call, and
// nothing has changed.
func TestOwnerMayReadOnly(t *testing.T) {
	w := hostWorld(t, 1)
	d, s := w.devs[0], stream(t, w.devs[0])
	g := rangeOn(t, w, 0, 1)
	want := w.contents(g)
	require.NoError(t, g.Grow(4096))
	require.NoError(t, g.Grant(vmm.AccessRead, d))
	for name, do := range map[string]func() error{
		"Append":     func() error { return g.Append(make([]byte, 10)) },
		"AppendOn":   func() error { return g.AppendOn(s, make([]byte, 10)) },
		"AppendRows": func() error { return g.AppendRows(make([]byte, 8), 4, 8) },
		"WriteAt":    func() error { _, err := g.WriteAt(make([]byte, 10), 0); return err },
		"CopyIn":     func() error { return d.CopyIn(g.Ptr(), make([]byte, 10)) },
		"Fill":       func() error { return s.Fill(g.Ptr(), 1, 1, 10) },
	} {
		require.ErrorIs(t, do(), vmm.ErrPermission, name)
	}
	require.Equal(t, want, w.contents(g))
	require.NoError(t, g.Grant(vmm.AccessReadWrite, d))
	require.NoError(t, g.Append([]byte{1}))
	require.NoError(t, s.Close())
	closeAll(t, g)
	w.end()
}

// TestPeersLater: read-only, then one more peer, then more access, then none.
func TestPeersLater(t *testing.T) {
	w := hostWorld(t, 4)
	g, h := rangeOn(t, w, 0, 3), rangeOn(t, w, 1, 2)
	both := func(a vmm.Access, devs ...*vmm.Device) {
		t.Helper()
		require.NoError(t, vmm.EnablePeers(a, devs, g, h))
	}
	const r, rw = vmm.AccessRead, vmm.AccessReadWrite
	both(r, w.devs[2])
	w.allows(g, map[int]vmm.Access{0: rw, 2: r})
	require.ErrorIs(t, w.devs[2].CopyIn(g.Ptr(), []byte{1}), vmm.ErrPermission, "it may not write")
	require.NoError(t, w.devs[2].CopyOut(make([]byte, 4096), g.Ptr()))
	both(rw, w.devs[2], w.devs[3])
	w.allows(g, map[int]vmm.Access{0: rw, 2: rw, 3: rw})
	w.allows(h, map[int]vmm.Access{1: rw, 2: rw, 3: rw})

	p, err := vmm.PlanPeers(r, w.devs[2:], g, h)
	require.NoError(t, err)
	require.True(t, p.Memory[0].Waits, "less than before")
	require.Contains(t, p.String(), "host:3: read-write -> read")
	require.Contains(t, p.String(), "after a wait")
	require.NoError(t, p.Apply())
	both(vmm.AccessNone, w.devs[2])
	w.allows(g, map[int]vmm.Access{0: rw, 3: r})
	for _, x := range []*vmm.Range{g, h} { // also for new memory
		require.NoError(t, x.Append(pattern(2*4096, 1)))
	}
	w.allows(g, map[int]vmm.Access{0: rw, 3: r})
	w.allows(h, map[int]vmm.Access{1: rw, 3: r})
	both(vmm.AccessNone, w.devs[2:]...)
	w.allows(g, map[int]vmm.Access{0: rw})

	both(vmm.AccessNone, w.devs...) // the owners are skipped, whatever the access
	w.allows(g, map[int]vmm.Access{0: rw})

	p, err = vmm.PlanPeers(vmm.AccessNone, w.devs[2:], g)
	require.NoError(t, err)
	require.Zero(t, p.Memory[0].Calls)
	require.Contains(t, p.String(), "none, as it is")
	closeAll(t, g, h)
	w.end()
}

// TestDevicesOfAnotherDriver have no access, though they have the ordinals of those that do.
func TestDevicesOfAnotherDriver(t *testing.T) {
	w, other := newWorld(t, 1), newWorld(t, 1)
	g := ranged(t, w, page)
	require.Equal(t, vmm.AccessReadWrite, g.Access(w.devs[0]))
	require.Equal(t, vmm.AccessNone, g.Access(other.devs[0]))
	plan, err := vmm.PlanPeers(vmm.AccessRead, other.devs, g)
	require.NoError(t, err)
	require.Equal(t, vmm.AccessNone, plan.Memory[0].Devices[0].From)
	require.ErrorIs(t, plan.Err(), vmm.ErrInvalid)
}

// TestRevokeOfWhatWasNotGranted, beside a real revoke, leaves nothing behind.
func TestRevokeOfWhatWasNotGranted(t *testing.T) {
	w := hostWorld(t, 3)
	g := rangeOn(t, w, 0, 1)
	require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
	require.NoError(t, g.Revoke(w.devs[1:]...))
	for _, d := range w.devs[1:] {
		require.Empty(t, d.Report().Open)
	}
	closeAll(t, g)
	w.end()
}

// TestAfterARevoke: a copy by the peer returns a typed error, and both contexts are
// healthy. TestNoWaitLosesTheDevice is the negative control.
func TestAfterARevoke(t *testing.T) {
	w := newWorld(t, 2)
	g := ranged(t, w, 2*page)
	require.NoError(t, vmm.EnablePeers(vmm.AccessReadWrite, w.devs, g))
	s, err := w.devs[1].NewStream()
	require.NoError(t, err)
	open := work(t, w.devs[1], s.Raw(), g.Ptr())
	w.arm()
	revoked := make(chan error, 1)
	go func() { revoked <- vmm.EnablePeers(vmm.AccessNone, w.devs[1:], g) }()
	for !w.waiting(1) {
		select {
		case err := <-revoked:
			t.Fatalf("did not wait: %v", err)
		default:
		}
	}
	open()
	require.NoError(t, <-revoked)
	require.ErrorIs(t, w.devs[1].CopyOut(make([]byte, page), g.Ptr()), vmm.ErrPermission)
	require.ErrorIs(t, s.Fill(g.Ptr(), 1, 1, page), vmm.ErrPermission)
	for i, d := range w.devs {
		require.NoError(t, d.Sync(), "device %d is healthy", i)
	}
	require.NoError(t, g.Append([]byte{1}))
	require.NoError(t, s.Close())
	closeAll(t, g)
	w.end()
}

func TestPlanBadInput(t *testing.T) {
	w := hostWorld(t, 3)
	other := hostWorld(t, 1)
	g, h := rangeOn(t, w, 0, 2), rangeOn(t, w, 1, 1)
	require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
	gone := rangeOn(t, w, 0, 1)
	require.NoError(t, gone.Close())
	asleep := rangeOn(t, w, 0, 1)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, asleep))
	closed, err := vmm.OpenDriver(w.drv, 2)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	d := w.devs
	before := []picture{w.picture(g), w.picture(h)}

	for _, c := range []struct {
		name   string
		want   error
		pair   string
		a      vmm.Access
		devs   []*vmm.Device
		ranges []*vmm.Range
	}{
		{"a device named twice", vmm.ErrInvalid, "host:2 host:0", vmm.AccessRead, []*vmm.Device{d[2], d[1], d[2]}, []*vmm.Range{g, h}},
		{"another driver", vmm.ErrInvalid, "host:0 host:0", vmm.AccessRead, []*vmm.Device{other.devs[0]}, []*vmm.Range{g}},
		{"a closed device", vmm.ErrClosed, "host:2 host:0", vmm.AccessRead, []*vmm.Device{closed}, []*vmm.Range{g}},
		{"a closed range", vmm.ErrClosed, "", vmm.AccessRead, d, []*vmm.Range{g, gone}},
		{"a range that sleeps", vmm.ErrAsleep, "", vmm.AccessRead, d, []*vmm.Range{g, asleep}},
		{"no device", vmm.ErrInvalid, "", vmm.AccessRead, []*vmm.Device{nil}, []*vmm.Range{g}},
		{"no range", vmm.ErrInvalid, "", vmm.AccessRead, d, []*vmm.Range{g, nil}},
		{"a range named twice", vmm.ErrInvalid, "", vmm.AccessRead, d, []*vmm.Range{g, h, g}},
		{"no such access", vmm.ErrInvalid, "", 9, d, []*vmm.Range{g}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := vmm.PlanPeers(c.a, c.devs, memory(c.ranges...)...)
			for _, err := range []error{errors.Join(err, p.Apply()), vmm.EnablePeers(c.a, c.devs, memory(c.ranges...)...)} {
				require.ErrorIs(t, err, c.want)
				var op *vmm.OpError
				require.ErrorAs(t, err, &op)
				require.NotEmpty(t, op.Op)
				var pair *vmm.PairError
				if c.pair == "" {
					require.False(t, errors.As(err, &pair), err)
				} else {
					require.ErrorAs(t, err, &pair)
					require.Equal(t, c.pair, pair.From+" "+pair.To)
				}
			}
			require.Equal(t, before, []picture{w.picture(g), w.picture(h)})
		})
	}

	require.Equal(t, "no plan", (*vmm.Plan)(nil).String())
	require.ErrorIs(t, (*vmm.Plan)(nil).Err(), vmm.ErrInvalid)
	p, err := vmm.PlanPeers(vmm.AccessRead, nil)
	require.NoError(t, err)
	require.NoError(t, p.Apply(), "nothing to do")
	p, err = vmm.PlanPeers(vmm.AccessRead, d[:1], gone)
	require.NoError(t, err)
	require.ErrorIs(t, p.Err(), vmm.ErrClosed)
	require.Contains(t, p.String(), "nothing will be done\n", "though no device is refused")
	require.NoError(t, vmm.Wake(asleep))
	closeAll(t, g, h, asleep)
	w.end()
}

// TestPlanChecksMapping: a device whose driver cannot map memory is refused. That memory is
// short at the moment says nothing about it.
func TestPlanChecksMapping(t *testing.T) {
	for _, c := range []struct{ result, want error }{
		{vmm.ErrNotSupported, vmm.ErrNotSupported},
		{vmm.ErrDeviceLost, vmm.ErrDeviceLost},
		{vmm.ErrOutOfMemory, nil},
	} {
		w := hostWorld(t, 2)
		g := rangeOn(t, w, 0, 1)
		w.before = func(call drivertest.Call) error {
			if call.Name == "Supports" && call.Dev == 1 {
				return c.result
			}
			return nil
		}
		err := vmm.EnablePeers(vmm.AccessRead, w.devs, g)
		require.ErrorIs(t, err, c.want)
		w.before = nil
		if err == nil {
			w.allows(g, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessRead})
		} else {
			w.allows(g, map[int]vmm.Access{0: vmm.AccessReadWrite})
		}
		closeAll(t, g)
		w.end()
	}
}

// TestPlanChecksAPathOnce, however many ranges there are.
func TestPlanChecksAPathOnce(t *testing.T) {
	w := hostWorld(t, 3)
	ranges := []*vmm.Range{rangeOn(t, w, 0, 1), rangeOn(t, w, 0, 1), rangeOn(t, w, 0, 1)}
	w.arm()
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs, memory(ranges...)...))
	require.Equal(t, []string{"Supports", "CanAccessPeer", "Supports", "CanAccessPeer", "SetAccess", "SetAccess", "SetAccess"}, w.disarm())
	closeAll(t, ranges...)
	w.end()
}

// TestStalePlan: applying a plan checks everything again.
func TestStalePlan(t *testing.T) {
	t.Run("growth and grants since are taken as they are", func(t *testing.T) {
		w := hostWorld(t, 3)
		g := rangeOn(t, w, 0, 1)
		p, err := vmm.PlanPeers(vmm.AccessRead, w.devs, g)
		require.NoError(t, err)
		text := p.String()
		require.NoError(t, g.Append(pattern(5*4096, 1)))
		require.NoError(t, g.Grant(vmm.AccessRead, w.devs[2]))
		require.NoError(t, p.Apply())
		w.allows(g, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessRead, 2: vmm.AccessRead})
		require.Equal(t, text, p.String(), "the picture stays")
		closeAll(t, g)
		w.end()
	})
	for name, c := range map[string]struct {
		spoil func(w *world, g *vmm.Range) error
		want  error
	}{
		"closed range": {func(_ *world, g *vmm.Range) error { return g.Close() }, vmm.ErrClosed},
		"asleep":       {func(_ *world, g *vmm.Range) error { return vmm.Sleep(vmm.SleepKeep, g) }, vmm.ErrAsleep},
		"closed device": {func(w *world, _ *vmm.Range) error {
			return w.devs[1].Close()
		}, vmm.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			w := hostWorld(t, 3)
			g, h := rangeOn(t, w, 0, 1), rangeOn(t, w, 0, 1)
			p, err := vmm.PlanPeers(vmm.AccessRead, w.devs, h, g)
			require.NoError(t, err)
			require.NoError(t, c.spoil(w, g))
			require.ErrorIs(t, p.Apply(), c.want)
			w.allows(h, map[int]vmm.Access{0: vmm.AccessReadWrite})
			closeAll(t, g, h)
			w.end()
		})
	}
}

// TestDeviceClosesMeanwhile: a device that closes after the check is refused by its pair as
// well, and nothing has changed.
func TestDeviceClosesMeanwhile(t *testing.T) {
	w := hostWorld(t, 3)
	g := rangeOn(t, w, 0, 2)
	w.before = func(call drivertest.Call) error {
		if call.Name == "CanAccessPeer" && call.Dev == 2 {
			return w.devs[2].Close()
		}
		return nil
	}
	err := vmm.EnablePeers(vmm.AccessRead, w.devs, g)
	w.before = nil
	require.ErrorIs(t, err, vmm.ErrClosed)
	var pair *vmm.PairError
	require.ErrorAs(t, err, &pair)
	require.Equal(t, "host:2 host:0", pair.From+" "+pair.To)
	w.allows(g, map[int]vmm.Access{0: vmm.AccessReadWrite})
	closeAll(t, g)
	w.end()
}

// others is what another goroutine does to a range while EnablePeers is about to fail.
type others struct {
	do   func(g *vmm.Range, peer *vmm.Device) error
	want map[int]vmm.Access // afterwards
}

func othersDo() map[string]others {
	owner, reads, writes := map[int]vmm.Access{0: vmm.AccessReadWrite}, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessRead}, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessReadWrite}
	return map[string]others{
		"grants as well": {func(g *vmm.Range, d *vmm.Device) error { return g.Grant(vmm.AccessReadWrite, d) }, writes},
		"grants less":    {func(g *vmm.Range, d *vmm.Device) error { return g.Grant(vmm.AccessRead, d) }, reads},
		"revokes":        {func(g *vmm.Range, d *vmm.Device) error { return g.Revoke(d) }, owner},
		"sleeps and wakes": {func(g *vmm.Range, _ *vmm.Device) error {
			return cmp.Or(vmm.Sleep(vmm.SleepKeep, g), vmm.Wake(g))
		}, reads},
		"clips":  {func(g *vmm.Range, _ *vmm.Device) error { return g.Clip() }, reads},
		"closes": {func(g *vmm.Range, _ *vmm.Device) error { return g.Close() }, nil},
	}
}

// undoBeside makes EnablePeers fail at its second range, while another goroutine does
// something to the first. It returns what the first allows then.
func undoBeside(t *testing.T, w *world, o others, unlocked bool) *vmm.Range {
	t.Helper()
	g, h := rangeOn(t, w, 0, 2), rangeOn(t, w, 0, 1)
	require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
	var calls atomic.Int32
	done := make(chan error, 1)
	w.before = func(call drivertest.Call) error {
		if call.Name != "SetAccess" || calls.Add(1) != 2 {
			return nil
		}
		go func() { done <- o.do(g, w.devs[1]) }()
		if unlocked {
			done <- <-done // or the undo might be over before the other call begins
			return errInjected
		}
		for range 1000 {
			runtime.Gosched()
		}
		return errInjected
	}
	require.ErrorIs(t, vmm.EnablePeers(vmm.AccessReadWrite, w.devs[1:], g, h), errInjected)
	require.NoError(t, <-done)
	w.before = nil
	w.allows(h, map[int]vmm.Access{0: vmm.AccessReadWrite})
	closeAll(t, h)
	return g
}

// TestUndoBesideOthers: another call that changes the access of a range, or unmaps it,
// waits while EnablePeers may still be undone. What it sets stays.
func TestUndoBesideOthers(t *testing.T) {
	for name, o := range othersDo() {
		t.Run(name, func(t *testing.T) {
			w := hostWorld(t, 2)
			g := undoBeside(t, w, o, false)
			if o.want != nil {
				w.allows(g, o.want)
			}
			require.NoError(t, g.Close())
			require.NoError(t, w.devs[1].Close(), "no grant is left")
			w.end()
		})
	}
}

// TestUndoWithoutTheLock is the negative control of the test above.
func TestUndoWithoutTheLock(t *testing.T) {
	w := hostWorld(t, 2)
	vmm.SetNoGrantLock(w.devs[0], true)
	g := undoBeside(t, w, othersDo()["grants as well"], true)
	w.allows(g, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessRead})
	require.NoError(t, g.Close())
	w.end()
}

// TestEnablePeersTogether: many at once, over ranges that overlap, some failing. In the end
// the driver's access is the recorded one.
func TestEnablePeersTogether(t *testing.T) {
	w := hostWorld(t, 3)
	var ranges []*vmm.Range
	for range 3 {
		ranges = append(ranges, rangeOn(t, w, 0, 2))
	}
	var n atomic.Int32
	w.before = func(call drivertest.Call) error {
		if (call.Name == "SetAccess" || call.Name == "RecordContext") && n.Add(1)%7 == 0 {
			return errInjected
		}
		return nil
	}
	var all sync.WaitGroup
	for k := range 4 {
		all.Go(func() {
			for i := range 100 {
				err := vmm.EnablePeers(vmm.Access((i+k)%3), w.devs[1:2+i%2], ranges[(i+k)%3], ranges[(i+k+1)%3])
				if err != nil && !errors.Is(err, errInjected) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	w.before = nil
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs[1:], memory(ranges...)...))
	for _, g := range ranges {
		w.allows(g, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessRead, 2: vmm.AccessRead})
		for i, a := range []vmm.Access{vmm.AccessReadWrite, vmm.AccessRead, vmm.AccessRead} {
			require.Equal(t, a, g.Access(w.devs[i]))
		}
	}
	closeAll(t, ranges...)
	w.end()
}

// TestUndoUnderACopy: a copy that a peer queues under a grant which is then undone would
// lose its device. So it is refused until the grant is complete.
func TestUndoUnderACopy(t *testing.T) {
	w := hostWorld(t, 2)
	g, h, own := rangeOn(t, w, 0, 2), rangeOn(t, w, 0, 1), rangeOn(t, w, 1, 1)
	s, err := w.devs[1].NewStream()
	require.NoError(t, err)
	open := gate(t, w.devs[1], s.Raw())
	calls := 0
	w.before = func(call drivertest.Call) error {
		if call.Name != "SetAccess" {
			return nil
		}
		if calls++; calls != 2 {
			return nil
		}
		if err := s.Copy(own.Ptr(), g.Ptr(), 4096); !errors.Is(err, vmm.ErrBusy) {
			t.Error(err)
		}
		return errInjected
	}
	require.ErrorIs(t, vmm.EnablePeers(vmm.AccessRead, w.devs[1:], g, h), errInjected)
	w.before = nil
	require.ErrorIs(t, s.Copy(own.Ptr(), g.Ptr(), 4096), vmm.ErrPermission)
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs[1:], g, h))
	require.NoError(t, s.Copy(own.Ptr(), g.Ptr(), 4096))
	open()
	require.NoError(t, s.Close(), "the device is well")
	closeAll(t, g, h, own)
	w.end()
}

var _ driver.LegacyPeers = (*pairDevice)(nil)
