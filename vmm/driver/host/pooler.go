//go:build linux

package host

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.Pooler = (*device)(nil)

// DefaultPool makes the default pool at the first call.
func (v *device) DefaultPool() (h driver.Pool, err error) {
	err = v.withMemory("DefaultPool", func() error { h = v.context.defaultPool().handle; return nil })
	return h, err
}

// CurrentPool is the default pool until SetCurrentPool.
func (v *device) CurrentPool() (h driver.Pool, err error) {
	err = v.withMemory("CurrentPool", func() error { h = v.context.currentPool().handle; return nil })
	return h, err
}

// SetCurrentPool changes which pool AllocAsync takes from.
func (v *device) SetCurrentPool(h driver.Pool) error {
	const verb = "SetCurrentPool"
	return v.onPool(verb, h, func(p *pool) error {
		if p.context != v.context {
			return refuse(verb, driver.ErrInvalid, "pool %d is of host:%d", h, p.context.state.ordinal)
		}
		if p.imports != nil {
			return refuse(verb, driver.ErrInvalid, "pool %d was imported, so nothing can be allocated from it", h)
		}
		v.context.current = p
		return nil
	})
}

// CreatePool makes a pool, which the context ends with. One that can be shared takes a
// descriptor.
func (v *device) CreatePool(props driver.PoolProps) (h driver.Pool, err error) {
	const verb = "CreatePool"
	err = v.withMemory(verb, func() error {
		switch known := driver.ShareFD | driver.ShareFabric | driver.ShareReadOnly; {
		case props.Share&^known != 0:
			return refuse(verb, driver.ErrInvalid, "share %#x", uint8(props.Share))
		case props.Share&^driver.ShareFD != 0:
			return refuse(verb, driver.ErrNotSupported, "pools with share %#x", uint8(props.Share))
		}
		p := v.context.newPool(v)
		p.max = props.Max
		if props.Share != 0 {
			if err := v.context.d.makeShareable(p); err != nil {
				v.context.d.removePool(p)
				return err
			}
		}
		h = p.handle
		return nil
	})
	return h, err
}

// DestroyPool works on a lost device too, and after a reset. Memory that is imported keeps its
// pool, as on CUDA, unless the device is lost and could not free it.
func (v *device) DestroyPool(h driver.Pool) error {
	const verb = "DestroyPool"
	if v.closed.Load() {
		return v.closedError(verb)
	}
	d := v.context.d
	d.memMu.Lock()
	defer d.unlockAndClose()
	p := d.pools[h]
	if p == nil || p.destroyed || p.maker == nil {
		return refuse(verb, driver.ErrInvalid, "no pool %d to destroy", h)
	}
	if n := len(p.imports); n > 0 && !d.lost.Load() {
		return refuse(verb, driver.ErrInvalid, "%d blocks of pool %d are imported", n, h)
	}
	d.destroyPool(p)
	return nil
}

// AllocFromPool takes memory that was freed, or maps new.
func (v *device) AllocFromPool(h driver.Pool, n uint64, s driver.Stream) (driver.Ptr, error) {
	const verb = "AllocFromPool"
	return v.allocFrom(verb, n, s, func(*stream) (*pool, error) {
		p, err := v.context.d.pool(verb, h)
		if err == nil && p.imports != nil {
			err = refuse(verb, driver.ErrInvalid, "pool %d was imported, so nothing can be allocated from it", h)
		}
		return p, err
	})
}

// AllocAsync allocates from the current pool of the stream's device.
func (v *device) AllocAsync(n uint64, s driver.Stream) (driver.Ptr, error) {
	return v.allocFrom("AllocAsync", n, s, func(x *stream) (*pool, error) { return x.context.currentPool(), nil })
}

// FreeAsync queues the free. Nothing may use the memory any more but what is queued
// already. Plain memory is freed as that of a pool that is destroyed.
func (v *device) FreeAsync(p driver.Ptr, s driver.Stream) error {
	const verb = "FreeAsync"
	return v.withMemory(verb, func() error {
		d := v.context.d
		r := d.region(uint64(p))
		if r == nil || r.block == nil || r.base != uint64(p) || r.block.pinned || r.block.opens > 0 {
			return refuse(verb, driver.ErrInvalid, "nothing was allocated so at %v", p)
		}
		d.workMu.Lock()
		x, err := v.orderIn(verb, s)
		if err != nil {
			d.workMu.Unlock()
			return err
		}
		x.orderDefaults()
		freed := &op{work: work{run: func(*context) bool { return true }}}
		if len(x.lastOps()) == 0 {
			freed.end()
		} else {
			x.push(freed)
		}
		x.freeCount++
		number := x.freeCount
		d.workMu.Unlock()
		d.remove(r)
		of := r.block.pool
		if of == nil {
			of = r.block.context.newPool(nil)
			of.destroyed, of.blocks, of.reserved = true, r.size, r.size
		}
		of.add(&cachedBlock{region: r, stream: x, freed: freed, number: number})
		return nil
	})
}

// freePooled frees a block of a pool at once: the caller says that no work uses it. The
// caller holds memMu.
func (d *Driver) freePooled(r *region) {
	d.loseIfUsed(within(r.base, r.end()))
	d.remove(r)
	r.block.pool.add(&cachedBlock{region: r})
}

// TrimPool releases cached blocks as long as keep bytes are left.
func (v *device) TrimPool(h driver.Pool, keep uint64) error {
	return v.onPool("TrimPool", h, func(p *pool) error {
		v.context.d.releaseCached(p, func(size uint64) bool { return p.reserved-size >= keep })
		return nil
	})
}

