package vmm_test

import (
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestSleepAndWake: the memory is released, and everything known of it is restored.
func TestSleepAndWake(t *testing.T) {
	for name, o := range map[string]vmm.RangeOptions{
		"ladder": {Max: 256 * page},
		"fixed":  {Max: 256 * page, Chunk: 2 * page},
		"shared": {Max: 256 * page, Share: vmm.ShareFD},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			d := w.devs[0]
			g := newRange(t, d, o)
			want := pattern(11*page+7, 3)
			for n := 0; n < len(want); n += page {
				require.NoError(t, g.Append(want[n:min(n+page, len(want))]))
			}
			require.NoError(t, g.Grow(5*page))
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			ptr, before := g.Ptr(), w.picture(g)
			free, _, err := d.MemInfo()
			require.NoError(t, err)

			require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
			require.Equal(t, ptr, g.Ptr())
			require.EqualValues(t, len(want), g.Len())
			require.Zero(t, g.Cap())
			require.Empty(t, g.Segments())
			st := d.Stats()
			require.Zero(t, st.Committed)
			require.Zero(t, st.Used)
			require.Zero(t, st.Retiring)
			require.EqualValues(t, len(want), st.Asleep)
			require.True(t, g.Stats().Asleep)
			now, _, err := d.MemInfo()
			require.NoError(t, err)
			require.Equal(t, free+before.Cap, now, "others may have it")

			changed := g.Changed()
			require.NoError(t, vmm.Wake(g))
			<-changed
			before.Gen++
			require.Equal(t, before, w.picture(g), "addresses, sizes, grants and every byte")
			st = d.Stats()
			require.Zero(t, st.Asleep)
			require.EqualValues(t, len(want), st.Used)
			require.EqualValues(t, g.Cap(), st.Committed)
			require.False(t, g.Stats().Asleep)
			b := make([]byte, len(want))
			require.NoError(t, w.devs[1].CopyOut(b, ptr), "the peer's grant")
			require.Equal(t, want, b)
			require.NoError(t, g.Append(pattern(20*page, 4)))
			require.NoError(t, vmm.Wake(g), "awake already")
			require.NoError(t, g.Close())
			w.end()
		})
	}
}

func TestSleepDropsContents(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := ranged(t, w, 3*page)
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
	require.Zero(t, g.Len())
	require.Zero(t, d.Stats().Asleep)
	require.Zero(t, d.Stats().Committed)
	require.Zero(t, vmm.HostCopy(g), "no host memory was needed")
	require.NoError(t, vmm.Wake(g))
	require.Zero(t, g.Len())
	require.EqualValues(t, 3*page, g.Cap())
	require.NoError(t, g.Append(pattern(page, 1)))
	require.NoError(t, g.Close())
	w.end()
}

// TestSleepReleases although the device keeps memory: that is its purpose. Wake may use
// cached memory.
func TestSleepReleases(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(100 * page)
	g := ranged(t, w, 3*page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	require.Zero(t, d.Stats().Cached)
	require.Equal(t, 3, w.made("Release"))
	keepChunks(t, w, 1, 1, 1)
	creates := w.made("Create")
	require.NoError(t, vmm.Wake(g))
	require.Equal(t, creates, w.made("Create"))
	require.Zero(t, d.Stats().Cached)
	b := make([]byte, 3*page)
	_, err := g.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, pattern(3*page, 7), b)
	require.NoError(t, g.Close())
	w.end()
}

