//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"maps"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var (
	_ driver.PeerInfo    = (*Driver)(nil)
	_ driver.LegacyPeers = (*Device)(nil)
)

// Peering is what CUDA knows of the way from one device to another's memory.
// The driver API does not name a link. Its kind is inferred: native atomics
// between two GPUs mean NVLink, access without them is PCIe.
func (d *Driver) Peering(from, to int) (driver.Peering, error) {
	can, err := d.CanAccessPeer(from, to)
	switch {
	case err != nil:
		return driver.Peering{}, err
	case from == to:
		return driver.Peering{Access: true, Link: "self", Atomics: true}, nil
	case !can:
		return driver.Peering{Link: "none", Rank: -1}, nil
	}
	c := C.cuvmm_peering(d.api, C.int(from), C.int(to))
	switch {
	case c.r != 0:
		return driver.Peering{}, d.fail("cuDeviceGetP2PAttribute", Result(c.r))
	case c.told == 0:
		return driver.Peering{Access: true, Rank: -1}, nil
	}
	p := driver.Peering{Access: true, Link: "pcie", Rank: int(c.rank), Atomics: c.atomics != 0}
	if p.Atomics {
		p.Link = "nvlink"
	}
	return p, nil
}

// peers is whose plain memory a Device reaches, and their primary contexts.
// Each is retained for as long as it is here, so that the peer may be closed
// first. Its zero value is empty.
type peers struct {
	mu  sync.Mutex
	all map[int]C.cuvmm_ctx
}

// EnablePeer is cuCtxEnablePeerAccess. It retains the peer's primary context
// until DisablePeer or Close.
func (v *Device) EnablePeer(to int) error {
	const call = "cuCtxEnablePeerAccess"
	if err := v.enter(call); err != nil {
		return err
	}
	defer v.exit()
	if err := v.d.on(call, to); err != nil {
		return err
	}
	if to == v.n {
		return rule(call, driver.ErrInvalid, "cuda:%d is no peer of its own", to)
	}
	v.peers.mu.Lock()
	defer v.peers.mu.Unlock()
	if _, on := v.peers.all[to]; on {
		return rule(call, driver.ErrPeerEnabled, "cuda:%d to cuda:%d", v.n, to)
	}
	c := C.cuvmm_enable_peer(v.d.api, v.ctx, C.int(to))
	if c.r != 0 {
		return v.checkBoth(call, c.r)
	}
	if v.peers.all == nil {
		v.peers.all = map[int]C.cuvmm_ctx{}
	}
	v.peers.all[to] = c.ctx
	return nil
}

// DisablePeer is cuCtxDisablePeerAccess. What this Device has not enabled is
// another's to disable, so it is ErrInvalid. A lost device still answers.
func (v *Device) DisablePeer(to int) error {
	const call = "cuCtxDisablePeerAccess"
	if err := v.stay(call); err != nil {
		return err
	}
	defer v.exit()
	if to < 0 || to >= v.d.devices {
		return v.d.on(call, to)
	}
	v.peers.mu.Lock()
	defer v.peers.mu.Unlock()
	if _, on := v.peers.all[to]; !on {
		return rule(call, driver.ErrInvalid, "cuda:%d to cuda:%d is not enabled", v.n, to)
	}
	return v.disable(call, to)
}

// disable takes access to a peer away and releases the peer's context. What
// fails stays in the books to be tried again, but not where the process is lost
// or the context was reset: the access has gone with it.
func (v *Device) disable(call string, to int) error {
	c := C.cuvmm_disable_peer(v.d.api, v.ctx, v.peers.all[to], C.int(to))
	err := v.checkBoth(call, c.r)
	gone := v.gone()
	if c.retained != 0 && !gone {
		return err
	}
	delete(v.peers.all, to)
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

// leavePeers disables what is still enabled when the device closes. No later
// call could try again, so each has a second try here.
func (v *Device) leavePeers() (err error) {
	const call = "cuCtxDisablePeerAccess"
	v.peers.mu.Lock()
	defer v.peers.mu.Unlock()
	for to := range maps.Clone(v.peers.all) {
		_ = v.disable(call, to)
		if _, on := v.peers.all[to]; on {
			if again := v.disable(call, to); err == nil {
				err = again
			}
		}
	}
	return err
}
