//go:build cgo && linux

package cuda_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/cgo/internal/second"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// onReset is the binding on a fake driver whose contexts another library resets.
func onReset(t *testing.T, changes ...fakelib.Change) (d *cuda.Driver, fake *fakecuda.Library, reset func(dev int)) {
	t.Helper()
	path := fakecuda.Build(t, changes...)
	fake = fakecuda.Open(t, path)
	d, err := cuda.Loaded(path)
	require.NoError(t, err)
	t.Cleanup(fake.Clean)
	return d, fake, func(dev int) {
		t.Helper()
		require.NoError(t, second.ResetPrimary(path, dev))
	}
}

// ofDevice are those of uses that are calls of an opened Device.
func ofDevice(x *things) map[string]func() error {
	calls := x.uses()
	for _, name := range []string{"Supports", "CanAccessPeer", "Peering", "Granularity", "GranularityRecommended", "Create", "Map", "SetAccess", "Access",
		"Export", "Import", "Properties", "ExportRange", "ImportFabric", "SyncIfActive", "Open"} {
		delete(calls, name)
	}
	return calls
}

// Whichever call finds the reset first returns ErrContextReset and passes no handle to
// libcuda, whether or not the context was made anew before it.
func TestReset(t *testing.T) {
	for _, anew := range []bool{false, true} {
		d, fake, reset := onReset(t)
		for _, first := range slices.Sorted(maps.Keys(ofDevice(&things{d: d, v: &cuda.Device{}}))) {
			if first == "PoolShares" {
				continue // of the device, not of the context
			}
			x := makeThings(t, d)
			reset(0)
			var after driver.Device
			if anew {
				var err error
				after, err = d.Open(0)
				require.NoError(t, err)
			}
			calls := ofDevice(x)
			isOnly(t, calls[first](), driver.ErrContextReset, first)
			before := fake.Calls("")
			for name, call := range calls {
				isOnly(t, call(), driver.ErrContextReset, "%s after %s", name, first)
			}
			require.Equal(t, before, fake.Calls(""), "libcuda was asked of a context that was reset")
			require.NoError(t, x.v.FreeHost(x.pinned), "the reset took it")
			x.giveBack(t)
			if anew {
				require.NoError(t, after.Sync())
				require.NoError(t, after.Close())
			}
			require.Empty(t, fake.Violations(), first)
			require.Zero(t, fake.Live().Contexts, "Close releases what Open retained")
		}
	}
}

// A call that frees something finds the reset first: it succeeds, and no handle reaches
// libcuda.
func TestResetGiveBack(t *testing.T) {
	for _, name := range []string{"FreeStream", "FreeEvent", "FreeHost", "FreeGraph", "FreeGraphExec", "UnloadModule", "DestroyPool", "Close"} {
		d, fake, reset := onReset(t)
		x := makeThings(t, d)
		reset(0)
		after, err := d.Open(0)
		require.NoError(t, err)
		destroys := []string{"cuStreamDestroy_v2", "cuEventDestroy_v2", "cuMemFreeHost", "cuGraphDestroy", "cuGraphExecDestroy", "cuModuleUnload", "cuMemPoolDestroy"}
		count := func() (n int) {
			for _, symbol := range destroys {
				n += fake.Calls(symbol)
			}
			return n
		}
		before := count()
		require.NoError(t, map[string]func() error{
			"FreeStream":    func() error { return x.v.FreeStream(x.s) },
			"FreeEvent":     func() error { return x.v.FreeEvent(x.e) },
			"FreeHost":      func() error { return x.v.FreeHost(x.pinned) },
			"FreeGraph":     func() error { return x.v.FreeGraph(x.g) },
			"FreeGraphExec": func() error { return x.v.FreeGraphExec(x.x) },
			"UnloadModule":  func() error { return x.v.UnloadModule(x.m) },
			"DestroyPool":   func() error { return x.v.DestroyPool(x.pool) },
			"Close":         x.v.Close,
		}[name](), name)
		if name == "Close" {
			x.v = openOn(t, d, 0)
			x.s, err = x.v.NewStream()
			require.NoError(t, err)
			x.e, err = x.v.NewEvent(0)
			require.NoError(t, err)
			isOnly(t, x.v.UnloadModule(x.m), driver.ErrInvalid)
			isOnly(t, x.v.FreeGraph(x.g), driver.ErrInvalid)
			isOnly(t, x.v.FreeGraphExec(x.x), driver.ErrInvalid)
			isOnly(t, x.v.Launch(x.f, fillBytes(x.p, 1, 1), x.s), driver.ErrInvalid)
		} else {
			isOnly(t, x.v.Sync(), driver.ErrContextReset)
		}
		require.Equal(t, before, count(), name)
		switch name { // once
		case "FreeStream":
			isOnly(t, x.v.FreeStream(x.s), driver.ErrInvalid)
			x.s, err = after.NewStream()
			require.NoError(t, err)
			require.NoError(t, after.FreeStream(x.s))
		case "FreeEvent":
			isOnly(t, x.v.FreeEvent(x.e), driver.ErrInvalid)
		case "FreeGraph":
			isOnly(t, x.v.FreeGraph(x.g), driver.ErrInvalid)
		case "FreeGraphExec":
			isOnly(t, x.v.FreeGraphExec(x.x), driver.ErrInvalid)
		case "UnloadModule":
			isOnly(t, x.v.UnloadModule(x.m), driver.ErrInvalid)
		}
		require.NoError(t, after.Close())
		require.NoError(t, d.SetAccess(x.p, granule, x.grant(driver.AccessNone)))
		require.NoError(t, d.Unmap(x.p, granule))
		require.NoError(t, d.Release(x.h))
		require.NoError(t, d.Free(x.p, 2*granule))
		require.NoError(t, d.Free(x.spare, 2*granule))
		if name != "FreeStream" {
			require.NoError(t, x.v.FreeStream(x.s))
		}
		if name != "FreeEvent" {
			require.NoError(t, x.v.FreeEvent(x.e))
		}
		require.NoError(t, x.v.Close()) // the reset took the module and the graphs
	}
}

