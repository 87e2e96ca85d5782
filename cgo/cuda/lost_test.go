//go:build cgo && linux

package cuda_test

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/cgo/internal/fork"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// things is one object of each kind on device 0.
type things struct {
	d      *cuda.Driver
	v      *cuda.Device
	p      driver.Ptr // two granules, the first mapped and accessible
	spare  driver.Ptr // two more, with nothing mapped
	h      driver.Handle
	fd     int // of h
	s      driver.Stream
	e      driver.Event
	plain  driver.Ptr
	pinned driver.Ptr
	m      driver.Module
	f      driver.Function // fill_bytes
	g      driver.Graph    // of one launch
	x      driver.GraphExec
	pool   driver.Pool

	foreign driver.Stream // of another library, on the same device
	between *between      // not of makeThings
}

func (x *things) prop() driver.Prop { return driver.Prop{Location: onDevice(0), Share: driver.ShareFD} }

func (x *things) grant(a driver.Access) []driver.Grant {
	return []driver.Grant{{To: onDevice(0), Access: a}}
}

func makeThings(t *testing.T, d *cuda.Driver) *things {
	t.Helper()
	x := &things{d: d}
	v, err := d.Open(0)
	require.NoError(t, err)
	x.v = v.(*cuda.Device)
	x.p, err = d.Reserve(2*granule, 0)
	require.NoError(t, err)
	x.spare, err = d.Reserve(2*granule, 0)
	require.NoError(t, err)
	x.h, err = d.Create(granule, x.prop())
	require.NoError(t, err)
	require.NoError(t, d.Map(x.p, granule, x.h))
	require.NoError(t, d.SetAccess(x.p, granule, x.grant(driver.AccessReadWrite)))
	x.fd, err = d.Export(x.h)
	require.NoError(t, err)
	exported := os.NewFile(uintptr(x.fd), "exported")
	t.Cleanup(func() { require.NoError(t, exported.Close()) })
	x.s, err = x.v.NewStream()
	require.NoError(t, err)
	x.e, err = x.v.NewEvent(driver.EventTiming)
	require.NoError(t, err)
	require.NoError(t, x.v.Record(x.e, x.s))
	x.plain, err = x.v.AllocPlain(1)
	require.NoError(t, err)
	x.pinned, _, err = x.v.AllocHost(1)
	require.NoError(t, err)
	x.m, _, err = x.v.LoadModule(driver.Code{Image: []byte(fakeCode)})
	require.NoError(t, err)
	x.f, err = x.v.Function(x.m, "fill_bytes")
	require.NoError(t, err)
	x.g = x.captured(t, func() { require.NoError(t, x.v.Launch(x.f, fillBytes(x.p, 4, 3), x.s)) })
	x.x, err = x.v.Instantiate(x.g)
	require.NoError(t, err)
	x.pool, err = x.v.CreatePool(driver.PoolProps{})
	require.NoError(t, err)
	return x
}

// captured is the graph of what queue puts on the stream.
func (x *things) captured(t *testing.T, queue func()) driver.Graph {
	t.Helper()
	require.NoError(t, x.v.BeginCapture(x.s, driver.CaptureRelaxed))
	queue()
	g, err := x.v.EndCapture(x.s)
	require.NoError(t, err)
	return g
}

// fillBytes is a launch of the fake driver's fill_bytes.
func fillBytes(p driver.Ptr, n uint64, value byte) *driver.Launch {
	args := binary.LittleEndian.AppendUint64(nil, uint64(p))
	args = binary.LittleEndian.AppendUint64(args, n)
	return &driver.Launch{Block: driver.Dim{X: 32}, Args: binary.LittleEndian.AppendUint32(args, uint32(value))}
}

