//go:build cgo && linux

package cuda_test

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// load loads code for the fake driver until the test ends.
func load(t *testing.T, v *cuda.Device, code string) driver.Module {
	t.Helper()
	m, _, err := v.LoadModule(driver.Code{Image: []byte(code)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.UnloadModule(m)) })
	return m
}

func findKernel(t *testing.T, v *cuda.Device, m driver.Module, name string) driver.Function {
	t.Helper()
	f, err := v.Function(m, name)
	require.NoError(t, err)
	return f
}

// plain is n bytes of the device until the test ends, all zero.
func plain(t *testing.T, v *cuda.Device, n uint64) driver.Ptr {
	t.Helper()
	p, err := v.AllocPlain(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.FreePlain(p)) })
	require.NoError(t, v.CopyIn(p, make([]byte, n)))
	return p
}

func contents(t *testing.T, v *cuda.Device, p driver.Ptr, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	require.NoError(t, v.CopyOut(b, p))
	return b
}

// What the compiler says is returned, and of a failure it is in the error too.
func TestLoadModuleLog(t *testing.T) {
	_, v, _ := opened(t)
	m, log, err := v.LoadModule(driver.Code{Image: []byte(".version 7.0\n// says uses 8 registers\n")})
	require.NoError(t, err)
	require.Equal(t, "uses 8 registers", log)
	require.NoError(t, v.UnloadModule(m))
	m, log, err = v.LoadModule(driver.Code{Image: []byte(fakeCode)})
	require.NoError(t, err)
	require.Empty(t, log)
	require.NoError(t, v.UnloadModule(m))

	for code, kind := range map[string]error{"218": driver.ErrInvalid, "222": driver.ErrNotSupported, "209": driver.ErrNotSupported} {
		_, log, err = v.LoadModule(driver.Code{Image: []byte("// says nothing\n// fails " + code + " ptxas line 3: a syntax error\n")})
		isOnly(t, err, kind)
		require.Equal(t, "ptxas line 3: a syntax error", log)
		require.True(t, strings.HasSuffix(err.Error(), ": ptxas line 3: a syntax error"), err)
		var r cuda.Result
		require.ErrorAs(t, err, &r)
	}
	// A log that fills its buffer has no zero at its end.
	_, _, err = v.LoadModule(driver.Code{Image: []byte("// fails 218 ptxas fatal   : SM version specified by .target is higher than default SM version assumed\n")})
	require.ErrorIs(t, err, driver.ErrNotSupported, "for a newer architecture")
	_, log, err = v.LoadModule(driver.Code{Image: []byte("// fails 218 " + strings.Repeat("e", 1<<20))})
	isOnly(t, err, driver.ErrInvalid)
	require.NotEmpty(t, log)
}

// Text is ended with a zero, in a copy.
func TestLoadModuleText(t *testing.T) {
	_, v, _ := opened(t)
	code := []byte(fakeCode + "// fails 218 read beyond its end")
	before := string(code)
	m, _, err := v.LoadModule(driver.Code{Image: code[:len(fakeCode)]})
	require.NoError(t, err)
	require.Equal(t, before, string(code))
	require.NoError(t, v.UnloadModule(m))
	m, _, err = v.LoadModule(driver.Code{Image: []byte(fakeCode + "\x00")})
	require.NoError(t, err)
	require.NoError(t, v.UnloadModule(m))
	_, _, err = v.LoadModule(driver.Code{Image: []byte("neither text nor code")})
	isOnly(t, err, driver.ErrInvalid)
}

