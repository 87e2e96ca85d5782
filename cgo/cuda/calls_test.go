//go:build cgo && linux

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// call is a call of package driver, and one symbol that it must call: in that version
// and with those arguments. A leading * stands for a value of the driver's.
type call struct {
	name, symbol, args string
	do                 func() error
	quiet              bool // the call succeeds when the symbol fails
}

// calls is every call of package driver on x. CUDA's numbers are written out, so that
// they do not come from the code under test.
func (x *things) calls() []call {
	d, v, p, s, e := x.d, x.v, x.p, x.s, x.e
	in, out := make([]byte, 3), make([]byte, 5)
	own, q, word := v.CopyStream(), p+granule, p+8
	f := fmt.Sprintf
	devices := func() error { _, err := d.Devices(); return err }
	granularity := func(p driver.Prop) func() error {
		return func() error { _, err := d.Granularity(p); return err }
	}
	event := func(flags driver.EventFlags) func() error {
		return func() error { _, err := v.NewEvent(flags); return err }
	}
	capture := func() error {
		if err := v.BeginCapture(s, driver.CaptureRelaxed); err != nil {
			return err
		}
		return endCapture(v, s)
	}
	export := func() error {
		fd, err := d.ExportRange(p, 8192, 0)
		if err != nil {
			return err
		}
		return os.NewFile(uintptr(fd), "dma-buf").Close()
	}
	peering := func() error { _, err := d.Peering(1, 0); return err }
	enable := func() error { return v.EnablePeer(1) }
	disable := func() error {
		if _, err := d.Open(1); err != nil { // so that the peer's context stays
			return err
		}
		if err := v.EnablePeer(1); err != nil {
			return err
		}
		return v.DisablePeer(1)
	}
	const plain = "type=1 share=0 location=1:1 compression=0 rdma=0 usage=0"
	all := []call{
		{"Devices", "cuDriverGetVersion", "", devices, false},
		{"Devices", "cuDeviceGet", "ordinal=1", devices, false},
		{"Devices", "cuDeviceGetName", "len=128 dev=1", devices, false},
		{"Devices", "cuDeviceGetPCIBusId", "len=32 dev=1", devices, false},
		{"Devices", "cuDeviceTotalMem_v2", "dev=1", devices, false},
		{"Devices", "cuDeviceGetUuid_v2", "dev=1", devices, false},
		{"Devices", "cuDeviceGetAttribute", "attribute=20 dev=1", devices, false},
		{"CanAccessPeer", "cuDeviceCanAccessPeer", "from=1 to=0", func() error { _, err := d.CanAccessPeer(1, 0); return err }, false},
		{"Peering", "cuDeviceCanAccessPeer", "from=1 to=0", peering, false},
		{"Peering", "cuDeviceGetP2PAttribute", "attribute=3 from=1 to=0", peering, false},
		{"Granularity", "cuMemGetAllocationGranularity", plain + " option=0", granularity(driver.Prop{Location: onDevice(1)}), false},
		{"GranularityRecommended", "cuMemGetAllocationGranularity", plain + " option=1",
			func() error { _, err := d.GranularityRecommended(driver.Prop{Location: onDevice(1)}); return err }, false},
		{"Granularity of shared", "cuMemGetAllocationGranularity", "type=1 share=9 location=1:0 compression=0 rdma=0 usage=0 option=0",
			granularity(driver.Prop{Location: onDevice(0), Share: driver.ShareFD | driver.ShareFabric}), false},
		{"Granularity with flags", "cuMemGetAllocationGranularity", "type=1 share=0 location=1:0 compression=1 rdma=1 usage=0 option=0",
			granularity(driver.Prop{Location: onDevice(0), RDMA: true, Compress: true}), false},
		{"Granularity of a host node", "cuMemGetAllocationGranularity", "type=1 share=0 location=3:0 compression=0 rdma=0 usage=0 option=0",
			granularity(driver.Prop{Location: driver.Location{Kind: driver.LocationHostNUMA}}), false},
		{"Reserve", "cuMemAddressReserve", "size=6291456 align=4194304 addr=0 flags=0",
			func() error { _, err := d.Reserve(3*granule, 2*granule); return err }, false},
		{"Free", "cuMemAddressFree", f("p=%#x size=4194304", uint64(x.spare)), func() error { return d.Free(x.spare, 2*granule) }, false},
		{"Create", "cuMemCreate", "size=4194304 " + plain + " flags=0",
			func() error { _, err := d.Create(2*granule, driver.Prop{Location: onDevice(1)}); return err }, false},
		{"Release", "cuMemRelease", f("handle=%#x", uint64(x.h)), func() error { return d.Release(x.h) }, false},
		{"Map", "cuMemMap", f("p=%#x size=2097152 offset=0 handle=%#x flags=0", uint64(q), uint64(x.h)),
			func() error { return d.Map(q, granule, x.h) }, false},
		{"Unmap", "cuMemUnmap", f("p=%#x size=2097152", uint64(p)), func() error { return d.Unmap(p, granule) }, false},
		{"SetAccess", "cuMemSetAccess", f("p=%#x size=2097152 count=3 1:0=1 1:1=3 1:0=0", uint64(p)), func() error {
			return d.SetAccess(p, granule, []driver.Grant{{To: onDevice(0), Access: driver.AccessRead},
				{To: onDevice(1), Access: driver.AccessReadWrite}, {To: onDevice(0), Access: driver.AccessNone}})
		}, false},
		{"Access", "cuMemGetAccess", f("location=1:1 p=%#x", uint64(word)), func() error { _, err := d.Access(word, onDevice(1)); return err }, false},
		{"Export", "cuMemExportToShareableHandle", f("handle=%#x type=1 flags=0", uint64(x.h)), func() error {
			fd, err := d.Export(x.h)
			if err != nil {
				return err
			}
			return os.NewFile(uintptr(fd), "exported").Close()
		}, false},
		{"Import", "cuMemImportFromShareableHandle", f("fd=%d type=1", x.fd),
			func() error { _, err := d.Import(x.fd, granule, x.prop()); return err }, false},
		{"Import", "cuMemGetAllocationPropertiesFromHandle", "*",
			func() error { _, err := d.Import(x.fd, granule, x.prop()); return err }, false},
		{"Properties", "cuMemGetAllocationPropertiesFromHandle", f("handle=%#x", uint64(x.h)),
			func() error { _, err := d.Properties(x.h); return err }, false},
		{"ExportRange", "cuPointerGetAttribute", f("attribute=9 p=%#x", uint64(p)), export, false},
		{"ExportRange", "cuDevicePrimaryCtxRetain", "dev=0", export, false},
		{"ExportRange", "cuMemGetHandleForAddressRange", f("p=%#x size=8192 type=1 flags=0", uint64(p)), export, false},
		{"ExportRange", "cuDevicePrimaryCtxRelease_v2", "dev=0", export, false},
		{"SyncIfActive", "cuDevicePrimaryCtxGetState", "dev=0", func() error { return d.SyncIfActive(0) }, false},
		{"ContextActive", "cuDevicePrimaryCtxGetState", "dev=0", func() error { _, err := d.ContextActive(0); return err }, false},
		{"SyncIfActive", "cuCtxSynchronize", "", func() error { return d.SyncIfActive(0) }, false},
		{"Open", "cuDevicePrimaryCtxRetain", "dev=1", func() error { _, err := d.Open(1); return err }, false},
		{"Open", "cuStreamCreate", "flags=1", func() error { _, err := d.Open(1); return err }, false},
		{"Close", "cuDevicePrimaryCtxRelease_v2", "dev=0", v.Close, false},
		{"Close", "cuStreamDestroy_v2", f("stream=%#x", uint64(own)), v.Close, false},

		{"EnablePeer", "cuDevicePrimaryCtxRetain", "dev=1", enable, false},
		{"EnablePeer", "cuCtxEnablePeerAccess", "* flags=0", enable, false},
		{"EnablePeer", "cuThreadExchangeStreamCaptureMode", "mode=0", enable, false},
		{"DisablePeer", "cuCtxDisablePeerAccess", "*", disable, false},
		{"DisablePeer", "cuDevicePrimaryCtxRelease_v2", "dev=1", disable, false},
		{"MemInfo", "cuMemGetInfo_v2", "", func() error { _, _, err := v.MemInfo(); return err }, false},
		{"CopyIn", "cuMemcpyHtoDAsync_v2", f("dst=%#x src=%p n=3 stream=%#x", uint64(word), &in[0], uint64(own)),
			func() error { return v.CopyIn(word, in) }, false},
		{"CopyIn", "cuStreamSynchronize", f("stream=%#x", uint64(own)), func() error { return v.CopyIn(word, in) }, false},
		{"CopyOut", "cuMemcpyDtoHAsync_v2", f("dst=%p src=%#x n=5 stream=%#x", &out[0], uint64(word), uint64(own)),
			func() error { return v.CopyOut(out, word) }, false},
		{"CopyOut", "cuStreamSynchronize", f("stream=%#x", uint64(own)), func() error { return v.CopyOut(out, word) }, false},
		{"Copy", "cuMemcpyAsync", f("dst=%#x src=%#x n=6 stream=%#x", uint64(word), uint64(p), uint64(s)),
			func() error { return v.Copy(word, p, 6, s) }, false},
		{"Copy", "cuPointerGetAttribute", f("attribute=2 p=%#x", uint64(p)), func() error { return v.Copy(word, p, 6, s) }, false},
		{"Pitch", "cuDeviceGetAttribute", "attribute=14 dev=0", func() error { _, err := v.Pitch(1); return err }, false},
		{"CopyIn2D", "cuMemcpy2DAsync_v2", f("dst=2:%#x pitch=512 src=1:%p pitch=1 width=1 height=3 stream=%#x", uint64(word), &in[0], uint64(own)),
			func() error { return v.CopyIn2D(driver.PitchedPtr{Ptr: word, Pitch: 512}, in, 1) }, false},
		{"CopyIn2D", "cuStreamSynchronize", f("stream=%#x", uint64(own)),
			func() error { return v.CopyIn2D(driver.PitchedPtr{Ptr: word, Pitch: 512}, in, 1) }, false},
		{"CopyOut2D", "cuMemcpy2DAsync_v2", f("dst=1:%p pitch=1 src=2:%#x pitch=512 width=1 height=5 stream=%#x", &out[0], uint64(word), uint64(own)),
			func() error { return v.CopyOut2D(out, driver.PitchedPtr{Ptr: word, Pitch: 512}, 1) }, false},
		{"CopyOut2D", "cuStreamSynchronize", f("stream=%#x", uint64(own)),
			func() error { return v.CopyOut2D(out, driver.PitchedPtr{Ptr: word, Pitch: 512}, 1) }, false},
		{"Copy2D", "cuMemcpy2DAsync_v2", f("dst=4:%#x pitch=7 src=4:%#x pitch=512 width=6 height=2 stream=%#x", uint64(word), uint64(p), uint64(s)),
			func() error {
				return v.Copy2D(driver.PitchedPtr{Ptr: word, Pitch: 7}, driver.PitchedPtr{Ptr: p, Pitch: 512}, 6, 2, s)
			}, false},
		{"Fill of 1", "cuMemsetD8Async", f("dst=%#x pattern=0x78 n=5 stream=%#x", uint64(p), uint64(s)),
			func() error { return v.Fill(p, 0x12345678, 1, 5, s) }, false},
		{"Fill of 2", "cuMemsetD16Async", f("dst=%#x pattern=0x5678 n=5 stream=%#x", uint64(p), uint64(s)),
			func() error { return v.Fill(p, 0x12345678, 2, 5, s) }, false},
		{"Fill of 4", "cuMemsetD32Async", f("dst=%#x pattern=0x12345678 n=5 stream=(nil)", uint64(p)),
			func() error { return v.Fill(p, 0x12345678, 4, 5, 0) }, false},
		{"NewStream", "cuStreamCreate", "flags=1", func() error { _, err := v.NewStream(); return err }, false},
		{"FreeStream", "cuStreamDestroy_v2", f("stream=%#x", uint64(s)), func() error { return v.FreeStream(s) }, false},
		{"SyncStream", "cuStreamSynchronize", f("stream=%#x", uint64(s)), func() error { return v.SyncStream(s) }, false},
		{"StreamDone", "cuStreamQuery", f("stream=%#x", uint64(s)), func() error { _, err := v.StreamDone(s); return err }, false},
		{"Capturing", "cuStreamIsCapturing", f("stream=%#x", uint64(s)), func() error { _, err := v.Capturing(s); return err }, false},
		{"NewEvent", "cuEventCreate", "flags=2", event(0), false},
		{"NewEvent with a time, that blocks", "cuEventCreate", "flags=1", event(driver.EventTiming | driver.EventBlocking), false},
		{"NewEvent for others", "cuEventCreate", "flags=6", event(driver.EventInterprocess), false},
		{"FreeEvent", "cuEventDestroy_v2", f("event=%#x", uint64(e)), func() error { return v.FreeEvent(e) }, false},
		{"SyncEvent", "cuEventSynchronize", f("event=%#x", uint64(e)), func() error { return v.SyncEvent(e) }, false},
		{"SyncEvent", "cuThreadExchangeStreamCaptureMode", "mode=0", func() error { return v.SyncEvent(e) }, false},
		{"RecordContext", "cuCtxRecordEvent", f("event=%#x", uint64(e)), func() error { return v.RecordContext(e) }, false},
		{"Record", "cuEventRecord", f("event=%#x stream=%#x", uint64(e), uint64(s)), func() error { return v.Record(e, s) }, false},
		{"Wait", "cuStreamWaitEvent", f("stream=%#x event=%#x flags=0", uint64(s), uint64(e)), func() error { return v.Wait(s, e) }, false},
		{"Done", "cuEventQuery", f("event=%#x", uint64(e)), func() error { _, err := v.Done(e); return err }, false},
		{"Elapsed", "cuEventElapsedTime", f("from=%#x to=%#x", uint64(e), uint64(e)),
			func() error { _, err := v.Elapsed(e, e); return err }, false},
		{"Sync", "cuCtxSynchronize", "", v.Sync, false},
		{"Sync", "cuCtxGetId", "*", v.Sync, false},
		{"Do", "cuCtxPushCurrent_v2", "*", func() error { return v.Do(func() error { return nil }) }, false},
		{"Do", "cuCtxPopCurrent_v2", "", func() error { return v.Do(func() error { return nil }) }, true},

		{"AllocPlain", "cuMemAlloc_v2", "n=7", func() error { _, err := v.AllocPlain(7); return err }, false},
		{"FreePlain", "cuMemFree_v2", f("p=%#x", uint64(x.plain)), func() error { return v.FreePlain(x.plain) }, false},
		{"AllocAsync", "cuMemAllocAsync", f("n=7 stream=%#x", uint64(s)), func() error { _, err := v.AllocAsync(7, s); return err }, false},
		{"FreeAsync", "cuMemFreeAsync", f("p=%#x stream=%#x", uint64(x.plain), uint64(s)), func() error { return v.FreeAsync(x.plain, s) }, false},
		{"AllocHost", "cuMemHostAlloc", "n=7 flags=1", func() error { _, _, err := v.AllocHost(7); return err }, false},
		{"FreeHost", "cuMemFreeHost", f("p=%#x", uint64(x.pinned)), func() error { return v.FreeHost(x.pinned) }, false},
		{"BeginCapture", "cuStreamBeginCapture_v2", f("stream=%#x mode=1", uint64(s)),
			func() error { return v.BeginCapture(s, driver.CaptureThreadLocal) }, false},
		{"EndCapture", "cuStreamEndCapture", f("stream=%#x", uint64(s)), capture, false},
		{"WriteValue of 4", "cuStreamWriteValue32_v2", f("stream=%#x p=%#x value=0x9abcdef0 flags=0", uint64(s), uint64(word)),
			func() error { return v.WriteValue(s, word, 0x123456789abcdef0, 4) }, false},
		{"WriteValue of 8", "cuStreamWriteValue64_v2", f("stream=%#x p=%#x value=0x123456789abcdef0 flags=0", uint64(s), uint64(word)),
			func() error { return v.WriteValue(s, word, 0x123456789abcdef0, 8) }, false},
		{"WaitValue of 4", "cuStreamWaitValue32_v2", f("stream=%#x p=%#x value=0 flags=0", uint64(s), uint64(word)),
			func() error { return v.WaitValue(s, word, 0, 4) }, false},
		{"WaitValue of 8", "cuStreamWaitValue64_v2", f("stream=%#x p=%#x value=0 flags=0", uint64(s), uint64(word)),
			func() error { return v.WaitValue(s, word, 0, 8) }, false},
	}
	return slices.Concat(all, x.kernelCalls(), x.poolCalls(), x.between.calls(x.plain))
}

