//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.PeerCopier = (*device)(nil)

// CopyPeer is cuMemcpyPeerAsync. It retains the primary contexts of both devices until
// Close, because the copy needs them until it has run.
func (v *device) CopyPeer(dst driver.Ptr, to int, src driver.Ptr, from int, n uint64, s driver.Stream) error {
	const call = "cuMemcpyPeerAsync"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	if err := checkSpan(call, max(dst, src), n); err != nil {
		return err
	}
	toCtx, err := v.retained.of(v, call, to)
	if err != nil {
		return err
	}
	fromCtx, err := v.retained.of(v, call, from)
	if err != nil {
		return err
	}
	entry, err := v.d.streams.acquire(call, uint64(s), v)
	if err != nil {
		return err
	}
	defer entry.release(v)
	if n == 0 {
		return nil
	}
	return v.checkQueued(entry, s, call, C.cuvmm_copy_peer(v.d.api, v.queueOf(entry, s),
		C.CUdeviceptr(dst), toCtx, C.int(to), C.CUdeviceptr(src), fromCtx, C.int(from), C.size_t(n)))
}

// retained is primary contexts of other devices. Its zero value is empty.
type retained struct {
	mu       sync.Mutex
	contexts map[int]C.cuvmm_ctx // by ordinal
}

// of is the primary context of a device, which stays retained until release. One that
// was reset since is retained anew.
func (r *retained) of(v *device, call string, dev int) (ctx C.cuvmm_ctx, err error) {
	if err := v.d.checkDevice(call, dev); err != nil || dev == v.n {
		return v.ctx, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, known := r.contexts[dev]
	if known && Result(C.cuvmm_check_reset(v.d.api, ctx)) != contextDestroyed {
		return ctx, nil
	}
	c := C.cuvmm_retain(v.d.api, C.int(dev))
	if c.r != 0 {
		return ctx, v.checkBoth(call, c.r)
	}
	if known {
		C.cuvmm_primary_release(v.d.api, C.int(dev)) // for the one that was reset
	}
	if r.contexts == nil {
		r.contexts = map[int]C.cuvmm_ctx{}
	}
	r.contexts[dev] = c.ctx
	return c.ctx, nil
}

// release releases all of them when the device closes. No later call could try again, so
// each is tried twice here.
func (r *retained) release(v *device) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	release := func(dev int) error {
		result := Result(C.cuvmm_primary_release(v.d.api, C.int(dev)))
		err := v.d.fail("cuDevicePrimaryCtxRelease", result)
		if result == contextDestroyed || v.d.lost.Load() { // only the count was left
			return nil
		}
		return err
	}
	for _, dev := range slices.Sorted(maps.Keys(r.contexts)) {
		if release(dev) != nil {
			err = cmp.Or(err, release(dev))
		}
	}
	clear(r.contexts)
	return err
}
