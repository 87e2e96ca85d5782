package vmm_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// doubtful is a reservation of the first device, in two stretches, of which no one knows what
// access the second device has: a Grant of read-write has failed after the first stretch, and so
// has its undo.
type doubtful struct {
	*world
	r     *vmm.Reservation
	peer  *vmm.Stream
	calls int // of SetAccess since
}

func newDoubtful(t *testing.T, first vmm.Access) *doubtful {
	t.Helper()
	x := &doubtful{world: newWorld(t, 2)}
	x.r = holed(t, x.world)
	x.peer = stream(t, x.devs[1])
	if first != vmm.AccessNone {
		require.NoError(t, x.r.Grant(first, x.devs[1]))
	}
	seen := 0
	x.before = func(c drivertest.Call) error {
		if c.Name != "SetAccess" {
			return nil
		}
		if seen++; seen == 1 {
			return nil
		}
		return errInjected
	}
	require.ErrorIs(t, x.r.Grant(vmm.AccessReadWrite, x.devs[1]), errInjected)
	x.before = func(c drivertest.Call) error {
		if c.Name == "SetAccess" {
			x.calls++
		}
		return nil
	}
	require.NotZero(t, x.devs[0].Stats().Quarantined)
	require.Equal(t, first, x.r.Access(x.devs[1]))
	return x
}

func (x *doubtful) fill() error { return x.peer.Fill(x.r.Ptr(), 7, 1, page) }

func (x *doubtful) close() {
	x.t.Helper()
	require.NoError(x.t, x.peer.Close())
	require.NoError(x.t, x.r.Close())
	x.end()
}

// TestAccessInDoubt: nothing of the device uses the memory until its access is set anew, which a
// shortage does not do: it would take it away from what the program has queued by itself.
func TestAccessInDoubt(t *testing.T) {
	mends := map[string]func(x *doubtful) error{
		"Trim": func(x *doubtful) error {
			_, err := x.devs[0].Trim(0)
			return err
		},
		"Grant":       func(x *doubtful) error { return x.r.Grant(vmm.AccessRead, x.devs[1]) },
		"Revoke":      func(x *doubtful) error { return x.r.Revoke(x.devs[1]) },
		"EnablePeers": func(x *doubtful) error { return vmm.EnablePeers(vmm.AccessReadWrite, x.devs[1:], x.r) },
	}
	for _, first := range []vmm.Access{vmm.AccessNone, vmm.AccessRead} {
		for name, mend := range mends {
			t.Run(first.String()+"/"+name, func(t *testing.T) {
				x := newDoubtful(t, first)
				b := make([]byte, page)
				if first == vmm.AccessNone {
					require.ErrorIs(t, x.devs[1].CopyOut(b, x.r.Ptr()), vmm.ErrPermission)
				} else {
					require.ErrorIs(t, x.devs[1].CopyOut(b, x.r.Ptr()), vmm.ErrBusy)
				}
				require.Error(t, x.fill())
				require.NoError(t, x.devs[0].CopyOut(b, x.r.Ptr()), "the owner's access is as it was")

				x.devs[0].SetLimit(x.devs[0].Stats().Committed)
				_, err := x.devs[0].Create(page, vmm.Prop{})
				require.ErrorIs(t, err, vmm.ErrOutOfMemory)
				x.devs[0].SetLimit(0)
				require.Zero(t, x.calls)

				open := gate(t, x.devs[1], x.peer.Raw())
				end := parked(func() error { return mend(x) })
				require.Zero(t, x.calls, "the work of the device is waited for")
				open()
				require.NoError(t, end())
				require.Zero(t, x.devs[0].Stats().Quarantined)
				err = x.devs[1].CopyOut(b, x.r.Ptr())
				if have := x.r.Access(x.devs[1]); have == vmm.AccessNone {
					require.ErrorIs(t, err, vmm.ErrPermission)
				} else {
					require.NoError(t, err)
				}
				x.close()
			})
		}
	}
}

// TestAccessInDoubtUnchecked is the control: without the checks a fill is accepted, and a Trim
// takes its memory away.
func TestAccessInDoubtUnchecked(t *testing.T) {
	mayLose(t)
	x := newDoubtful(t, vmm.AccessNone)
	vmm.SetNoAccessCheck(x.devs[0], true)
	vmm.SetNoWait(x.devs[0], true)
	open := gate(t, x.devs[1], x.peer.Raw())
	require.NoError(t, x.fill())
	_, _ = x.devs[0].Trim(0) // the host driver reports the loss at once
	open()
	require.ErrorIs(t, x.peer.Sync(), vmm.ErrDeviceLost)
}