// TestWakeThatRunsOutInMap is tried a second time, as a growth is.
func TestWakeThatRunsOutInMap(t *testing.T) {
	for _, name := range []string{"Map", "SetAccess"} {
		w := newWorld(t, 1)
		d := w.devs[0]
		d.SetReleaseThreshold(100 * page)
		g := ranged(t, w, 3*page)
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		keepChunks(t, w, 4)
		w.refuse(name, 1, vmm.ErrOutOfMemory)
		require.NoError(t, vmm.Wake(g))
		require.Zero(t, d.Stats().Cached, "what was kept went for it")
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestAllocWakesInNewMemory: cached memory would not read zero.
func TestAllocWakesInNewMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, err := d.Alloc(page)
	require.NoError(t, err)
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
	d.SetReleaseThreshold(100 * page)
	keepChunks(t, w, 1)
	require.NoError(t, vmm.Wake(g))
	require.EqualValues(t, page, d.Stats().Cached)
	require.NoError(t, g.Close())
	w.end()
}

// TestASleepingRange returns ErrAsleep to all calls but Wake and Close.
func TestASleepingRange(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	g := ranged(t, w, 2*page)
	other := ranged(t, w, page)
	s := stream(t, d)
	ws := stream(t, d)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	b := make([]byte, 1)
	calls := map[string]func() error{
		"Append":         func() error { return g.Append(b) },
		"Append nothing": func() error { return g.Append(nil) },
		"Write":          func() error { return second(g.Write(b)) },
		"Grow":           func() error { return g.Grow(1) },
		"Grow nothing":   func() error { return g.Grow(0) },
		"SetLen":         func() error { return g.SetLen(1) },
		"SetLen same":    func() error { return g.SetLen(g.Len()) },
		"Clip":           g.Clip,
		"ReadAt":         func() error { return second(g.ReadAt(b, 0)) },
		"ReadAt past":    func() error { return second(g.ReadAt(b, 1<<40)) },
		"WriteAt":        func() error { return second(g.WriteAt(b, 0)) },
		"ReadFrom":       func() error { return second(g.ReadFrom(io.LimitReader(zeros{}, 1))) },
		"WriteTo":        func() error { return second(g.WriteTo(io.Discard)) },
		"Host":           func() error { return second(g.Host()) },
		"Hold":           func() error { return second(g.Hold(0, 1)) },
		"UsedBy":         func() error { return g.UsedBy(s) },
		"Grant":          func() error { return g.Grant(vmm.AccessRead, w.devs[1]) },
		"Revoke":         func() error { return g.Revoke(w.devs[1]) },
		"EnablePeers":    func() error { return vmm.EnablePeers(vmm.AccessRead, w.devs, other, g) },
		"Sleep":          func() error { return vmm.Sleep(vmm.SleepDrop, g) },
		"Sleep of a set": func() error { return vmm.Sleep(vmm.SleepDrop, other, g) },
		"Device.CopyIn":  func() error { return d.CopyIn(g.Ptr(), b) },
		"Device.CopyOut": func() error { return d.CopyOut(b, g.Ptr()) },
		"Stream.Copy to": func() error { return s.Copy(g.Ptr(), other.Ptr(), 1) },
		"Stream.Copy from": func() error {
			return s.Copy(other.Ptr(), g.Ptr(), 1)
		},
		"Stream.Fill": func() error { return ws.Fill(g.Ptr(), 1, 1, 1) },
	}
	for name, call := range calls {
		w.arm()
		require.ErrorIs(t, call(), vmm.ErrAsleep, name)
		for _, made := range w.disarm() {
			require.Contains(t, []string{"CanAccessPeer", "Supports", "Capturing", "SyncEvent", "RecordContext"}, made, "%s asks the driver at most", name)
		}
	}
	require.NoError(t, other.Append(b), "the other one of the set is awake")
	require.Contains(t, g.String(), "0 bytes", "and it can be printed")
	r, off, ok := d.Lookup(g.Ptr() + 5)
	require.True(t, ok)
	require.EqualValues(t, 5, off)
	require.Equal(t, g.Ptr(), r.Ptr())
	require.NoError(t, s.Close())
	require.NoError(t, ws.Close())
	require.ErrorIs(t, d.Close(), vmm.ErrBusy)
	require.NoError(t, g.Close(), "without waking")
	require.NoError(t, g.Close())
	require.ErrorIs(t, vmm.Wake(g), vmm.ErrClosed)
	require.ErrorIs(t, vmm.Sleep(vmm.SleepKeep, g), vmm.ErrClosed)
	require.Zero(t, d.Stats().Asleep)
	require.NoError(t, other.Close())
	w.end()
}

// zeros reads zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestBadSleep(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, page)
	for name, err := range map[string]error{
		"no range":       vmm.Sleep(vmm.SleepKeep),
		"a nil range":    vmm.Sleep(vmm.SleepKeep, nil),
		"nil and more":   vmm.Sleep(vmm.SleepKeep, g, nil),
		"twice":          vmm.Sleep(vmm.SleepKeep, g, g),
		"other contents": vmm.Sleep(vmm.SleepKeep+1, g),
		"wake nothing":   vmm.Wake(),
		"wake nil":       vmm.Wake(nil, g),
		"wake twice":     vmm.Wake(g, g),
	} {
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, name)
	}
	require.NoError(t, g.Append([]byte{1}))
	require.NoError(t, g.Close())
	w.end()
}

