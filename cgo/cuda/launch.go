//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Launch queues a kernel. It allocates nothing. The order of the checks is that of
// onHandle.
//
// Safety: the library and the context are memory of C's, which stays until Close.
func (v *device) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	const call = "cuLaunchKernel"
	if err := v.begin(call); err != nil {
		return err
	}
	r, both, err := v.launch(call, f, l, s)
	v.end()
	switch {
	case err != nil:
		return err
	case both:
		return v.checkBoth(call, r)
	}
	return v.check(call, r)
}

// launch is Launch as a call that has begun; both says that the stream is of another device. No
// defer: nothing here panics.
func (v *device) launch(call string, f driver.Function, l *driver.Launch, s driver.Stream) (r C.CUresult, both bool, err error) {
	module, err := v.acquireOwn(call, &v.d.functions, uint64(f))
	if err != nil {
		return 0, false, err
	}
	entry, err := v.d.streams.acquire(call, uint64(s), v)
	if err == nil {
		r = v.queueKernel(f, l, s)
		both = entry != nil && entry.maker.n != v.n
		entry.release(v)
	}
	module.release(v)
	return r, both, err
}

// queueKernel makes the call of libcuda.
func (v *device) queueKernel(f driver.Function, l *driver.Launch, s driver.Stream) C.CUresult {
	k := C.cuvmm_kernel{
		api: C.uintptr_t(uintptr(unsafe.Pointer(v.d.api))), ctx: C.uintptr_t(uintptr(unsafe.Pointer(v.ctx.ctx))), ctx_id: v.ctx.id,
		f: C.uintptr_t(f), stream: C.uintptr_t(s),
		grid_x: C.uint(l.Grid.X), grid_y: C.uint(l.Grid.Y), grid_z: C.uint(l.Grid.Z),
		block_x: C.uint(l.Block.X), block_y: C.uint(l.Block.Y), block_z: C.uint(l.Block.Z), shared: C.uint(l.Shared),
	}
	if l.Cluster == (driver.Dim{}) && !l.Cooperative && l.Priority == 0 {
		return C.cuvmm_launch(k, bytes(l.Args), C.size_t(len(l.Args)))
	}
	attributes := C.cuvmm_attributes{
		cluster_x: C.uint(l.Cluster.X), cluster_y: C.uint(l.Cluster.Y), cluster_z: C.uint(l.Cluster.Z),
		priority: C.int(l.Priority),
	}
	if l.Cooperative {
		attributes.cooperative = 1
	}
	return C.cuvmm_launch_ex(k, attributes, bytes(l.Args), C.size_t(len(l.Args)))
}
