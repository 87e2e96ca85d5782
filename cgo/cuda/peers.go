//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"cmp"
	"maps"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var (
	_ driver.PeerInfo    = (*libcuda)(nil)
	_ driver.LegacyPeers = (*device)(nil)
)

// CanAccessPeer reports whether one device can reach the other's memory.
func (d *libcuda) CanAccessPeer(from, to int) (bool, error) {
	const call = "cuDeviceCanAccessPeer"
	for _, dev := range []int{from, to} {
		if err := d.checkDevice(call, dev); err != nil {
			return false, err
		}
	}
	if from == to {
		return true, nil
	}
	v := C.cuvmm_can_access_peer(d.api, C.int(from), C.int(to))
	return v.v != 0, d.fail(call, Result(v.r))
}

// Peering is what CUDA knows of the path from one device to another's memory. The
// driver API does not name the link. So native atomics between two GPUs are taken
// for NVLink, and access without them for PCIe.
func (d *libcuda) Peering(from, to int) (driver.Peering, error) {
	can, err := d.CanAccessPeer(from, to)
	switch {
	case err != nil:
		return driver.Peering{}, err
	case from == to:
		return driver.Peering{Access: true, Link: "self", Atomics: true}, nil
	case !can:
		return driver.Peering{Link: "none", Rank: -1}, nil
	}
	// A rank means something only for a pair with access.
	c := C.cuvmm_peering(d.api, C.int(from), C.int(to))
	switch {
	case c.r != 0:
		return driver.Peering{}, d.fail("cuDeviceGetP2PAttribute", Result(c.r))
	case c.known == 0:
		return driver.Peering{Access: true, Rank: -1}, nil
	}
	p := driver.Peering{Access: true, Link: "pcie", Rank: int(c.rank), Atomics: c.atomics != 0}
	if p.Atomics {
		p.Link = "nvlink"
	}
	return p, nil
}

// peers is the devices whose plain memory a Device may access, with their primary
// contexts. Each context is retained for as long as it is here, so that the peer
// may be closed first. Its zero value is empty.
type peers struct {
	mu       sync.Mutex
	contexts map[int]C.cuvmm_ctx // by ordinal
}

// EnablePeer is cuCtxEnablePeerAccess. It retains the peer's primary context
// until DisablePeer or Close.
func (v *device) EnablePeer(to int) error {
	const call = "cuCtxEnablePeerAccess"
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	if err := v.d.checkDevice(call, to); err != nil {
		return err
	}
	if to == v.n {
		return refuse(call, driver.ErrInvalid, "cuda:%d is no peer of its own", to)
	}
	// Held during the call, so that the map and CUDA agree at any time.
	v.peers.mu.Lock()
	defer v.peers.mu.Unlock()
	if _, on := v.peers.contexts[to]; on {
		return refuse(call, driver.ErrPeerEnabled, "cuda:%d to cuda:%d", v.n, to)
	}
	c := C.cuvmm_enable_peer(v.d.api, v.ctx, C.int(to))
	if c.r != 0 {
		return v.checkBoth(call, c.r)
	}
	if v.peers.contexts == nil {
		v.peers.contexts = map[int]C.cuvmm_ctx{}
	}
	v.peers.contexts[to] = c.ctx
	return nil
}

// DisablePeer is cuCtxDisablePeerAccess. Access that this Device did not enable may
// be another library's, so to disable it is ErrInvalid. It works on a lost device.
func (v *device) DisablePeer(to int) error {
	const call = "cuCtxDisablePeerAccess"
	if err := v.beginEvenLost(call); err != nil {
		return err
	}
	defer v.end()
	if to < 0 || to >= v.d.devices {
		return v.d.checkDevice(call, to)
	}
	v.peers.mu.Lock()
	defer v.peers.mu.Unlock()
	if _, on := v.peers.contexts[to]; !on {
		return refuse(call, driver.ErrInvalid, "cuda:%d to cuda:%d is not enabled", v.n, to)
	}
	return v.disable(call, to)
}

// disable takes access to a peer away and releases the peer's context. After an
// error the peer stays listed, to be tried again. Not so where the process is lost
// or the context was reset: then the access is gone.
func (v *device) disable(call string, to int) error {
	c := C.cuvmm_disable_peer(v.d.api, v.ctx, v.peers.contexts[to], C.int(to))
	err := v.checkBoth(call, c.r)
	gone := v.gone()
	if c.retained != 0 && !gone {
		return err
	}
	// From here on there is no access, and a peer whose context may be retained.
	delete(v.peers.contexts, to)
	if !gone {
		return err
	}
	if c.retained != 0 {
		err = v.d.fail(call, Result(C.cuvmm_primary_release(v.d.api, C.int(to))))
		if !v.d.lost.Load() {
			return err
		}
	}
	return nil
}

// disablePeers disables what is still enabled when the device closes. No later call
// could try again, so each peer is tried twice here.
func (v *device) disablePeers() (err error) {
	const call = "cuCtxDisablePeerAccess"
	v.peers.mu.Lock()
	defer v.peers.mu.Unlock()
	for to := range maps.Clone(v.peers.contexts) {
		_ = v.disable(call, to)
		if _, on := v.peers.contexts[to]; on {
			err = cmp.Or(err, v.disable(call, to))
		}
	}
	return err
}