// TestASetWithAClosedRange: its address may be another range's by now.
func TestASetWithAClosedRange(t *testing.T) {
	w := newWorld(t, 1)
	a := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page})
	require.NoError(t, a.Close())
	b := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page}) // often at the address of a
	require.ErrorIs(t, vmm.Wake(a, b, a), vmm.ErrClosed)
	require.ErrorIs(t, vmm.Sleep(vmm.SleepDrop, b, a, b), vmm.ErrClosed)
	require.NoError(t, b.Close())
	w.end()
}

// TestASetSleepsTogether: ranges of several devices, some empty or never used. If one is
// held, all stay awake.
func TestASetSleepsTogether(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	a := ranged(t, w, 3*page)
	b := newRange(t, peer, vmm.RangeOptions{Max: 64 * page})
	require.NoError(t, b.Append(pattern(5*page, 2)))
	require.NoError(t, b.Grant(vmm.AccessReadWrite, d))
	empty := newRange(t, d, vmm.RangeOptions{Max: 8 * page})
	roomy := newRange(t, d, vmm.RangeOptions{Max: 8 * page})
	require.NoError(t, roomy.Grow(2*page))
	all := []*vmm.Range{a, empty, b, roomy}
	pictures := func() (ps []picture) {
		for _, g := range all {
			p := w.picture(g)
			p.Gen = 0
			ps = append(ps, p)
		}
		return ps
	}
	before := pictures()
	release, err := roomy.Hold(0, 0)
	require.NoError(t, err)
	for range 2 {
		require.ErrorIs(t, vmm.Sleep(vmm.SleepKeep, all...), vmm.ErrBusy)
		require.Equal(t, before, pictures())
	}
	release()
	for range 3 {
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, all...))
		require.Zero(t, d.Stats().Committed)
		require.Zero(t, peer.Stats().Committed)
		require.EqualValues(t, 3*page, d.Stats().Asleep)
		require.EqualValues(t, 5*page, peer.Stats().Asleep)
		for _, g := range all {
			require.ErrorIs(t, g.Grow(1), vmm.ErrAsleep)
		}
		require.NoError(t, vmm.Wake(all...))
		require.Equal(t, before, pictures())
	}
	// Ranges that are awake stay as they are.
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, b))
	gen := a.Generation()
	require.NoError(t, vmm.Wake(all...))
	require.Equal(t, gen, a.Generation())
	require.Equal(t, before, pictures())
	for _, g := range all {
		require.NoError(t, g.Close())
	}
	w.end()
}

// TestWakeThatFindsNoMemory leaves all of them asleep, and they wake later.
func TestWakeThatFindsNoMemory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	a, b := ranged(t, w, 3*page), ranged(t, w, 4*page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, a, b))
	d.SetLimit(5 * page)
	for range 3 {
		require.ErrorIs(t, vmm.Wake(a, b), vmm.ErrOutOfMemory)
		require.Zero(t, d.Stats().Committed)
		require.EqualValues(t, 7*page, d.Stats().Asleep)
		require.ErrorIs(t, a.Append([]byte{1}), vmm.ErrAsleep)
	}
	require.NoError(t, vmm.Wake(b), "alone it fits")
	d.SetLimit(0)
	require.NoError(t, vmm.Wake(a, b))
	for _, g := range []*vmm.Range{a, b} {
		got := make([]byte, g.Len())
		_, err := g.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, pattern(len(got), 7), got)
		require.NoError(t, g.Close())
	}
	w.end()
}

// TestWakeThatFailsDuringACapture waits for nothing that would destroy it: only our own
// copies can run in memory that no caller has seen.
func TestWakeThatFailsDuringACapture(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	a, b := ranged(t, w, 3*page), ranged(t, w, 4*page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, a, b))
	d.SetLimit(5 * page)
	s := stream(t, d)
	end := captured(t, w, s)
	require.ErrorIs(t, vmm.Wake(a, b), vmm.ErrOutOfMemory)
	require.Zero(t, d.Stats().Quarantined)
	require.Zero(t, d.Stats().Committed)
	d.SetLimit(0)
	require.NoError(t, vmm.Wake(a, b))
	require.ErrorIs(t, vmm.Sleep(vmm.SleepKeep, a, b), vmm.ErrCapturing)
	require.NoError(t, a.Append([]byte{1}), "nothing has changed")
	end()
	require.NoError(t, s.Close())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	w.end()
}

