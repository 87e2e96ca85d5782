//go:build cgo && linux

package cuda_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func openOn(t *testing.T, d *cuda.Driver, n int) *cuda.Device {
	t.Helper()
	v, err := d.Open(n)
	require.NoError(t, err)
	return v.(*cuda.Device)
}

func TestPeering(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	fake.Configure(4, 1<<30)
	t.Cleanup(fake.Clean)
	d, err := cuda.Loaded(path)
	require.NoError(t, err)
	fake.Link(0, 2, fakecuda.PCIe)
	fake.Link(3, 0, fakecuda.NoPath)
	for pair, want := range map[[2]int]driver.Peering{
		{0, 1}: {Access: true, Link: "nvlink", Atomics: true},
		{0, 2}: {Access: true, Link: "pcie", Rank: 1},
		{2, 0}: {Access: true, Link: "nvlink", Atomics: true},
		{3, 0}: {Link: "none", Rank: -1},
		{0, 3}: {Access: true, Link: "nvlink", Atomics: true},
		{2, 2}: {Access: true, Link: "self", Atomics: true},
	} {
		got, err := d.Peering(pair[0], pair[1])
		require.NoError(t, err)
		require.Equal(t, want, got, "%v", pair)
	}
	require.Zero(t, fake.Live().Contexts)
	require.Zero(t, fake.Calls("cuDevicePrimaryCtxRetain"), "a context was made to ask")
}

func TestPeerNotEnabled(t *testing.T) {
	d, v, fake := opened(t)
	isOnly(t, v.EnablePeer(0), driver.ErrInvalid, "itself")
	for _, n := range []int{-1, 2} {
		isOnly(t, v.EnablePeer(n), driver.ErrNoDevice)
		isOnly(t, v.DisablePeer(n), driver.ErrNoDevice)
	}
	fake.Link(0, 1, fakecuda.NoPath)
	isOnly(t, v.EnablePeer(1), driver.ErrNotSupported, "no path")
	isOnly(t, v.DisablePeer(1), driver.ErrInvalid)
	require.Equal(t, 1, fake.Live().Contexts)

	fake.Link(0, 1, fakecuda.NVLink)
	other := openOn(t, d, 0)
	require.NoError(t, other.EnablePeer(1))
	isOnly(t, other.EnablePeer(1), driver.ErrPeerEnabled)
	isOnly(t, v.EnablePeer(1), driver.ErrPeerEnabled, "the context is the same")
	require.Equal(t, 3, fake.Live().Contexts, "nothing was retained for it")
	before := fake.Calls("")
	isOnly(t, v.DisablePeer(1), driver.ErrInvalid, "another's to disable")
	require.Equal(t, before, fake.Calls(""))
	require.NoError(t, other.Close())
	require.Zero(t, fake.Live().Peers)
	require.NoError(t, v.EnablePeer(1))
	require.NoError(t, v.DisablePeer(1))
	isOnly(t, v.DisablePeer(1), driver.ErrInvalid)
}

// Whichever device closes first, the peer's context stays until access to it is
// disabled, and everything is freed in the end. For the fake driver it is a violation
// if a context goes to which another has access.
func TestPeerClose(t *testing.T) {
	for _, first := range []int{0, 1} {
		for _, disabled := range []bool{true, false} {
			t.Run(fmt.Sprintf("device %d first, disabled %v", first, disabled), func(t *testing.T) {
				d, fake := onFake(t)
				v := []*cuda.Device{openOn(t, d, 0), openOn(t, d, 1)}
				require.NoError(t, v[0].EnablePeer(1))
				require.NoError(t, v[1].EnablePeer(0))
				require.Equal(t, 4, fake.Live().Contexts)
				require.NoError(t, v[first].Close())
				require.Equal(t, 2, fake.Live().Contexts)
				require.Equal(t, 1, fake.Live().Peers)
				last := v[1-first]
				if disabled {
					require.NoError(t, last.DisablePeer(first))
					require.Equal(t, 1, fake.Live().Contexts)
				}
				require.NoError(t, last.Close())
				isOnly(t, last.EnablePeer(first), driver.ErrClosed)
				isOnly(t, last.DisablePeer(first), driver.ErrClosed)
			})
		}
	}
}

// Each call of an operation fails once. A failed operation changes nothing and works
// the next time, and Close frees everything, whichever of its calls fails once.
func TestPeerFaults(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	const push, mode, release = "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode", "cuDevicePrimaryCtxRelease_v2"
	for name, c := range map[string]struct {
		symbols []string
		enabled bool
		do      func(*cuda.Device) error
	}{
		"enable":  {[]string{"cuDevicePrimaryCtxRetain", push, mode, "cuCtxEnablePeerAccess"}, false, func(v *cuda.Device) error { return v.EnablePeer(1) }},
		"disable": {[]string{push, mode, "cuCtxDisablePeerAccess", release}, true, func(v *cuda.Device) error { return v.DisablePeer(1) }},
		"close":   {[]string{push, mode, "cuCtxDisablePeerAccess", release}, true, nil},
	} {
		for _, symbol := range c.symbols {
			t.Run(name+" with "+symbol+" failing", func(t *testing.T) {
				fake.Reset()
				d, err := cuda.Loaded(path)
				require.NoError(t, err)
				v, other := openOn(t, d, 0), openOn(t, d, 1)
				if c.enabled {
					require.NoError(t, v.EnablePeer(1))
				}
				if c.do == nil {
					require.NoError(t, other.Close())
				}
				before := fake.Live()
				fake.Fail(symbol, 1, 2)
				if c.do != nil {
					isOnly(t, c.do(v), driver.ErrOutOfMemory)
					require.Equal(t, before, fake.Live())
					require.NoError(t, c.do(v))
				}
				require.NoError(t, other.Close())
				require.NoError(t, v.Close())
				require.Empty(t, fake.Violations())
				require.Equal(t, fakecuda.Live{}, fake.Live())
			})
		}
	}
}