// uses are the calls that need device 0.
func (x *things) uses() map[string]func() error {
	d, v, p, s := x.d, x.v, x.p, x.s
	return map[string]func() error{
		"Supports":               func() error { return d.Supports(0, driver.FeatureVMM) },
		"CanAccessPeer":          func() error { _, err := d.CanAccessPeer(1, 0); return err },
		"Peering":                func() error { _, err := d.Peering(1, 0); return err },
		"EnablePeer":             func() error { return v.EnablePeer(1) },
		"Granularity":            func() error { _, err := d.Granularity(x.prop()); return err },
		"GranularityRecommended": func() error { _, err := d.GranularityRecommended(x.prop()); return err },
		"Create":                 func() error { _, err := d.Create(granule, x.prop()); return err },
		"Map":                    func() error { return d.Map(p+granule, granule, x.h) },
		"SetAccess":              func() error { return d.SetAccess(p, granule, x.grant(driver.AccessRead)) },
		"Access":                 func() error { _, err := d.Access(p, onDevice(0)); return err },
		"Export":                 func() error { _, err := d.Export(x.h); return err },
		"Properties":             func() error { _, err := d.Properties(x.h); return err },
		"Import":                 func() error { _, err := d.Import(x.fd, granule, x.prop()); return err },
		"ExportRange":            func() error { _, err := d.ExportRange(p, granule, 0); return err },
		"ImportFabric":           func() error { _, err := d.ImportFabric([64]byte{}, granule, x.prop()); return err },
		"SyncIfActive":           func() error { return d.SyncIfActive(0) },
		"Open":                   func() error { _, err := d.Open(0); return err },
		"MemInfo":                func() error { _, _, err := v.MemInfo(); return err },
		"CopyIn":                 func() error { return v.CopyIn(p, []byte{1}) },
		"CopyOut":                func() error { return v.CopyOut([]byte{1}, p) },
		"Copy":                   func() error { return v.Copy(p, p+8, 4, s) },
		"Fill":                   func() error { return v.Fill(p, 1, 4, 1, s) },
		"NewStream":              func() error { _, err := v.NewStream(); return err },
		"SyncStream":             func() error { return v.SyncStream(s) },
		"StreamDone":             func() error { _, err := v.StreamDone(s); return err },
		"Capturing":              func() error { _, err := v.Capturing(s); return err },
		"NewEvent":               func() error { _, err := v.NewEvent(0); return err },
		"SyncEvent":              func() error { return v.SyncEvent(x.e) },
		"Record":                 func() error { return v.Record(x.e, s) },
		"Wait":                   func() error { return v.Wait(s, x.e) },
		"Done":                   func() error { _, err := v.Done(x.e); return err },
		"Elapsed":                func() error { _, err := v.Elapsed(x.e, x.e); return err },
		"Sync":                   v.Sync,
		"Do":                     func() error { return v.Do(func() error { return errors.New("f has run") }) },
		"AllocPlain":             func() error { _, err := v.AllocPlain(1); return err },
		"AllocAsync":             func() error { _, err := v.AllocAsync(1, s); return err },
		"FreeAsync":              func() error { return v.FreeAsync(x.plain, s) },
		"AllocHost":              func() error { _, _, err := v.AllocHost(1); return err },
		"BeginCapture":           func() error { return v.BeginCapture(s, driver.CaptureRelaxed) },
		"EndCapture":             func() error { return endCapture(v, s) },
		"WriteValue":             func() error { return v.WriteValue(s, p, 1, 8) },
		"WaitValue":              func() error { return v.WaitValue(s, p, 0, 4) },
		"LoadModule":             func() error { _, _, err := v.LoadModule(driver.Code{Image: []byte(fakeCode)}); return err },
		"Function":               func() error { _, err := v.Function(x.m, "empty"); return err },
		"Params":                 func() error { _, err := v.Params(x.f); return err },
		"FunctionInfo":           func() error { _, err := v.FunctionInfo(x.f); return err },
		"SetMaxDynamicShared":    func() error { return v.SetMaxDynamicShared(x.f, 1) },
		"Occupancy":              func() error { _, err := v.Occupancy(x.f, 1, 0); return err },
		"SuggestBlock":           func() error { _, _, err := v.SuggestBlock(x.f, 0); return err },
		"Launch":                 func() error { return v.Launch(x.f, fillBytes(p, 1, 1), s) },
		"Launch cooperative": func() error {
			l := fillBytes(p, 1, 1)
			l.Cooperative = true
			return v.Launch(x.f, l, s)
		},
		"DefaultPool":       func() error { _, err := v.DefaultPool(); return err },
		"CurrentPool":       func() error { _, err := v.CurrentPool(); return err },
		"SetCurrentPool":    func() error { return v.SetCurrentPool(x.pool) },
		"CreatePool":        func() error { _, err := v.CreatePool(driver.PoolProps{}); return err },
		"AllocFromPool":     func() error { _, err := v.AllocFromPool(x.pool, 1, s); return err },
		"TrimPool":          func() error { return v.TrimPool(x.pool, 0) },
		"PoolAttribute":     func() error { _, err := v.PoolAttribute(x.pool, driver.PoolUsed); return err },
		"SetPoolAttribute":  func() error { return v.SetPoolAttribute(x.pool, driver.PoolReleaseThreshold, 1) },
		"SetPoolAccess":     func() error { return v.SetPoolAccess(x.pool, x.grant(driver.AccessReadWrite)) },
		"PoolAccess":        func() error { _, err := v.PoolAccess(x.pool, onDevice(0)); return err },
		"PoolOf":            func() error { _, _, err := v.PoolOf(x.plain); return err },
		"PoolShares":        func() error { _, err := v.PoolShares(); return err },
		"CopyPeer":          func() error { return v.CopyPeer(x.p, 0, x.p+8, 0, 4, s) },
		"CaptureID":         func() error { _, err := v.CaptureID(s); return err },
		"Instantiate":       func() error { _, err := v.Instantiate(x.g); return err },
		"UpdateGraphExec":   func() error { return v.UpdateGraphExec(x.x, x.g) },
		"LaunchGraph":       func() error { return v.LaunchGraph(x.x, s) },
		"Priorities":        func() error { _, _, err := v.Priorities(); return err },
		"NewStreamPriority": func() error { _, err := v.NewStreamPriority(-1); return err },
	}
}