// onCall runs f for call i on a new driver. It returns false if there is no call i.
func onCall(t *testing.T, path string, fake *fakecuda.Library, i int, f func(*testing.T, *things, call)) bool {
	t.Helper()
	fake.Reset()
	d, err := cuda.Loaded(path)
	require.NoError(t, err)
	more := true
	t.Run(fmt.Sprint(i), func(t *testing.T) {
		x := makeThings(t, d)
		other, err := cuda.Loaded(path)
		require.NoError(t, err)
		x.foreign, err = openOn(t, other, 0).NewStream()
		require.NoError(t, err)
		x.between = makeBetween(t, x.v, fake)
		all := x.calls()
		if more = i < len(all); more {
			c := all[i]
			f(t, x, c)
			require.Empty(t, fake.Violations(), c.name)
		}
	})
	return more
}

func TestArguments(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	called := map[string]bool{}
	for i := 0; onCall(t, path, fake, i, func(t *testing.T, _ *things, c call) {
		before := fake.Calls(c.symbol)
		require.NoError(t, c.do(), c.name)
		require.Greater(t, fake.Calls(c.symbol), before, "%s calls %s", c.name, c.symbol)
		got := strings.TrimPrefix(fake.Last(c.symbol), c.symbol+" ")
		if end, some := strings.CutPrefix(c.args, "*"); some {
			require.True(t, strings.HasSuffix(got, end), "%s: %s", c.name, got)
		} else {
			require.Equal(t, c.args, got, c.name)
		}
		called[c.symbol] = true
	}); i++ {
	}

	text, err := os.ReadFile("symbols.h")
	require.NoError(t, err)
	elsewhere := []string{"cuInit", "cuDeviceGetCount", "cuDeviceGetUuid", "cuGetErrorName", "cuGetErrorString"} // see load_test.go
	for _, m := range regexp.MustCompile(`(?:REQUIRED|OPTIONAL)\(\w+, "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
		if !called[m[1]] {
			require.Contains(t, elsewhere, m[1], "no call here shows its arguments")
		}
	}
}

// meanings is the kind of error of each result, nil where it has none.
var meanings = map[int]error{
	1: driver.ErrInvalid, 2: driver.ErrOutOfMemory, 3: nil, 4: driver.ErrClosed, 46: driver.ErrUnavailable, 34: driver.ErrNoDriver, 100: driver.ErrNoDevice, 101: driver.ErrNoDevice,
	200: driver.ErrInvalid, 201: driver.ErrInvalid, 209: driver.ErrNotSupported, 214: driver.ErrDeviceLost, 217: driver.ErrNotSupported, 218: driver.ErrInvalid, 220: driver.ErrDeviceLost,
	221: driver.ErrNotSupported, 222: driver.ErrNotSupported, 223: driver.ErrNotSupported, 224: driver.ErrNotSupported, 226: driver.ErrDeviceLost, 300: driver.ErrInvalid, 304: nil, 400: driver.ErrInvalid, 401: driver.ErrInvalid,
	500: driver.ErrInvalid, 600: driver.ErrInvalid, 700: driver.ErrDeviceLost, 701: driver.ErrInvalid,
	704: driver.ErrPeerEnabled, 705: driver.ErrInvalid, 709: driver.ErrContextReset, 711: driver.ErrLimit, 719: driver.ErrDeviceLost, 720: driver.ErrInvalid, 721: driver.ErrDeviceLost,
	800: driver.ErrPermission, 801: driver.ErrNotSupported, 900: driver.ErrCapturing, 901: driver.ErrCapturing, 908: driver.ErrCapturing,
	802: driver.ErrUnavailable, 803: nil, 810: driver.ErrDeviceLost, 910: driver.ErrInvalid, 911: driver.ErrDeviceLost, 912: driver.ErrInvalid, 999: nil,
}

// meaning is the kind of a call's result, and whether it is an error at all.
func meaning(c call, code int) (kind error, is bool) {
	kind = meanings[code]
	lost := errors.Is(kind, driver.ErrDeviceLost)
	switch {
	case c.quiet, (c.symbol == "cuEventQuery" || c.symbol == "cuStreamQuery") && code == 600: // not yet
		return nil, false
	case lost && slices.Contains([]string{"FreeStream", "FreeEvent", "FreeGraph", "FreeGraphExec", "UnloadModule", "DisablePeer", "DestroyPool", "Close"}, c.name): // it went with the context
		return nil, false
	case code == 1 && c.symbol == "cuFuncGetParamInfo": // there are no more
		return nil, false
	case code == 1 && c.symbol == "cuMemPoolExportPointer": // called again, once the pool was exported
		return nil, false
	case code == 709 && (c.name == "FreeHost" || c.symbol == "cuCtxSynchronize" && c.name == "SyncIfActive"): // the same, or the context is not active
		return nil, false
	case code == 709 && c.name == "EnablePeer": // the peer's context was reset, and not this one
		return driver.ErrInvalid, true
	case code == 709 && c.name == "Copy on a stream of another library": // the stream's own context was reset
		return driver.ErrInvalid, true
	case code == 201 && (c.symbol == "cuCtxPushCurrent_v2" || c.symbol == "cuCtxGetId"): // although the context is retained
		return driver.ErrContextReset, true
	case code == 201 && c.name == "EnablePeer" && c.symbol == "cuThreadExchangeStreamCaptureMode": // the peer is retained without it
		return nil, false
	case c.symbol == "cuMemAddressReserve" && code == 2:
		return driver.ErrAddressSpace, true
	case c.symbol == "cuMemMap" && code == 801, c.symbol == "cuMemImportFromShareableHandle" && code == 999, c.name == "ImportPool" && (code == 801 || code == 999):
		return driver.ErrInvalid, true
	case code == 304 && (c.symbol == "cuMemExportToShareableHandle" || c.symbol == "cuMemImportFromShareableHandle" || c.name == "ExportRange" ||
		c.symbol == "cuMemPoolExportToShareableHandle" || c.name == "ImportPool"):
		return driver.ErrLimit, true // no descriptor is left
	case code == 101 && c.symbol == "cuMemPoolSetAccess": // the device is there and has no path
		return driver.ErrInvalid, true
	case c.symbol == "cuStreamEndCapture" && (code == 901 || code == 908): // the capture was destroyed, or is another thread's
		return driver.ErrInvalid, true
	}
	return kind, true
}

// Each result of each symbol is one kind of error that has CUDA's number inside, and no
// failure leaves a context pushed.
func TestResults(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	every := testgate.Effort(4, 1, 1) // the quick suite has each call and each code, but not with each other
	for code := range meanings {
		for i := code % every; onCall(t, path, fake, i, func(t *testing.T, _ *things, c call) {
			if c.symbol == "cuCtxPopCurrent_v2" {
				return // a context that cannot be popped stays pushed
			}
			what := fmt.Sprintf("%s when %s returns %d", c.name, c.symbol, code)
			fake.Fail(c.symbol, 1, code)
			err := c.do()
			kind, is := meaning(c, code)
			require.Zero(t, fake.Live().Pushed, what)
			if !is {
				require.NoError(t, err, what)
				return
			}
			isOnly(t, err, kind, what)
			var r cuda.Result
			require.ErrorAs(t, err, &r, what)
			if errors.Is(kind, driver.ErrContextReset) {
				code := 709 // for every result that means that there is no such context
				require.Equal(t, cuda.Result(code), r, what)
				return
			}
			require.Equal(t, cuda.Result(code), r, what)
		}); i += every {
		}
	}
}

// A call whose context cannot be pushed does nothing else.
func TestNoContext(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	for i := 0; onCall(t, path, fake, i, func(t *testing.T, _ *things, c call) {
		const push = "cuCtxPushCurrent_v2"
		before, pushes := fake.Calls(c.symbol), fake.Calls(push)
		fake.Fail(push, 1, 2)
		err := c.do()
		if fake.Calls(push) == pushes {
			return // it needs none
		}
		isOnly(t, err, driver.ErrOutOfMemory, c.name)
		switch {
		case c.symbol == push, strings.HasPrefix(c.symbol, "cuDevicePrimaryCtx"):
		case c.name == "EnablePeer" && c.symbol == "cuThreadExchangeStreamCaptureMode": // to retain the peer
		case c.symbol == "cuDriverGetVersion": // to know what may be asked for
		case c.name == "ExportRange" && c.symbol == "cuPointerGetAttribute": // to know whose context
		default:
			require.Equal(t, before, fake.Calls(c.symbol), "%s came to %s", c.name, c.symbol)
		}
		require.Zero(t, fake.Live().Pushed, c.name)
	}); i++ {
	}
}

// endCapture ends a capture and drops the graph.
func endCapture(d driver.Grapher, s driver.Stream) error {
	g, err := d.EndCapture(s)
	if err == nil {
		err = d.FreeGraph(g)
	}
	return err
}