// A context that cannot be popped leaves nothing enabled or retained either.
func TestPeerNotPopped(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	d, err := cuda.Loaded(path)
	require.NoError(t, err)
	v, other := openOn(t, d, 0), openOn(t, d, 1)
	defer fake.Reset() // pops what is still pushed
	before := fake.Live()
	before.Pushed = 1
	fake.Fail("cuCtxPopCurrent_v2", 1, 201)
	isOnly(t, v.EnablePeer(1), driver.ErrInvalid)
	require.Equal(t, before, fake.Live())
	require.NoError(t, v.EnablePeer(1))
	before.Pushed = 2
	fake.Fail("cuCtxPopCurrent_v2", 1, 201)
	isOnly(t, v.DisablePeer(1), driver.ErrInvalid)
	require.Equal(t, before, fake.Live(), "it is done all the same")
	isOnly(t, v.DisablePeer(1), driver.ErrInvalid)
	require.NoError(t, other.Close())
}

// Access that another library has disabled is not enabled, and its context is not
// retained.
func TestPeerDisabledByOthers(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	d, err := cuda.Loaded(path)
	require.NoError(t, err)
	v := openOn(t, d, 0)
	openOn(t, d, 1) // else its context goes, to which access is still recorded
	require.NoError(t, v.EnablePeer(1))
	fake.Fail("cuCtxDisablePeerAccess", 1, 705)
	isOnly(t, v.DisablePeer(1), driver.ErrInvalid)
	require.Equal(t, 2, fake.Live().Contexts)

	isOnly(t, v.EnablePeer(1), driver.ErrPeerEnabled, "by another again")
	require.Equal(t, 2, fake.Live().Contexts)
}

// In a lost process access can be disabled, whichever device found the loss.
func TestPeerLost(t *testing.T) {
	for _, meets := range []int{0, 1, -1} {
		for _, closed := range []bool{true, false} {
			t.Run(fmt.Sprintf("device %d meets the loss, closed %v", meets, closed), func(t *testing.T) {
				d, fake := onFake(t)
				v := []*cuda.Device{openOn(t, d, 0), openOn(t, d, 1)}
				require.NoError(t, v[0].EnablePeer(1))
				fake.Lose()
				if meets >= 0 {
					isOnly(t, v[meets].Sync(), driver.ErrDeviceLost)
					isOnly(t, v[0].EnablePeer(1), driver.ErrDeviceLost)
					isOnly(t, v[1].EnablePeer(0), driver.ErrDeviceLost)
					_, err := d.Peering(0, 1)
					isOnly(t, err, driver.ErrDeviceLost)
				}
				if !closed {
					require.NoError(t, v[0].DisablePeer(1))
					isOnly(t, v[0].DisablePeer(1), driver.ErrInvalid)
					require.Equal(t, 2, fake.Live().Contexts)
				}
				require.NoError(t, v[0].Close())
				require.NoError(t, v[1].Close())
			})
		}
	}
}

// A sticky result of the peer's context loses this device too.
func TestPeerLostBesides(t *testing.T) {
	for _, symbol := range []string{"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxDisablePeerAccess"} {
		path := fakecuda.Build(t)
		fake := fakecuda.Open(t, path)
		d, err := cuda.Loaded(path)
		require.NoError(t, err)
		v := openOn(t, d, 0)
		enabling := symbol == "cuDevicePrimaryCtxRetain"
		if !enabling {
			require.NoError(t, v.EnablePeer(1))
		}
		fake.Fail(symbol, 1, 700)
		if enabling {
			isOnly(t, v.EnablePeer(1), driver.ErrDeviceLost)
		} else {
			require.NoError(t, v.DisablePeer(1), symbol)
		}
		isOnly(t, d.SyncIfActive(1), driver.ErrDeviceLost)
		isOnly(t, v.Sync(), driver.ErrDeviceLost)
		fake.Reset()
	}
}

func TestPeerConcurrent(t *testing.T) {
	d, fake := onFake(t)
	v := openOn(t, d, 0)
	const goroutines, rounds = 8, 50
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				if err := v.EnablePeer(1); err == nil {
					err = v.DisablePeer(1)
					if err != nil {
						t.Errorf("disable what this goroutine enabled: %v", err)
					}
				} else if !errors.Is(err, driver.ErrPeerEnabled) {
					t.Errorf("enable: %v", err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, v.EnablePeer(1))
	require.Equal(t, 1, fake.Live().Peers)
	require.NoError(t, v.Close())
}