// TestWakeMendsWhatWasQuarantined: the contents are still there.
func TestWakeMendsWhatWasQuarantined(t *testing.T) {
	for _, name := range []string{"SetAccess", "CopyIn"} {
		w := newWorld(t, 1)
		d := w.devs[0]
		g := ranged(t, w, 3*page)
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		w.refuse(name, 1, errInjected)
		w.refuse("Unmap", 2, errInjected)
		require.ErrorIs(t, vmm.Wake(g), errInjected)
		require.EqualValues(t, 3*page, d.Stats().Quarantined)
		require.ErrorIs(t, vmm.Wake(g), errInjected, "it says why")
		require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrAsleep)
		require.NoError(t, vmm.Wake(g))
		require.Zero(t, d.Stats().Quarantined)
		require.EqualValues(t, 3*page, d.Stats().Committed)
		got := make([]byte, 3*page)
		_, err := g.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, pattern(3*page, 7), got)
		require.NoError(t, g.Close())
		w.end()
	}
}

// TestCloseWaitsForACopyOfWake that could not be waited for when Wake failed.
func TestCloseWaitsForACopyOfWake(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := ranged(t, w, 3*page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	w.refuse("CopyIn", 1, errInjected)
	w.refuse("RecordContext", 1, errInjected)
	require.ErrorIs(t, vmm.Wake(g), errInjected)
	require.EqualValues(t, 3*page, d.Stats().Quarantined)
	w.arm()
	require.NoError(t, g.Close())
	require.True(t, w.waiting(0))
	require.Zero(t, d.Stats().Quarantined)
	w.end()
}

// TestHostMemoryOfAFailedSleep: what was not written to is not kept, for that has no pages yet.
func TestHostMemoryOfAFailedSleep(t *testing.T) {
	w := newWorld(t, 1)
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, KeepHostMemory: true})
	require.NoError(t, g.Append(pattern(5*page, 7)))
	w.refuse("CopyOut", 1, vmm.ErrOutOfMemory)
	require.Error(t, vmm.Sleep(vmm.SleepKeep, g))
	require.Zero(t, w.devs[0].Stats().HostCopies)
	require.NoError(t, g.Close())
	w.end()
}

// TestHostMemoryOfSleepers is used again, and freed by Clip and Close.
func TestHostMemoryOfSleepers(t *testing.T) {
	w := newWorld(t, 1)
	short := ranged(t, w, 5*page)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, short))
	require.NotZero(t, vmm.HostCopy(short))
	require.EqualValues(t, vmm.HostCopy(short), w.devs[0].Stats().HostCopies)
	require.NoError(t, vmm.Wake(short))
	require.Zero(t, vmm.HostCopy(short), "it was not to be kept")
	require.Zero(t, w.devs[0].Stats().HostCopies)
	require.NoError(t, short.Close())

	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, KeepHostMemory: true})
	require.NoError(t, g.Append(pattern(5*page, 7)))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	have := vmm.HostCopy(g)
	require.NotZero(t, have)
	for n := range 3 {
		require.NoError(t, vmm.Wake(g))
		require.Equal(t, have, vmm.HostCopy(g), "kept for the next time")
		require.EqualValues(t, have, w.devs[0].Stats().HostCopies)
		if n == 1 {
			require.NoError(t, g.SetLen(2*page))
		}
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		require.Equal(t, have, vmm.HostCopy(g))
	}
	require.NoError(t, vmm.Wake(g))
	got := make([]byte, 2*page)
	_, err := g.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, pattern(5*page, 7)[:2*page], got)
	require.NoError(t, g.Clip())
	require.Zero(t, vmm.HostCopy(g))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	require.NotZero(t, vmm.HostCopy(g))
	require.NoError(t, g.Close())
	require.Zero(t, vmm.HostCopy(g))
	w.end()
}