// A driver reads as far as the headers of a cubin or of a fatbin say.
func TestLoadModuleCutShort(t *testing.T) {
	_, v, fake := opened(t)
	elf := make([]byte, 64, 512)
	copy(elf, "\x7fELF")
	elf = append(elf, fakeCode+"\x00"...)
	le := binary.LittleEndian
	le.PutUint64(elf[32:], uint64(len(elf))) // three program headers
	le.PutUint16(elf[54:], 56)
	le.PutUint16(elf[56:], 3)
	le.PutUint64(elf[40:], 64) // one section header
	le.PutUint16(elf[58:], 64)
	le.PutUint16(elf[60:], 1)
	elf = append(elf, make([]byte, 3*56)...)
	fatbin := make([]byte, 16, 512)
	le.PutUint32(fatbin, 0xba55ed50)
	le.PutUint16(fatbin[6:], 16)
	fatbin = append(fatbin, fakeCode+"\x00"...)
	le.PutUint64(fatbin[8:], uint64(len(fatbin)-16))
	for _, image := range [][]byte{elf, fatbin} {
		m, _, err := v.LoadModule(driver.Code{Image: image})
		require.NoError(t, err)
		require.NoError(t, v.UnloadModule(m))
		before := fake.Calls("")
		for n := range len(image) {
			if n >= 1 && n < 4 { // it may be text
				continue
			}
			_, _, err := v.LoadModule(driver.Code{Image: image[:n]})
			isOnly(t, err, driver.ErrInvalid, n)
		}
		require.Equal(t, before, fake.Calls(""), "libcuda was asked")
	}
	for _, at := range []int{32, 40} {
		huge := append([]byte(nil), elf...)
		le.PutUint64(huge[at:], math.MaxUint64)
		_, _, err := v.LoadModule(driver.Code{Image: huge})
		isOnly(t, err, driver.ErrInvalid)
	}
	le.PutUint64(fatbin[8:], math.MaxUint64)
	_, _, err := v.LoadModule(driver.Code{Image: fatbin})
	isOnly(t, err, driver.ErrInvalid)
}

func TestFunction(t *testing.T) {
	d, v, fake := opened(t)
	other := openOn(t, d, 1)
	m := load(t, v, fakeCode)
	for _, name := range []string{"fill", "", "fill_bytes\x00"} {
		_, err := v.Function(m, name)
		isOnly(t, err, driver.ErrInvalid, name)
	}
	_, err := v.Function(m, "fill")
	require.ErrorContains(t, err, `no kernel "fill"`)
	f := findKernel(t, v, m, "fill_bytes")
	require.Equal(t, f, findKernel(t, v, m, "fill_bytes"))

	params, err := v.Params(f)
	require.NoError(t, err)
	require.Equal(t, []driver.Param{{Offset: 0, Size: 8}, {Offset: 8, Size: 8}, {Offset: 16, Size: 4}}, params)
	params, err = v.Params(findKernel(t, v, m, "empty"))
	require.NoError(t, err)
	require.Empty(t, params)
	require.NoError(t, v.SetMaxDynamicShared(f, 64<<10))
	info, err := v.FunctionInfo(f)
	require.NoError(t, err)
	require.Equal(t, driver.FunctionInfo{MaxThreads: 1024, Registers: 16, StaticShared: 1, Local: 2, Constant: 3,
		MaxDynamicShared: 64 << 10, PTXVersion: 75, BinaryVersion: 90}, info)
	blocks, err := v.Occupancy(f, 256, 0)
	require.NoError(t, err)
	require.Equal(t, 8, blocks)
	threads, grid, err := v.SuggestBlock(f, 0)
	require.NoError(t, err)
	require.Equal(t, []uint32{1024, 264}, []uint32{threads, grid})

	isOnly(t, v.SetMaxDynamicShared(f, 1<<20), driver.ErrInvalid)
	asked := func(fake *fakecuda.Library) (calls [6]int) {
		for i, symbol := range []string{"cuModuleGetFunction", "cuModuleUnload", "cuFuncGetAttribute", "cuFuncSetAttribute",
			"cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuLaunchKernel"} {
			calls[i] = fake.Calls(symbol)
		}
		return calls
	}
	before := asked(fake)
	isOnly(t, v.SetMaxDynamicShared(f, math.MaxInt32+1), driver.ErrInvalid)
	_, err = v.Occupancy(f, math.MaxInt32+1, 0)
	isOnly(t, err, driver.ErrInvalid)
	// What is no function or no module, or is another device's, never reaches libcuda.
	for _, wrong := range []driver.Function{0, 1, driver.Function(m)} {
		_, err = v.FunctionInfo(wrong)
		isOnly(t, err, driver.ErrInvalid)
		isOnly(t, v.Launch(wrong, &driver.Launch{}, 0), driver.ErrInvalid)
	}
	_, err = v.Function(driver.Module(f), "empty")
	isOnly(t, err, driver.ErrInvalid)
	isOnly(t, v.UnloadModule(driver.Module(f)), driver.ErrInvalid)
	_, err = other.Function(m, "empty")
	isOnly(t, err, driver.ErrInvalid)
	isOnly(t, other.Launch(f, fillBytes(0, 0, 0), other.CopyStream()), driver.ErrInvalid)
	require.Equal(t, before, asked(fake))
	require.NoError(t, other.Close())
}