// giveBack frees all that can be freed on a lost device.
func (x *things) giveBack(t *testing.T) {
	t.Helper()
	require.NoError(t, x.d.SetAccess(x.p, granule, x.grant(driver.AccessNone)))
	require.NoError(t, x.d.Unmap(x.p, granule))
	require.NoError(t, x.d.Release(x.h))
	require.NoError(t, x.d.Free(x.p, 2*granule))
	require.NoError(t, x.d.Free(x.spare, 2*granule))
	require.NoError(t, x.v.FreeStream(x.s))
	require.NoError(t, x.v.FreeEvent(x.e))
	x.giveBackKernels(t)
	require.NoError(t, x.v.DestroyPool(x.pool))
	require.NoError(t, x.v.Close())
}

func (x *things) giveBackKernels(t *testing.T) {
	t.Helper()
	require.NoError(t, x.v.FreeGraphExec(x.x))
	require.NoError(t, x.v.FreeGraph(x.g))
	require.NoError(t, x.v.UnloadModule(x.m))
}

func TestLost(t *testing.T) {
	d, fake := onFake(t)
	x := makeThings(t, d)
	require.NoError(t, x.v.FreePlain(x.plain))
	require.NoError(t, x.v.FreeHost(x.pinned))
	other, err := d.Open(1)
	require.NoError(t, err)
	shared := makeBetween(t, x.v, fake)
	require.NoError(t, x.v.FreePlain(shared.block))
	fake.Lose()
	isOnly(t, x.v.Sync(), driver.ErrDeviceLost) // this call finds the loss
	before := fake.Calls("")
	for _, calls := range []map[string]func() error{x.uses(), shared.uses()} {
		for name, call := range calls {
			isOnly(t, call(), driver.ErrDeviceLost, name)
		}
	}
	isOnly(t, other.Sync(), driver.ErrDeviceLost, "one lost device is a lost process")
	_, err = d.Open(1)
	isOnly(t, err, driver.ErrDeviceLost)
	_, err = d.Create(granule, driver.Prop{Location: onDevice(1)})
	isOnly(t, err, driver.ErrDeviceLost)
	// The device of the address is asked for first, without a context.
	require.Equal(t, before+1, fake.Calls(""), "libcuda was asked of a lost device")

	require.NoError(t, other.Close())
	shared.giveBack(t)
	x.giveBack(t)
}

// Every sticky result loses every device of the process, and no other does.
func TestSticky(t *testing.T) {
	sticky := []int{214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}
	for _, code := range append(sticky, 1, 2, 4, 46, 100, 201, 304, 400, 401, 600, 800, 801, 802, 900, 999) {
		d, v, fake := opened(t)
		fake.Fail("cuCtxSynchronize", 1, code)
		require.Error(t, v.Sync())
		_, _, err := v.MemInfo()
		if slices.Contains(sticky, code) {
			isOnly(t, err, driver.ErrDeviceLost, code)
			for n := range 2 {
				_, err = d.Open(n)
				isOnly(t, err, driver.ErrDeviceLost, code)
			}
		} else {
			require.NoError(t, err, "after result %d", code)
		}
		require.NoError(t, v.Close())
	}
}