// TestHostDeviceWorkDelaysNoClip: others' work and captures on the host device neither
// delay nor fail the Clip of a range with host memory.
func TestHostDeviceWorkDelaysNoClip(t *testing.T) {
	w := newWorld(t, 1)
	h, err := vmm.Open("host")
	require.NoError(t, err)
	s, err := h.NewStream()
	require.NoError(t, err)
	open := gate(t, h, s.Raw())
	captive, err := h.NewStream()
	require.NoError(t, err)
	end := captured(t, &world{devs: []*vmm.Device{h}}, captive)
	for _, release := range []func(*vmm.Range) error{(*vmm.Range).Clip, (*vmm.Range).Close} {
		g := ranged(t, w, 2*page)
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		require.NoError(t, vmm.Wake(g))
		require.NoError(t, release(g))
		require.Zero(t, vmm.HostCopy(g))
		require.NoError(t, g.Close())
	}
	end()
	open()
	require.NoError(t, captive.Close())
	require.NoError(t, s.Close())
	require.NoError(t, h.Close())
	w.end()
}

// TestSleepWaits for queued work, as Unmap does, and for retiring memory.
func TestSleepWaits(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g := ranged(t, w, 3*page)
	s := stream(t, d)
	open := work(t, d, s.Raw(), g.Ptr())
	slept := make(chan error, 1)
	go func() { slept <- vmm.Sleep(vmm.SleepKeep, g) }()
	for d.Stats().Retiring == 0 {
		runtime.Gosched()
	}
	require.ErrorIs(t, g.Grow(1), vmm.ErrAsleep)
	require.ErrorIs(t, second(g.ReadAt(make([]byte, 1), 0)), vmm.ErrAsleep)
	require.Empty(t, slept)
	require.Zero(t, w.made("Unmap"))
	open()
	require.NoError(t, <-slept)
	require.NoError(t, vmm.Wake(g))
	got := make([]byte, page)
	_, err := g.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, byte(0xab), got[page-1], "what the work wrote is there")
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

func TestSleepWithRetirements(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(100 * page)
	g, s, open := queuedClip(t, w)
	slept := make(chan error, 1)
	go func() { slept <- vmm.Sleep(vmm.SleepKeep, g) }()
	for !g.Stats().Asleep {
		runtime.Gosched()
	}
	open()
	require.NoError(t, <-slept)
	require.Zero(t, d.Stats().Retiring)
	_, err := d.Trim(0)
	require.NoError(t, err)
	require.Zero(t, d.Stats().Committed)
	require.NoError(t, vmm.Wake(g))
	require.EqualValues(t, page, g.Cap(), "what had retired is gone")
	require.NoError(t, g.Append(pattern(2*page, 7)))
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestWakeOfWhatItsOwnerMayOnlyRead restores the contents and the access.
func TestWakeOfWhatItsOwnerMayOnlyRead(t *testing.T) {
	faults(t, func(t *testing.T, at ...int) []string {
		w := newWorld(t, 1)
		d := w.devs[0]
		g := ranged(t, w, 2*page)
		before := w.contents(g)
		require.NoError(t, g.Grant(vmm.AccessRead, d))
		require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
		w.arm(at...)
		err := vmm.Wake(g)
		calls := w.disarm()
		if err != nil {
			isInjected(w, err)
			require.NoError(t, vmm.Wake(g))
		}
		require.Equal(t, before, w.contents(g))
		require.ErrorIs(t, d.CopyIn(g.Ptr(), []byte{1}), vmm.ErrPermission)
		require.NoError(t, g.Grant(vmm.AccessReadWrite, d))
		require.NoError(t, d.CopyIn(g.Ptr(), []byte{1}))
		require.NoError(t, g.Close())
		w.end()
		return calls
	})
}

// TestSleepCountsOnce: while a range falls asleep and wakes, at each call of the driver, no more is
// used than there is memory.
func TestSleepCountsOnce(t *testing.T) {
	var w *world
	looks := 0
	w = worldWith(t, 1, func(drivertest.Call) {
		if w != nil && len(w.devs) > 0 {
			st := w.devs[0].Stats()
			assert.LessOrEqual(t, st.Used, st.Committed)
			looks++
		}
	})
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Chunk: page})
	require.NoError(t, g.Append(make([]byte, 3*page)))
	looks = 0
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	require.NoError(t, vmm.Wake(g))
	require.Greater(t, looks, 10)
}

// TestSleepUndoneIsAChange: whoever has found the range asleep is told when the Sleep has failed.
func TestSleepUndoneIsAChange(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 100)
	changed := g.Changed()
	w.refuse("CopyOut", 1, errInjected)
	require.ErrorIs(t, vmm.Sleep(vmm.SleepKeep, g), errInjected)
	require.False(t, g.Stats().Asleep)
	select {
	case <-changed:
	default:
		t.Error("it is not told")
	}
	require.NoError(t, g.Close())
	w.end()
}