// The arguments arrive, and what is beyond a limit is refused.
func TestLaunch(t *testing.T) {
	_, v, _ := opened(t)
	m := load(t, v, fakeCode)
	f, empty := findKernel(t, v, m, "fill_bytes"), findKernel(t, v, m, "empty")
	p := plain(t, v, 8)
	s := v.CopyStream()
	require.NoError(t, v.Launch(f, fillBytes(p+2, 3, 9), s))
	require.Equal(t, []byte{0, 0, 9, 9, 9, 0, 0, 0}, contents(t, v, p, 8))
	require.NoError(t, v.Launch(empty, &driver.Launch{}, 0))
	for _, l := range []driver.Launch{
		{Block: driver.Dim{X: 1025}}, {Block: driver.Dim{X: 32, Y: 32, Z: 2}}, {Grid: driver.Dim{Y: 65536}}, {Shared: 48<<10 + 1},
		{Grid: driver.Dim{X: 3}, Cluster: driver.Dim{X: 2}},
	} {
		isOnly(t, v.Launch(empty, &l, s), driver.ErrInvalid)
	}
	require.NoError(t, v.SetMaxDynamicShared(empty, 64<<10))
	require.NoError(t, v.Launch(empty, &driver.Launch{Shared: 48<<10 + 1}, s))
}

// A kernel that touches what it may not costs the process its devices.
func TestLaunchFaults(t *testing.T) {
	d, _ := onFake(t)
	x := makeThings(t, d)
	require.NoError(t, x.v.FreePlain(x.plain))
	require.NoError(t, x.v.FreeHost(x.pinned))
	require.NoError(t, x.v.Launch(x.f, fillBytes(x.spare, 1, 1), x.s))
	isOnly(t, x.v.SyncStream(x.s), driver.ErrDeviceLost)
	isOnly(t, x.v.Launch(x.f, fillBytes(x.p, 1, 1), x.s), driver.ErrDeviceLost)
	x.giveBack(t)
}

// A module is unloaded when the last call that uses it, or one of its functions, is
// done. Its functions are then no functions any more.
func TestUnloadModule(t *testing.T) {
	_, v, fake := opened(t)
	for _, symbol := range []string{"cuLaunchKernel", "cuModuleGetFunction", "cuFuncGetAttribute"} {
		m, _, err := v.LoadModule(driver.Code{Image: []byte(fakeCode)})
		require.NoError(t, err)
		f := findKernel(t, v, m, "empty")
		unloads := fake.Calls("cuModuleUnload")
		held, resume := pause(t, fake, symbol)
		used := make(chan error, 1)
		go func() {
			switch symbol {
			case "cuLaunchKernel":
				used <- v.Launch(f, &driver.Launch{}, v.CopyStream())
			case "cuFuncGetAttribute":
				_, err := v.FunctionInfo(f)
				used <- err
			default:
				_, err := v.Function(m, "fill_bytes")
				used <- err
			}
		}()
		held(1)
		require.NoError(t, within(t, "unload", func() error { return v.UnloadModule(m) }), "it does not wait")
		require.Equal(t, unloads, fake.Calls("cuModuleUnload"), "unloaded under a call")
		isOnly(t, v.UnloadModule(m), driver.ErrInvalid, "twice")
		isOnly(t, v.Launch(f, &driver.Launch{}, v.CopyStream()), driver.ErrInvalid)
		resume()
		require.NoError(t, soon(t, "the call", used))
		require.Equal(t, unloads+1, fake.Calls("cuModuleUnload"))
		isOnly(t, v.Launch(f, &driver.Launch{}, v.CopyStream()), driver.ErrInvalid)
	}
}

// After a failed unload the module's functions still work.
func TestUnloadModuleFails(t *testing.T) {
	_, v, fake := opened(t)
	m, _, err := v.LoadModule(driver.Code{Image: []byte(fakeCode)})
	require.NoError(t, err)
	f := findKernel(t, v, m, "empty")
	fake.Fail("cuModuleUnload", 1, 2)
	isOnly(t, v.UnloadModule(m), driver.ErrOutOfMemory)
	require.NoError(t, v.Launch(f, &driver.Launch{}, v.CopyStream()))
	require.NoError(t, v.UnloadModule(m))
	isOnly(t, v.Launch(f, &driver.Launch{}, v.CopyStream()), driver.ErrInvalid)
}