// TestTrimMendsASleepingRange: what a Wake that failed could not unmap is unmapped, and counted no
// longer.
func TestTrimMendsASleepingRange(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 2*page)
	before := w.contents(g)
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	w.refuse("SetAccess", 1, errInjected)
	w.refuse("Unmap", 1, errInjected)
	require.ErrorIs(t, vmm.Wake(g), errInjected)
	require.NotZero(t, w.devs[0].Stats().Quarantined)
	_, err := w.devs[0].Trim(0)
	require.NoError(t, err)
	require.Zero(t, w.devs[0].Stats().Quarantined)
	require.Zero(t, w.devs[0].Stats().Committed)
	require.NoError(t, vmm.Wake(g))
	require.Equal(t, before, w.contents(g))
	require.NoError(t, g.Close())
	w.end()
}

// sleepsWithMemory is a range that sleeps with memory and contents, and one that is awake.
func sleepsWithMemory(t *testing.T, w *world) (a, b *vmm.Range) {
	t.Helper()
	a, b = ranged(t, w, page), ranged(t, w, page)
	unmaps := 0
	w.before = func(c drivertest.Call) error {
		if c.Name == "Unmap" {
			unmaps++
		}
		if c.Name == "Unmap" && unmaps == 2 || c.Name == "Map" { // of b, and of a again
			return errInjected
		}
		return nil
	}
	require.ErrorIs(t, vmm.Sleep(vmm.SleepDrop, a, b), errInjected)
	w.before = nil
	require.True(t, a.Stats().Asleep)
	return a, b
}

// TestCloseOfWhatSleepsWithMemory: it goes back.
func TestCloseOfWhatSleepsWithMemory(t *testing.T) {
	w := newWorld(t, 1)
	a, b := sleepsWithMemory(t, w)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Zero(t, w.devs[0].Stats().Committed)
	w.end()
}

// TestWakeOfWhatSleepsWithMemory: it maps that memory, also after a Wake that failed and could not
// unmap it.
func TestWakeOfWhatSleepsWithMemory(t *testing.T) {
	w := newWorld(t, 1)
	a, b := sleepsWithMemory(t, w)
	w.refuse("SetAccess", 1, errInjected)
	w.refuse("Unmap", 1, errInjected)
	require.ErrorIs(t, vmm.Wake(a), errInjected)
	require.NotZero(t, w.devs[0].Stats().Quarantined)
	creates := w.devs[0].Stats().Creates
	require.NoError(t, vmm.Wake(a))
	require.Equal(t, creates, w.devs[0].Stats().Creates)
	require.Equal(t, w.contents(b), w.contents(a))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, a))
	require.NoError(t, vmm.Wake(a))
	require.Equal(t, w.contents(b), w.contents(a))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	w.end()
}

// TestEnablePeersWhoseUndoFails: Stats shows the state that it leaves, and the next call mends it.
func TestEnablePeersWhoseUndoFails(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	a, b := ranged(t, w, page), ranged(t, w, page)
	seen := 0
	w.before = func(c drivertest.Call) error {
		if c.Name == "SetAccess" {
			if seen++; seen > 1 { // of b, its undo, and the undo of a
				return errInjected
			}
		}
		return nil
	}
	require.ErrorIs(t, vmm.EnablePeers(vmm.AccessReadWrite, w.devs[1:], a, b), errInjected)
	w.before = nil
	for _, g := range []*vmm.Range{a, b} {
		require.NotZero(t, g.Stats().Quarantined)
		require.Equal(t, vmm.AccessNone, g.Access(peer))
	}
	require.NotZero(t, d.Stats().Quarantined)
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs[1:], a, b))
	require.Zero(t, d.Stats().Quarantined)
	w.allows(a, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessRead})
	w.allows(b, map[int]vmm.Access{0: vmm.AccessReadWrite, 1: vmm.AccessRead})
	require.NoError(t, errors.Join(a.Revoke(peer), a.Close(), b.Revoke(peer), b.Close()))
	w.end()
}
