//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Devices lists the devices that this process can see. CUDA_VISIBLE_DEVICES hides
// the others.
func (d *libcuda) Devices() ([]driver.Info, error) {
	v := C.cuvmm_version(d.api)
	if v.r != 0 {
		return nil, d.fail("cuDriverGetVersion", Result(v.r))
	}
	all := make([]driver.Info, d.devices)
	for i := range all {
		c := C.cuvmm_device_info(d.api, C.int(i))
		if c.r != 0 {
			return nil, d.fail("cuDeviceGet", Result(c.r))
		}
		all[i] = info(i, &c, int(v.v))
	}
	return all, nil
}

// Supports tries what can be tried without a context.
func (d *libcuda) Supports(dev int, f driver.Feature) error {
	if err := d.checkDevice("Supports", dev); err != nil {
		return err
	}
	return d.probe(dev, f)
}

// info is what is known of a device without a context.
//
// Safety: c.uuid is an array of 16 bytes.
func info(ordinal int, c *C.cuvmm_device, version int) driver.Info {
	i := driver.Info{
		Ordinal: ordinal,
		Open:    fmt.Sprintf("cuda:%d", ordinal),
		Name:    C.GoString(&c.name[0]),
		Arch:    fmt.Sprintf("sm_%d%d", c.major, c.minor),
		PCI:     strings.ToLower(C.GoString(&c.pci[0])),
		Driver:  fmt.Sprintf("CUDA %d.%d", version/1000, version%1000/10),
		UUID:    *(*[16]byte)(unsafe.Pointer(&c.uuid)),
		Memory:  uint64(c.memory),
		Cache:   uint64(c.cache),
		Unified: c.unified != 0,
	}
	// Only the name shows that it is a MIG instance; its UUID is then the instance's.
	if strings.Contains(i.Name, " MIG ") {
		u := i.UUID
		i.MIG = fmt.Sprintf("MIG-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
	}
	switch c.mode {
	case 0:
		i.Compute = "default"
	case 2:
		i.Compute = "prohibited"
	case 3:
		i.Compute = "exclusive process"
	}
	return i
}

// probe is Supports for a device that exists. Where a call can tell, it makes the
// call: an attribute that says "supported" is no proof.
func (d *libcuda) probe(dev int, f driver.Feature) error {
	const call = "Supports"
	at := driver.Location{Kind: driver.LocationDevice, ID: dev}
	absent := refuse(call, driver.ErrNotSupported, "%v on cuda:%d", f, dev)
	switch f {
	case driver.FeatureVMM, driver.FeatureReadOnlyMap:
		if err := d.needsAttribute(dev, C.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, absent); err != nil {
			return err
		}
		return d.tryCreate(driver.Prop{Location: at})
	case driver.FeatureShareFD:
		return d.tryCreate(driver.Prop{Location: at, Share: driver.ShareFD})
	case driver.FeatureShareFabric:
		return d.tryWith(driver.Prop{Location: at, Share: driver.ShareFabric}, func(h driver.Handle, _ uint64) error {
			_, err := d.ExportFabric(h)
			return err
		})
	case driver.FeatureRDMA:
		if err := d.needsAttribute(dev, C.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, absent); err != nil {
			return err
		}
		return d.tryCreate(driver.Prop{Location: at, RDMA: true})
	case driver.FeatureHostNUMA:
		return d.tryHostNUMA(dev)
	case driver.FeatureDMABuf:
		if d.api.mem_range_handle == nil {
			return absent
		}
		if err := d.needsAttribute(dev, C.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, absent); err != nil {
			return err
		}
		// The call needs a context, and a probe must not make one.
		if v := C.cuvmm_active(d.api, C.int(dev)); v.r != 0 || v.v == 0 {
			return d.fail("cuDevicePrimaryCtxGetState", Result(v.r))
		}
		return d.tryWith(driver.Prop{Location: at}, d.tryExportRange)
	case driver.FeaturePools:
		return d.hasPools(dev, absent)
	case driver.FeaturePoolShareFD, driver.FeaturePoolShareFabric:
		return d.tryPoolShare(dev, poolShares[f], absent)
	case driver.FeatureLegacyIPC:
		return d.tryLegacyIPC(dev, absent)
	case driver.FeatureStreamMemOps:
		if d.api.wait_value32 == nil || d.api.write_value64 == nil {
			return absent
		}
		return d.needsAttribute(dev, C.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, absent)
	case driver.FeatureCopy2D, driver.FeatureKernels: // of every driver that has the required symbols
		return nil
	}
	return absent
}

// needsAttribute returns absent unless the device has the attribute.
func (d *libcuda) needsAttribute(dev int, a C.CUdevice_attribute, absent error) error {
	v := C.cuvmm_attribute(d.api, C.int(a), C.int(dev))
	if v.r != 0 && Result(v.r) != invalidValue { // the driver is older than the attribute
		return d.fail("cuDeviceGetAttribute", Result(v.r))
	}
	if v.v == 0 {
		return absent
	}
	return nil
}

// tryHostNUMA tries the device's own NUMA node. Where the driver does not name it,
// it tries the nodes that are online until one has memory.
func (d *libcuda) tryHostNUMA(dev int) error {
	v := C.cuvmm_attribute(d.api, C.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, C.int(dev))
	nodes := onlineNodes(nodesOnline)
	if own := int(int32(v.v)); v.r == 0 && own >= 0 {
		nodes = []int{own}
	}
	var first error
	for _, n := range nodes {
		err := d.tryCreate(driver.Prop{Location: driver.Location{Kind: driver.LocationHostNUMA, ID: n}})
		if err == nil {
			return nil
		}
		// An error that proves nothing is returned before one that says "no".
		if first == nil || errors.Is(first, driver.ErrNotSupported) {
			first = err
		}
	}
	return first
}

const nodesOnline = "/sys/devices/system/node/online"

// onlineNodes reads the system's list of NUMA nodes, like "0-1,4". Without a list
// it returns node 0.
func onlineNodes(path string) (nodes []int) {
	list, err := os.ReadFile(path)
	if err != nil {
		return []int{0}
	}
	for part := range strings.SplitSeq(strings.TrimSpace(string(list)), ",") {
		from, to, several := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if several && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil {
			return []int{0}
		}
		for n := first; n <= last; n++ {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// tryLegacyIPC asks for an IPC handle if a context is active; a probe must not make
// one. There is no attribute for IPC. On Linux a device with unified addressing has
// it.
func (d *libcuda) tryLegacyIPC(dev int, absent error) error {
	if d.api.ipc_get_mem == nil || d.api.ipc_open_mem == nil {
		return absent
	}
	if err := d.needsAttribute(dev, C.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, absent); err != nil {
		return err
	}
	switch r := Result(C.cuvmm_try_ipc(d.api, C.int(dev)).r); r {
	case invalidValue, notSupported, notPermitted, invalidContext, operatingSystem:
		return &driver.CallError{Call: "Supports", Kind: driver.ErrNotSupported, Err: d.text(r)}
	default:
		return d.fail("cuIpcGetMemHandle", r)
	}
}

// tryCreate creates the least memory there is and releases it.
func (d *libcuda) tryCreate(p driver.Prop) error {
	return d.tryWith(p, func(driver.Handle, uint64) error { return nil })
}

// tryWith creates the least memory there is, calls do with it and releases it. A
// refusal counts as "not supported". Lack of memory proves nothing, so its error is
// returned as it is.
func (d *libcuda) tryWith(p driver.Prop, do func(h driver.Handle, n uint64) error) error {
	n, err := d.Granularity(p)
	var h driver.Handle
	if err == nil {
		h, err = d.Create(n, p)
	}
	if err == nil {
		err = do(h, n)
		err = cmp.Or(err, d.Release(h))
	}
	return d.refused(err)
}

// refused is the error of a probe's call: a refusal counts as "not supported".
func (d *libcuda) refused(err error) error {
	if err == nil {
		return nil
	}
	var r Result
	if errors.As(err, &r) && (r == notPermitted || r == invalidValue || r == notSupported || r == invalidDevice) {
		return &driver.CallError{Call: "Supports", Kind: driver.ErrNotSupported, Err: d.text(r)}
	}
	return err
}

// tryExportRange maps h, of n bytes, and exports that span.
func (d *libcuda) tryExportRange(h driver.Handle, n uint64) error {
	p, err := d.Reserve(n, 0)
	if err != nil {
		return err
	}
	fd := -1
	if err = d.Map(p, n, h); err == nil {
		fd, err = d.ExportRange(p, n, 0)
		err = cmp.Or(err, d.Unmap(p, n))
	}
	// The span may be freed only when no mapping is left in it.
	if fd >= 0 {
		_ = syscall.Close(fd)
	}
	return cmp.Or(err, d.Free(p, n))
}