// A Device opened anew, and one of another ordinal, refuse handles from before the
// reset: libcuda would crash on them.
func TestResetHandles(t *testing.T) {
	for _, known := range []bool{false, true} {
		d, fake, reset := onReset(t)
		old, other := openOn(t, d, 0), openOn(t, d, 1)
		s, err := old.NewStream()
		require.NoError(t, err)
		e, err := old.NewEvent(driver.EventTiming)
		require.NoError(t, err)
		require.NoError(t, old.Record(e, s))
		require.NoError(t, other.Wait(other.CopyStream(), e), "while it was there")
		m, _, err := old.LoadModule(driver.Code{Image: []byte(fakeCode)})
		require.NoError(t, err)
		f, err := old.Function(m, "empty")
		require.NoError(t, err)
		require.NoError(t, old.BeginCapture(s, driver.CaptureRelaxed))
		g, err := old.EndCapture(s)
		require.NoError(t, err)
		exec, err := old.Instantiate(g)
		require.NoError(t, err)
		p, err := old.CreatePool(driver.PoolProps{})
		require.NoError(t, err)
		reset(0)
		v := openOn(t, d, 0)
		if known {
			isOnly(t, old.Sync(), driver.ErrContextReset)
		}
		good, err := v.NewEvent(driver.EventTiming)
		require.NoError(t, err)
		for name, call := range map[string]func() error{
			"Copy":            func() error { return v.Copy(1<<30, 1<<30, 1, s) },
			"Fill":            func() error { return v.Fill(1<<30, 1, 1, 1, s) },
			"SyncStream":      func() error { return v.SyncStream(s) },
			"Sync its Own":    func() error { return v.SyncStream(old.CopyStream()) },
			"Capturing":       func() error { _, err := v.Capturing(s); return err },
			"Record":          func() error { return v.Record(good, s) },
			"Record the old":  func() error { return v.Record(e, v.CopyStream()) },
			"Wait":            func() error { return v.Wait(v.CopyStream(), e) },
			"Wait with it":    func() error { return v.Wait(s, good) },
			"Wait elsewhere":  func() error { return other.Wait(other.CopyStream(), e) },
			"SyncEvent":       func() error { return v.SyncEvent(e) },
			"Sync elsewhere":  func() error { return other.SyncEvent(e) },
			"Done":            func() error { _, err := v.Done(e); return err },
			"Elapsed":         func() error { _, err := v.Elapsed(e, good); return err },
			"Elapsed to it":   func() error { _, err := v.Elapsed(good, e); return err },
			"BeginCapture":    func() error { return v.BeginCapture(s, driver.CaptureRelaxed) },
			"EndCapture":      func() error { return endCapture(v, s) },
			"WriteValue":      func() error { return v.WriteValue(s, 1<<30, 1, 8) },
			"AllocAsync":      func() error { _, err := v.AllocAsync(1, s); return err },
			"FreeAsync":       func() error { return v.FreeAsync(1<<30, s) },
			"AllocFromPool":   func() error { _, err := v.AllocFromPool(p, 1, v.CopyStream()); return err },
			"TrimPool":        func() error { return other.TrimPool(p, 0) },
			"another's Own":   func() error { return other.SyncStream(old.CopyStream()) },
			"FreeStream Own":  func() error { return v.FreeStream(old.CopyStream()) },
			"EnablePeer self": func() error { return v.EnablePeer(0) },
			"Function":        func() error { _, err := v.Function(m, "empty"); return err },
			"FunctionInfo":    func() error { _, err := v.FunctionInfo(f); return err },
			"Launch":          func() error { return v.Launch(f, &driver.Launch{}, v.CopyStream()) },
			"Launch on it":    func() error { return v.Launch(f, &driver.Launch{}, s) },
			"CaptureID":       func() error { _, err := v.CaptureID(s); return err },
			"Instantiate":     func() error { _, err := v.Instantiate(g); return err },
			"Update":          func() error { return v.UpdateGraphExec(exec, g) },
			"LaunchGraph":     func() error { return v.LaunchGraph(exec, v.CopyStream()) },
		} {
			isOnly(t, call(), driver.ErrInvalid, name)
		}
		require.NoError(t, v.FreeEvent(e), "by the one opened anew")
		require.NoError(t, v.UnloadModule(m))
		require.NoError(t, old.FreeGraph(g))
		require.NoError(t, v.FreeGraphExec(exec))
		isOnly(t, old.FreeEvent(e), driver.ErrInvalid)
		require.NoError(t, old.FreeStream(s))
		require.NoError(t, old.DestroyPool(p))
		require.NoError(t, v.FreeEvent(good))
		require.NoError(t, other.Sync())
		for _, x := range []*cuda.Device{old, v, other} {
			require.NoError(t, x.Close())
		}
		require.Empty(t, fake.Violations())
	}
}

