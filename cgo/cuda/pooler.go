//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"errors"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.Pooler = (*device)(nil)

// Versions of the driver, as cuDriverGetVersion numbers them.
const (
	poolVersion      = 11020 // of pools
	poolShareVersion = 11030 // of the attribute that says how they can be shared
	poolLimitVersion = 12020 // of CUmemPoolProps.maxSize
)

// DefaultPool is cuDeviceGetDefaultMemPool.
func (v *device) DefaultPool() (driver.Pool, error) {
	const call = "cuDeviceGetDefaultMemPool"
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	return v.defaultPoolOf(call, v.n)
}

// CurrentPool is cuDeviceGetMemPool. The pool may be another library's.
func (v *device) CurrentPool() (p driver.Pool, err error) {
	err = v.inContext("cuDeviceGetMemPool", func() C.CUresult {
		c := C.cuvmm_pool_current(v.d.api, v.ctx, C.int(v.n))
		p = driver.Pool(c.v)
		return c.r
	})
	return p, err
}

// SetCurrentPool is cuDeviceSetMemPool.
func (v *device) SetCurrentPool(p driver.Pool) error {
	const call = "cuDeviceSetMemPool"
	return v.onPool(call, p, func(owner int) (C.CUresult, error) {
		if err := notImported(call, p, owner); err != nil {
			return 0, err
		}
		if owner != v.n {
			return 0, refuse(call, driver.ErrInvalid, "pool %#x is of cuda:%d, not of cuda:%d", uint64(p), owner, v.n)
		}
		return C.cuvmm_pool_set_current(v.d.api, v.ctx, C.int(v.n), pool(p)), nil
	})
}

// CreatePool is cuMemPoolCreate. Close destroys a pool that is left.
func (v *device) CreatePool(p driver.PoolProps) (driver.Pool, error) {
	const call = "cuMemPoolCreate"
	handle, err := v.newHandle(call, &v.d.pools, func() (C.cuvmm_value, error) {
		props, err := v.d.poolProps(call, v.n, p)
		if err != nil {
			return C.cuvmm_value{}, err
		}
		return C.cuvmm_pool_create(v.d.api, v.ctx, props), nil
	})
	return driver.Pool(handle), err
}

// DestroyPool is cuMemPoolDestroy. Only pools of CreatePool and ImportPool can be destroyed.
// For one of ImportPool whose memory is imported libcuda refuses.
func (v *device) DestroyPool(p driver.Pool) error {
	return v.freeHandle("cuMemPoolDestroy", &v.d.pools, uint64(p), func(maker *device) C.CUresult {
		return C.cuvmm_pool_destroy(maker.d.api, maker.ctx, pool(p))
	})
}

// destroyPools destroys the pools that are left when the device closes. After an error
// the next Close goes on.
func (v *device) destroyPools() error {
	v.leftPools = append(v.leftPools, v.d.pools.removeAllOf(v)...)
	for len(v.leftPools) > 0 {
		e := v.leftPools[0]
		err := v.freeImports(e)
		if err == nil {
			err = e.destroy("cuMemPoolDestroy", func() C.CUresult {
				return C.cuvmm_pool_destroy(v.d.api, v.ctx, pool(driver.Pool(e.handle)))
			})
		}
		if err != nil {
			return err
		}
		v.leftPools = v.leftPools[1:]
	}
	return nil
}

// AllocFromPool is cuMemAllocFromPoolAsync.
func (v *device) AllocFromPool(p driver.Pool, n uint64, s driver.Stream) (driver.Ptr, error) {
	const call = "cuMemAllocFromPoolAsync"
	if n == 0 {
		return 0, v.refuseEmpty(call)
	}
	var c C.cuvmm_value
	err := v.onPool(call, p, func(owner int) (C.CUresult, error) {
		if err := notImported(call, p, owner); err != nil {
			return 0, err
		}
		return 0, v.onQueue(call, s, func(q C.cuvmm_queue) C.CUresult {
			c = C.cuvmm_pool_alloc_from(v.d.api, q, pool(p), C.size_t(n))
			return c.r
		})
	})
	return driver.Ptr(c.v), err
}

// TrimPool is cuMemPoolTrimTo.
func (v *device) TrimPool(p driver.Pool, keep uint64) error {
	return v.onPool("cuMemPoolTrimTo", p, func(int) (C.CUresult, error) {
		return C.cuvmm_pool_trim(v.d.api, v.ctx, pool(p), C.size_t(keep)), nil
	})
}

