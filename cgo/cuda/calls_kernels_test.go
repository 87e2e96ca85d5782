//go:build cgo && linux

package cuda_test

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// kernelCalls are those of calls that load, launch, and make graphs.
func (x *things) kernelCalls() []call {
	v, s := x.v, x.s
	f := fmt.Sprintf
	load := func(c driver.Code) func() error {
		c.Image = []byte(fakeCode)
		return func() error { _, _, err := v.LoadModule(c); return err }
	}
	const packed = "0500000000000000" + "07000000"
	launch := func(l driver.Launch) func() error {
		l.Args = fillBytes(x.p, 5, 7).Args
		return func() error { return v.Launch(x.f, &l, s) }
	}
	launched := func(rest string) string {
		var p string
		for i := range 8 {
			p += f("%02x", byte(x.p>>(8*i)))
		}
		return f("f=%#x ", uint64(x.f)) + f(rest, uint64(s)) + " args=" + p + packed
	}
	info := func() error { _, err := v.FunctionInfo(x.f); return err }
	params := func() error { _, err := v.Params(x.f); return err }
	priority := func(n int) func() error {
		return func() error { _, err := v.NewStreamPriority(n); return err }
	}
	dim := func(x, y, z uint32) driver.Dim { return driver.Dim{X: x, Y: y, Z: z} }
	const logs = " logs=16384,16384"
	return []call{
		{"LoadModule", "cuModuleLoadDataEx", "registers=0 lines=0" + logs, load(driver.Code{}), false},
		{"LoadModule with options", "cuModuleLoadDataEx", "registers=40 lines=1" + logs, load(driver.Code{MaxRegisters: 40, LineInfo: true}), false},
		{"LoadModule", "cuThreadExchangeStreamCaptureMode", "mode=0", load(driver.Code{}), false},
		{"UnloadModule", "cuModuleUnload", f("module=%#x", uint64(x.m)), func() error { return v.UnloadModule(x.m) }, false},
		{"Function", "cuModuleGetFunction", f("module=%#x name=empty", uint64(x.m)), func() error { _, err := v.Function(x.m, "empty"); return err }, false},
		{"Params", "cuFuncGetParamInfo", f("f=%#x i=3", uint64(x.f)), params, false},
		{"FunctionInfo", "cuFuncGetAttribute", f("attribute=6 f=%#x", uint64(x.f)), info, false},
		{"SetMaxDynamicShared", "cuFuncSetAttribute", f("f=%#x attribute=8 value=65536", uint64(x.f)),
			func() error { return v.SetMaxDynamicShared(x.f, 65536) }, false},
		{"Occupancy", "cuOccupancyMaxActiveBlocksPerMultiprocessor", f("f=%#x threads=96 shared=1024", uint64(x.f)),
			func() error { _, err := v.Occupancy(x.f, 96, 1024); return err }, false},
		{"SuggestBlock", "cuOccupancyMaxPotentialBlockSize", f("f=%#x shared=1024 limit=0", uint64(x.f)),
			func() error { _, _, err := v.SuggestBlock(x.f, 1024); return err }, false},
		{"Launch", "cuLaunchKernel", launched("grid=2,3,4 block=5,6,7 shared=8 stream=%#x"),
			launch(driver.Launch{Grid: dim(2, 3, 4), Block: dim(5, 6, 7), Shared: 8}), false},
		{"Launch of one", "cuLaunchKernel", launched("grid=1,1,1 block=1,1,1 shared=0 stream=%#x"), launch(driver.Launch{}), false},
		{"Launch cooperative", "cuLaunchKernelEx", launched("grid=2,3,4 block=5,6,7 shared=8 stream=%#x 2:1,0,0"),
			launch(driver.Launch{Grid: dim(2, 3, 4), Block: dim(5, 6, 7), Shared: 8, Cooperative: true}), false},
		{"Launch of a cluster", "cuLaunchKernelEx", launched("grid=1,1,1 block=1,1,1 shared=0 stream=%#x 4:1,2,1 8:4294967293,0,0"),
			launch(driver.Launch{Grid: dim(0, 0, 0), Cluster: dim(0, 2, 0), Priority: -3}), false},

		{"CaptureID", "cuStreamGetCaptureInfo", f("stream=%#x", uint64(s)), func() error { _, err := v.CaptureID(s); return err }, false},
		{"FreeGraph", "cuGraphDestroy", f("graph=%#x", uint64(x.g)), func() error { return v.FreeGraph(x.g) }, false},
		{"Instantiate", "cuGraphInstantiateWithFlags", f("graph=%#x flags=0", uint64(x.g)), func() error { _, err := v.Instantiate(x.g); return err }, false},
		{"FreeGraphExec", "cuGraphExecDestroy", f("exec=%#x", uint64(x.x)), func() error { return v.FreeGraphExec(x.x) }, false},
		{"UpdateGraphExec", "cuGraphExecUpdate", f("exec=%#x graph=%#x", uint64(x.x), uint64(x.g)),
			func() error { return v.UpdateGraphExec(x.x, x.g) }, false},
		{"LaunchGraph", "cuGraphLaunch", f("exec=%#x stream=%#x", uint64(x.x), uint64(s)), func() error { return v.LaunchGraph(x.x, s) }, false},

		{"Priorities", "cuCtxGetStreamPriorityRange", "", func() error { _, _, err := v.Priorities(); return err }, false},
		{"NewStreamPriority", "cuStreamCreateWithPriority", "flags=1 priority=-2", priority(-2), false},
		{"NewStreamPriority beyond", "cuStreamCreateWithPriority", "flags=1 priority=-2147483648", priority(-1 << 40), false},
	}
}