// Nothing here ends a capture, in any mode, of this thread or of another.
func TestKernelsDuringCapture(t *testing.T) {
	_, v, _ := opened(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := v.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.BeginCapture(s, driver.CaptureGlobal))
	m, _, err := v.LoadModule(driver.Code{Image: []byte(fakeCode)})
	require.NoError(t, err)
	_, err = v.FunctionInfo(findKernel(t, v, m, "empty"))
	require.NoError(t, err)
	urgent, err := v.NewStreamPriority(-1)
	require.NoError(t, err)
	require.NoError(t, v.BeginCapture(urgent, driver.CaptureRelaxed))
	g, err := v.EndCapture(urgent)
	require.NoError(t, err)
	x, err := v.Instantiate(g)
	require.NoError(t, err)
	require.NoError(t, v.UpdateGraphExec(x, g))
	require.NoError(t, v.FreeGraphExec(x))
	require.NoError(t, v.FreeGraph(g))
	require.NoError(t, v.FreeStream(urgent))
	require.NoError(t, v.UnloadModule(m))
	require.NoError(t, endCapture(v, s), "the capture was destroyed")
	require.NoError(t, v.FreeStream(s))
}

// Without an optional symbol only the call that needs it fails.
func TestKernelsOld(t *testing.T) {
	d, _ := onFake(t, fakecuda.Missing("cuLaunchKernelEx", "cuFuncGetParamInfo", "cuStreamGetCaptureInfo",
		"cuGraphInstantiateWithFlags", "cuGraphExecUpdate"))
	v := openOn(t, d, 0)
	m, _, err := v.LoadModule(driver.Code{Image: []byte(fakeCode)})
	require.NoError(t, err)
	f := findKernel(t, v, m, "empty")
	s, err := v.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.Launch(f, &driver.Launch{}, s))
	for _, l := range []driver.Launch{{Cooperative: true}, {Cluster: driver.Dim{X: 1}}, {Priority: 1}} {
		isOnly(t, v.Launch(f, &l, s), driver.ErrNotSupported)
	}
	_, err = v.Params(f)
	isOnly(t, err, driver.ErrNotSupported)
	_, err = v.CaptureID(s)
	isOnly(t, err, driver.ErrNotSupported)
	require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
	g, err := v.EndCapture(s)
	require.NoError(t, err)
	_, err = v.Instantiate(g)
	isOnly(t, err, driver.ErrNotSupported)
	require.NoError(t, v.FreeGraph(g))
	require.NoError(t, v.UnloadModule(m))
	require.NoError(t, v.FreeStream(s))
	require.NoError(t, d.Supports(0, driver.FeatureKernels))
	require.NoError(t, v.Close())
}

// Modules come and go while others are used.
func TestKernelsConcurrent(t *testing.T) {
	_, v, _ := opened(t)
	m := load(t, v, fakeCode)
	empty := findKernel(t, v, m, "empty")
	done := make(chan error, 4)
	for i := range 4 {
		go func() {
			var err error
			for range 100 {
				if i%2 == 0 {
					err = errors.Join(err, v.Launch(empty, &driver.Launch{}, v.CopyStream()))
					continue
				}
				m, _, loadErr := v.LoadModule(driver.Code{Image: []byte(fakeCode)})
				f, findErr := v.Function(m, "empty")
				err = errors.Join(err, loadErr, findErr, v.Launch(f, &driver.Launch{}, v.CopyStream()), v.UnloadModule(m))
			}
			done <- err
		}()
	}
	for range 4 {
		require.NoError(t, soon(t, "the launches", done))
	}
	require.NoError(t, v.Launch(empty, &driver.Launch{}, v.CopyStream()))
}

func TestPriorities(t *testing.T) {
	_, v, _ := opened(t)
	least, greatest, err := v.Priorities()
	require.NoError(t, err)
	require.Equal(t, []int{0, -5}, []int{least, greatest})
	s, err := v.NewStreamPriority(greatest)
	require.NoError(t, err)
	require.NoError(t, v.SyncStream(s))
	require.NoError(t, v.FreeStream(s))
}