// PoolAttribute is cuMemPoolGetAttribute.
func (v *device) PoolAttribute(p driver.Pool, a driver.PoolAttribute) (uint64, error) {
	const call = "cuMemPoolGetAttribute"
	var c C.cuvmm_value
	err := v.onPool(call, p, func(int) (C.CUresult, error) {
		if a < driver.PoolReuseFollowEvents || a > driver.PoolUsedPeak {
			return 0, refuse(call, driver.ErrInvalid, "attribute %d", a)
		}
		c = C.cuvmm_pool_get(v.d.api, v.ctx, pool(p), C.int(a))
		return c.r, nil
	})
	return uint64(c.v), err
}

// SetPoolAttribute is cuMemPoolSetAttribute.
func (v *device) SetPoolAttribute(p driver.Pool, a driver.PoolAttribute, value uint64) error {
	const call = "cuMemPoolSetAttribute"
	return v.onPool(call, p, func(int) (C.CUresult, error) {
		most := uint64(0)
		switch a {
		case driver.PoolReuseFollowEvents, driver.PoolReuseOpportunistic, driver.PoolReuseInternalDependencies:
			most = 1
		case driver.PoolReleaseThreshold:
			most = ^uint64(0)
		case driver.PoolReservedPeak, driver.PoolUsedPeak:
		default:
			return 0, refuse(call, driver.ErrInvalid, "attribute %d cannot be set", a)
		}
		if value > most {
			return 0, refuse(call, driver.ErrInvalid, "%d for attribute %d", value, a)
		}
		return C.cuvmm_pool_set(v.d.api, v.ctx, pool(p), C.int(a), C.ulonglong(value)), nil
	})
}

// SetPoolAccess is cuMemPoolSetAccess.
func (v *device) SetPoolAccess(p driver.Pool, to []driver.Grant) error {
	const call = "cuMemPoolSetAccess"
	return v.onPool(call, p, func(owner int) (C.CUresult, error) {
		if len(to) == 0 {
			return 0, refuse(call, driver.ErrInvalid, "no location to set access for")
		}
		list := make([]C.CUmemAccessDesc, 0, len(to))
		for _, g := range to {
			where, err := v.d.location(call, "access for", g.To)
			if err != nil {
				return 0, err
			}
			flags, ok := protection(g.Access)
			if !ok || g.Access == driver.AccessNone && g.To.Kind == driver.LocationDevice && g.To.ID == owner {
				return 0, refuse(call, driver.ErrInvalid, "access %v for %v to a pool of cuda:%d", g.Access, g.To, owner)
			}
			list = append(list, C.CUmemAccessDesc{location: where, flags: flags})
		}
		return C.cuvmm_pool_set_access(v.d.api, v.ctx, pool(p), &list[0], C.size_t(len(list))), nil
	})
}

// PoolAccess is cuMemPoolGetAccess.
func (v *device) PoolAccess(p driver.Pool, to driver.Location) (a driver.Access, err error) {
	const call = "cuMemPoolGetAccess"
	err = v.onPool(call, p, func(int) (C.CUresult, error) {
		where, err := v.d.location(call, "access for", to)
		if err != nil {
			return 0, err
		}
		c := C.cuvmm_pool_get_access(v.d.api, v.ctx, pool(p), where)
		a = accessOf(c.v)
		return c.r, nil
	})
	return a, err
}

// PoolOf asks cuPointerGetAttribute for the pool and the device. The pool may be one that
// was destroyed.
func (v *device) PoolOf(p driver.Ptr) (of driver.Pool, device int, err error) {
	err = v.inContext("cuPointerGetAttribute", func() C.CUresult {
		c := C.cuvmm_pool_of(v.d.api, v.ctx, C.CUdeviceptr(p))
		of, device = poolNumber(c.pool), int(c.device)
		return c.r
	})
	return of, device, err
}

// PoolShares tries each way.
func (v *device) PoolShares() (ways driver.Share, err error) {
	const call = "cuMemPoolCreate"
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	for feature, way := range poolShares {
		err := v.d.probe(v.n, feature)
		switch {
		case err == nil:
			ways |= way
		case !errors.Is(err, driver.ErrNotSupported):
			return 0, err
		}
	}
	return ways, nil
}

// poolShares is what a pool must be created with to have a feature.
var poolShares = map[driver.Feature]driver.Share{
	driver.FeaturePoolShareFD:     driver.ShareFD,
	driver.FeaturePoolShareFabric: driver.ShareFabric,
}

// onPool makes a call with a pool, which cannot be destroyed meanwhile. owner is the ordinal of its
// device, or imported. A pool that is neither of CreatePool nor any device's default or current one
// does not reach libcuda.
func (v *device) onPool(call string, p driver.Pool, f func(owner int) (C.CUresult, error)) error {
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	entry, err := v.d.pools.acquire(call, uint64(p), v)
	if err != nil {
		return err
	}
	defer entry.release(v)
	var owner int
	switch {
	case entry != nil && entry.foreign:
		owner = imported
	case entry != nil:
		owner = entry.maker.n
	default:
		owner, err = v.ownerOf(call, p)
	}
	if err != nil {
		return err
	}
	r, err := f(owner)
	if err != nil {
		return err
	}
	return v.checkWith(entry, call, r)
}

