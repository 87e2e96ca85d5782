//go:build cgo && linux

package cuda_test

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// poolCalls are those of calls that make pools and take memory from them, and of copies
// between devices.
func (x *things) poolCalls() []call {
	v, s, pool := x.v, x.s, x.pool
	f := fmt.Sprintf
	create := func(p driver.PoolProps) func() error {
		return func() error { _, err := v.CreatePool(p); return err }
	}
	get := func(a driver.PoolAttribute) func() error {
		return func() error { _, err := v.PoolAttribute(pool, a); return err }
	}
	set := func(a driver.PoolAttribute, value uint64) func() error {
		return func() error { return v.SetPoolAttribute(pool, a, value) }
	}
	access := func() error {
		return v.SetPoolAccess(pool, []driver.Grant{{To: onDevice(1), Access: driver.AccessReadWrite}, {To: onDevice(1), Access: driver.AccessNone}})
	}
	of := func() error { _, _, err := v.PoolOf(x.plain); return err }
	peer := func() error { return v.CopyPeer(x.p+8, 0, x.p, 0, 5, s) }
	onOther := func() error { return v.Copy(x.p+8, x.p, 5, x.foreign) }
	at := f("pool=%#x", uint64(pool))
	const props = "type=1 share=0 location=1:0 max=0 usage=0"
	return []call{
		{"DefaultPool", "cuDeviceGetDefaultMemPool", "dev=0", func() error { _, err := v.DefaultPool(); return err }, false},
		{"CurrentPool", "cuDeviceGetMemPool", "dev=0", func() error { _, err := v.CurrentPool(); return err }, false},
		{"SetCurrentPool", "cuDeviceSetMemPool", "dev=0 " + at, func() error { return v.SetCurrentPool(pool) }, false},
		{"CreatePool", "cuMemPoolCreate", props, create(driver.PoolProps{}), false},
		{"CreatePool with a limit", "cuMemPoolCreate", "type=1 share=0 location=1:0 max=1099511627777 usage=0", create(driver.PoolProps{Max: 1<<40 + 1}), false},
		{"CreatePool to share", "cuMemPoolCreate", "type=1 share=1 location=1:0 max=0 usage=0", create(driver.PoolProps{Share: driver.ShareFD}), false},
		{"CreatePool to share", "cuDriverGetVersion", "", create(driver.PoolProps{Share: driver.ShareFD}), false},
		{"CreatePool", "cuThreadExchangeStreamCaptureMode", "mode=0", create(driver.PoolProps{}), false},
		{"DestroyPool", "cuMemPoolDestroy", at, func() error { return v.DestroyPool(pool) }, false},
		{"AllocFromPool", "cuMemAllocFromPoolAsync", f("n=7 %s stream=%#x", at, uint64(s)),
			func() error { _, err := v.AllocFromPool(pool, 7, s); return err }, false},
		{"TrimPool", "cuMemPoolTrimTo", at + " keep=1099511627776", func() error { return v.TrimPool(pool, 1<<40) }, false},
		{"PoolAttribute", "cuMemPoolGetAttribute", at + " attribute=1", get(driver.PoolReuseFollowEvents), false},
		{"PoolAttribute", "cuMemPoolGetAttribute", at + " attribute=8", get(driver.PoolUsedPeak), false},
		{"SetPoolAttribute", "cuMemPoolSetAttribute", at + " attribute=2 value=0", set(driver.PoolReuseOpportunistic, 0), false},
		{"SetPoolAttribute", "cuMemPoolSetAttribute", at + " attribute=3 value=1", set(driver.PoolReuseInternalDependencies, 1), false},
		{"SetPoolAttribute", "cuMemPoolSetAttribute", at + " attribute=4 value=1099511627776", set(driver.PoolReleaseThreshold, 1<<40), false},
		{"SetPoolAttribute", "cuMemPoolSetAttribute", at + " attribute=6 value=0", set(driver.PoolReservedPeak, 0), false},
		{"SetPoolAccess", "cuMemPoolSetAccess", at + " count=2 1:1=3 1:1=0", access, false},
		{"PoolAccess", "cuMemPoolGetAccess", at + " location=1:1", func() error { _, err := v.PoolAccess(pool, onDevice(1)); return err }, false},
		{"PoolOf", "cuPointerGetAttribute", f("attribute=17 p=%#x", uint64(x.plain)), of, false},
		{"CopyPeer", "cuMemcpyPeerAsync", "*", peer, false},
		{"CopyPeer", "cuPointerGetAttribute", f("attribute=9 p=%#x", uint64(x.p)), peer, false},
		{"Copy on a stream of another library", "cuStreamGetCtx", f("stream=%#x", uint64(x.foreign)), onOther, false},
		{"Copy on a stream of another library", "cuMemcpyAsync", f("dst=%#x src=%#x n=5 stream=%#x", uint64(x.p+8), uint64(x.p), uint64(x.foreign)), onOther, false},
	}
}