// The driver does not survive a fork, and says so instead of crashing there.
func TestForked(t *testing.T) {
	d, fake := onFake(t)
	x := makeThings(t, d)
	peer, err := d.Open(1)
	require.NoError(t, err)
	w := peer.(*cuda.Device)
	require.NoError(t, w.EnablePeer(0))
	shared := makeBetween(t, x.v, fake)
	calls := x.uses()
	maps.Copy(calls, shared.uses())
	maps.Copy(calls, map[string]func() error{
		"Devices":    func() error { _, err := d.Devices(); return err },
		"Reserve":    func() error { _, err := d.Reserve(granule, 0); return err },
		"Unmap":      func() error { return d.Unmap(x.p, granule) },
		"Release":    func() error { return d.Release(x.h) },
		"Free":       func() error { return d.Free(x.p, 2*granule) },
		"FreeStream": func() error { return x.v.FreeStream(x.s) },
		"FreeEvent":  func() error { return x.v.FreeEvent(x.e) },
		"FreePlain":  func() error { return x.v.FreePlain(x.plain) },
		"FreeHost":   func() error { return x.v.FreeHost(x.pinned) },

		"FreeGraph":     func() error { return x.v.FreeGraph(x.g) },
		"FreeGraphExec": func() error { return x.v.FreeGraphExec(x.x) },
		"UnloadModule":  func() error { return x.v.UnloadModule(x.m) },

		"DisablePeer": func() error { return w.DisablePeer(0) },
	})
	names := append(slices.Sorted(maps.Keys(calls)), "Close", "Close with a peer")
	calls["Close"], calls["Close with a peer"] = x.v.Close, w.Close
	before := fake.Calls("")
	const asked = 255
	status, err := fork.Run(func() int {
		for i, name := range names {
			err := calls[name]()
			var r cuda.Result
			if !errors.Is(err, driver.ErrInvalid) || !errors.As(err, &r) ||
				r.Error() != "the driver does not survive a fork: this is a child of the process that opened it" {
				return i + 1
			}
		}
		if fake.Calls("") != before {
			return asked
		}
		return 0
	})
	require.NoError(t, err)
	require.NotEqual(t, asked, status, "the child came as far as libcuda")
	require.LessOrEqual(t, status, len(names))
	if status > 0 {
		t.Errorf("in a forked child %s does not say so", names[status-1])
	}
	require.NoError(t, x.v.FreePlain(x.plain), "in the parent all is as before")
	require.NoError(t, x.v.FreeHost(x.pinned))
	require.NoError(t, w.DisablePeer(0))
	require.NoError(t, w.Close())
	require.NoError(t, x.v.FreePlain(shared.block))
	require.NoError(t, x.v.CloseMem(shared.opened))
	shared.giveBack(t)
	x.giveBack(t)
}

func TestImportForeign(t *testing.T) {
	d, fake := onFake(t)
	prop := driver.Prop{Location: onDevice(0), Share: driver.ShareFD}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	regular, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	require.NoError(t, regular.Truncate(granule))
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	for _, f := range []*os.File{r, regular, null} {
		_, err := d.Import(int(f.Fd()), granule, prop)
		isOnly(t, err, driver.ErrInvalid, f.Name())
		require.NoError(t, f.Close(), "import does not take the descriptor")
	}
	require.Equal(t, 1, fake.Calls("cuMemImportFromShareableHandle"), "only a device's descriptor comes that far")
	_, err = d.Import(int(null.Fd()), granule, prop)
	isOnly(t, err, driver.ErrInvalid, "a closed file")
}

// CUDA cannot tell a wrong size at import.
func TestImportSize(t *testing.T) {
	d, _ := onFake(t)
	prop := driver.Prop{Location: onDevice(0), Share: driver.ShareFD}
	h, err := d.Create(2*granule, prop)
	require.NoError(t, err)
	fd, err := d.Export(h)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "exported")
	p, err := d.Reserve(4*granule, 0)
	require.NoError(t, err)
	for _, size := range []uint64{granule, 4 * granule} {
		wrong, err := d.Import(fd, size, prop)
		require.NoError(t, err)
		isOnly(t, d.Map(p, size, wrong), driver.ErrInvalid)
		require.NoError(t, d.Release(wrong))
	}
	_, err = d.Import(fd, granule+1, prop)
	isOnly(t, err, driver.ErrInvalid)
	require.NoError(t, f.Close())
	require.NoError(t, d.Free(p, 4*granule))
	require.NoError(t, d.Release(h))
}

// Where CUDA does not say where imported memory is, it is released.
func TestImportLocationFails(t *testing.T) {
	d, fake := onFake(t)
	prop := driver.Prop{Location: onDevice(1), Share: driver.ShareFD}
	h, err := d.Create(granule, prop)
	require.NoError(t, err)
	fd, err := d.Export(h)
	require.NoError(t, err)
	before := fake.Live()
	fake.Fail("cuMemGetAllocationPropertiesFromHandle", 1, 2)
	_, err = d.Import(fd, granule, prop)
	isOnly(t, err, driver.ErrOutOfMemory)
	require.Equal(t, before, fake.Live())
	imported, err := d.Import(fd, granule, driver.Prop{Location: onDevice(0), Share: driver.ShareFD})
	require.NoError(t, err)
	p, err := d.Properties(imported)
	require.NoError(t, err)
	require.Equal(t, driver.Prop{Location: onDevice(1)}, p)
	require.NoError(t, os.NewFile(uintptr(fd), "exported").Close())
	require.NoError(t, d.Release(imported))
	require.NoError(t, d.Release(h))
}