// imported stands for the device of a pool that another process made: only the driver
// knows it.
const imported = -1

// ownerOf is the device of a pool that this package did not make.
func (v *device) ownerOf(call string, p driver.Pool) (int, error) {
	if p != 0 && uint64(p) == v.defaultPool.Load() {
		return v.n, nil
	}
	for dev := 0; p != 0 && dev < v.d.devices; dev++ {
		own, err := v.defaultPoolOf(call, dev)
		if err != nil {
			return 0, err
		}
		current := C.cuvmm_pool_current(v.d.api, v.ctx, C.int(dev))
		if err := v.check(call, current.r); err != nil {
			return 0, err
		}
		if p == own || p == driver.Pool(current.v) {
			return dev, nil
		}
	}
	return 0, refuse(call, driver.ErrInvalid, "no pool %#x", uint64(p))
}

// defaultPoolOf is a device's default pool. v's own is stored, for onPool.
func (v *device) defaultPoolOf(call string, dev int) (driver.Pool, error) {
	c := C.cuvmm_pool_default(v.d.api, v.ctx, C.int(dev))
	if c.r == 0 && dev == v.n {
		v.defaultPool.Store(uint64(c.v))
	}
	return driver.Pool(c.v), v.check(call, c.r)
}

// poolProps is p as CUDA wants it, where the driver's version knows that.
func (d *libcuda) poolProps(call string, dev int, p driver.PoolProps) (c C.CUmemPoolProps, err error) {
	prop, err := d.prop(call, driver.Prop{Location: driver.Location{Kind: driver.LocationDevice, ID: dev}, Share: p.Share})
	if err != nil {
		return c, err
	}
	need := 0
	switch {
	case p.Max != 0:
		need = poolLimitVersion
	case p.Share != 0:
		need = poolShareVersion
	}
	if err := d.needsVersion(need, refuse(call, driver.ErrNotSupported, "a pool with %+v before CUDA %d.%d", p, need/1000, need%1000/10)); err != nil {
		return c, err
	}
	c.allocType, c.handleTypes, c.location = prop._type, prop.requestedHandleTypes, prop.location
	c.maxSize = C.size_t(p.Max)
	return c, nil
}

// needsVersion returns absent if the driver is older.
func (d *libcuda) needsVersion(version int, absent error) error {
	if version == 0 {
		return nil
	}
	c := C.cuvmm_version(d.api)
	if c.r == 0 && int(c.v) < version {
		return absent
	}
	return d.fail("cuDriverGetVersion", Result(c.r))
}

// hasPools returns absent for a device without pools. A driver from before CUDA 11.2 is
// not asked.
func (d *libcuda) hasPools(dev int, absent error) error {
	if d.api.pool_create == nil || d.api.pool_alloc == nil {
		return absent
	}
	if err := d.needsVersion(poolVersion, absent); err != nil {
		return err
	}
	return d.needsAttribute(dev, C.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, absent)
}

// tryPoolShare creates a pool that can be shared that way, if an attribute says that it
// can. A driver from before CUDA 11.3 is not asked.
func (d *libcuda) tryPoolShare(dev int, way driver.Share, absent error) error {
	const call = "cuMemPoolCreate"
	if err := d.hasPools(dev, absent); err != nil {
		return err
	}
	if err := d.needsVersion(poolShareVersion, absent); err != nil {
		return err
	}
	if d.api.pool_export == nil || d.api.pool_import_pointer == nil {
		return absent
	}
	c := C.cuvmm_attribute(d.api, C.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, C.int(dev))
	if c.r != 0 && Result(c.r) != invalidValue {
		return d.fail("cuDeviceGetAttribute", Result(c.r))
	}
	props, err := d.poolProps(call, dev, driver.PoolProps{Share: way})
	if err != nil {
		return err
	}
	if c.v&C.ulonglong(props.handleTypes) == 0 {
		return absent
	}
	return d.refused(d.fail(call, Result(C.cuvmm_try_pool(d.api, props))))
}

// poolNumber is the handle as a number.
//
// Safety: only the number of a pointer of the driver's is used.
func poolNumber(p C.CUmemoryPool) driver.Pool { return driver.Pool(uintptr(unsafe.Pointer(p))) }

// pool is a handle as C wants it. It points into the driver's memory, never into Go's.
func pool(p driver.Pool) C.CUmemoryPool { return C.CUmemoryPool(pointer(uint64(p))) }