// PoolAttribute reads an attribute.
func (v *device) PoolAttribute(h driver.Pool, a driver.PoolAttribute) (n uint64, err error) {
	const verb = "PoolAttribute"
	err = v.onPool(verb, h, func(p *pool) error {
		switch a {
		case driver.PoolReuseFollowEvents, driver.PoolReuseOpportunistic, driver.PoolReuseInternalDependencies:
			n = p.reuse[a-driver.PoolReuseFollowEvents]
		case driver.PoolReleaseThreshold:
			n = p.threshold
		case driver.PoolReserved:
			n = p.reserved
		case driver.PoolReservedPeak:
			n = p.reservedPeak
		case driver.PoolUsed:
			n = p.used()
		case driver.PoolUsedPeak:
			n = p.usedPeak
		default:
			return refuse(verb, driver.ErrInvalid, "attribute %d", a)
		}
		return nil
	})
	return n, err
}

// SetPoolAttribute sets an attribute.
func (v *device) SetPoolAttribute(h driver.Pool, a driver.PoolAttribute, n uint64) error {
	const verb = "SetPoolAttribute"
	return v.onPool(verb, h, func(p *pool) error {
		switch {
		case a >= driver.PoolReuseFollowEvents && a <= driver.PoolReuseInternalDependencies && n <= 1:
			p.reuse[a-driver.PoolReuseFollowEvents] = n
		case a == driver.PoolReleaseThreshold:
			p.threshold = n
		case a == driver.PoolReservedPeak && n == 0:
			p.reservedPeak = p.reserved
		case a == driver.PoolUsedPeak && n == 0:
			p.usedPeak = p.used()
		default:
			return refuse(verb, driver.ErrInvalid, "%d for attribute %d", n, a)
		}
		return nil
	})
}

// SetPoolAccess changes the table that copies and kernels are checked against. Work on
// memory that loses its access loses the devices.
func (v *device) SetPoolAccess(h driver.Pool, to []driver.Grant) error {
	const verb = "SetPoolAccess"
	return v.onPool(verb, h, func(p *pool) error {
		d, owner := v.context.d, p.on.ordinal
		if len(to) == 0 {
			return refuse(verb, driver.ErrInvalid, "no grant")
		}
		for _, g := range to {
			if err := d.checkGrant(verb, g); err != nil {
				return err
			}
			if g.To.ID == owner && g.Access == driver.AccessNone {
				return refuse(verb, driver.ErrInvalid, "pool %d is of host:%d, whose access cannot be revoked", h, owner)
			}
			if g.Access != driver.AccessNone && !d.canReach(g.To.ID, owner) {
				return refuse(verb, driver.ErrInvalid, "host:%d cannot reach memory of host:%d", g.To.ID, owner)
			}
		}
		for _, r := range d.regions {
			if r.block != nil && r.block.pool == p {
				d.loseIfUsed(narrowed(r.base, r.end(), to))
			}
		}
		for _, g := range to {
			p.access[g.To.ID] = g.Access
		}
		return nil
	})
}

// PoolAccess is what SetPoolAccess set last.
func (v *device) PoolAccess(h driver.Pool, to driver.Location) (a driver.Access, err error) {
	const verb = "PoolAccess"
	err = v.onPool(verb, h, func(p *pool) error {
		if err := v.context.d.checkGrant(verb, driver.Grant{To: to, Access: driver.AccessRead}); err != nil {
			return err
		}
		a = p.access[to.ID]
		return nil
	})
	return a, err
}

// PoolOf knows every address that has memory.
func (v *device) PoolOf(p driver.Ptr) (of driver.Pool, dev int, err error) {
	const verb = "PoolOf"
	err = v.withMemory(verb, func() error {
		r := v.context.d.region(uint64(p))
		switch {
		case r != nil && r.block != nil && uint64(p)-r.base < r.block.n:
			dev = r.block.on().ordinal
			if r.block.pool != nil {
				of = r.block.pool.handle
			}
			return nil
		case r != nil && r.block == nil:
			if m := r.covering(uint64(p), 1); m != nil {
				dev = m[0].memory.state.ordinal
				return nil
			}
		}
		return refuse(verb, driver.ErrInvalid, "no memory at %v", p)
	})
	return of, dev, err
}

// PoolShares is by descriptors, where the system has what those need.
func (v *device) PoolShares() (driver.Share, error) {
	if err := v.checkOpen("PoolShares"); err != nil {
		return 0, err
	}
	if err := v.context.d.probeSparse(); err != nil {
		if errors.Is(err, driver.ErrNotSupported) {
			err = nil
		}
		return 0, err
	}
	return driver.ShareFD, nil
}

// onPool calls f with a pool of any device, under memMu.
func (v *device) onPool(verb string, h driver.Pool, f func(*pool) error) error {
	return v.withMemory(verb, func() error {
		p, err := v.context.d.pool(verb, h)
		if err != nil {
			return err
		}
		return f(p)
	})
}

// withMemory calls f under memMu, unless the context has gone.
func (v *device) withMemory(verb string, f func() error) error {
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	d := v.context.d
	d.memMu.Lock()
	defer d.unlockAndClose()
	d.workMu.Lock()
	gone := v.context.stopped()
	d.workMu.Unlock()
	if gone {
		return v.context.stoppedError(verb)
	}
	return f()
}
