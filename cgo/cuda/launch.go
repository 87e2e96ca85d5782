//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import "github.com/cuvmm/cuvmm/vmm/driver"

// Launch queues a kernel. It allocates nothing. The order of the checks is that of
// onHandle.
func (v *Device) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	const call = "cuLaunchKernel"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	module, err := v.acquireOwn(call, &v.d.functions, uint64(f))
	if err != nil {
		return err
	}
	defer module.release(v)
	entry, err := v.d.streams.acquire(call, uint64(s), v)
	if err != nil {
		return err
	}
	defer entry.release(v)
	shape := C.cuvmm_shape{
		C.uint(l.Grid.X), C.uint(l.Grid.Y), C.uint(l.Grid.Z),
		C.uint(l.Block.X), C.uint(l.Block.Y), C.uint(l.Block.Z), C.uint(l.Shared),
	}
	var r C.CUresult
	if l.Cluster == (driver.Dim{}) && !l.Cooperative && l.Priority == 0 {
		r = C.cuvmm_launch(v.d.api, v.ctx, function(f), shape, bytes(l.Args), C.size_t(len(l.Args)), stream(s))
	} else {
		attributes := C.cuvmm_attributes{
			cluster_x: C.uint(l.Cluster.X), cluster_y: C.uint(l.Cluster.Y), cluster_z: C.uint(l.Cluster.Z),
			priority: C.int(l.Priority),
		}
		if l.Cooperative {
			attributes.cooperative = 1
		}
		r = C.cuvmm_launch_ex(v.d.api, v.ctx, function(f), shape, attributes, bytes(l.Args), C.size_t(len(l.Args)), stream(s))
	}
	if entry != nil && entry.maker.n != v.n {
		return v.checkBoth(call, r)
	}
	return v.check(call, r)
}