// A reset of either device ends access to plain memory, and no context stays retained.
func TestResetPeers(t *testing.T) {
	for _, which := range []int{0, 1} {
		for _, disabled := range []bool{false, true} {
			d, fake, reset := onReset(t)
			v, peer := openOn(t, d, 0), openOn(t, d, 1)
			require.NoError(t, v.EnablePeer(1))
			reset(which)
			again := openOn(t, d, which)
			if disabled {
				require.NoError(t, v.DisablePeer(1))
				isOnly(t, v.DisablePeer(1), driver.ErrInvalid)
				require.Equal(t, 3, fake.Live().Contexts)
			}
			for _, x := range []*cuda.Device{v, peer, again} {
				require.NoError(t, x.Close())
			}
		}
	}
}

// The driver's own calls work after a reset, because they need no context.
func TestResetDriver(t *testing.T) {
	d, _, reset := onReset(t)
	x := makeThings(t, d)
	require.NoError(t, x.v.CopyIn(x.p, []byte{1, 2, 3}))
	reset(0)
	for name, call := range x.uses() {
		if _, ofDevice := ofDevice(x)[name]; ofDevice || name == "ImportFabric" || name == "Import" || name == "Open" || name == "Map" || name == "Create" {
			continue
		}
		require.NoError(t, call(), name)
	}
	h, err := d.Create(granule, x.prop())
	require.NoError(t, err)
	require.NoError(t, d.Map(x.spare, granule, h))
	require.NoError(t, d.Unmap(x.spare, granule))
	require.NoError(t, d.Release(h))
	v := openOn(t, d, 0)
	got := make([]byte, 3)
	require.NoError(t, v.CopyOut(got, x.p))
	require.Equal(t, []byte{1, 2, 3}, got)
	require.NoError(t, v.Close())
	require.NoError(t, x.v.FreeHost(x.pinned))
	x.giveBack(t)
}

// Without context ids only a result shows the reset.
func TestResetWithoutIDs(t *testing.T) {
	d, fake, reset := onReset(t, fakecuda.Missing("cuCtxGetId"))
	x := makeThings(t, d)
	reset(0)
	isOnly(t, x.v.Sync(), driver.ErrContextReset)
	before := fake.Calls("")
	for name, call := range ofDevice(x) {
		isOnly(t, call(), driver.ErrContextReset, name)
	}
	require.Equal(t, before, fake.Calls(""))
	v := openOn(t, d, 0)
	isOnly(t, v.SyncStream(x.s), driver.ErrInvalid)
	isOnly(t, v.SyncEvent(x.e), driver.ErrInvalid)
	require.NoError(t, v.Close())
	require.NoError(t, x.v.FreeHost(x.pinned))
	x.giveBack(t)
}

// A reset is no loss: the other devices and the process still work.
func TestResetIsNoLoss(t *testing.T) {
	d, fake, reset := onReset(t)
	v, other := openOn(t, d, 0), openOn(t, d, 1)
	reset(0)
	err := v.Sync()
	require.ErrorIs(t, err, driver.ErrContextReset)
	require.ErrorIs(t, err, driver.ErrDeviceLost, "of this Device it is")
	require.ErrorIs(t, v.Sync(), driver.ErrDeviceLost)
	require.NoError(t, other.Sync())
	require.NoError(t, d.Supports(0, driver.FeatureVMM))
	require.NoError(t, d.SyncIfActive(0))
	require.NoError(t, v.Close())
	require.NoError(t, other.Close())
	require.Zero(t, fake.Live().Contexts)
}
