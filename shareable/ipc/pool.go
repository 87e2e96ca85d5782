package ipc

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// inPool is what package pool does for this one alone.
var inPool = door.Through[door.Pool[*vmm.Device, *pool.DriverPool]]()

// Pool is a pool of the driver's that another process has made and this one has imported. It has
// no Alloc: only the process that made the pool allocates from it, and here its blocks are imported.
// Safe for concurrent use. The caller must Close it. Until then Close of the Device returns ErrBusy,
// and so may that of the devices in whose streams blocks were freed.
type Pool struct {
	// Immutable.
	dev   *vmm.Device
	calls driver.PoolSharer
	pools driver.Pooler
	frees driver.Allocator
	raw   driver.Pool
	in    *pool.DriverPool // the same pool, for what an imported one does like any
	keep  func()           // lets the device close

	mu       sync.Mutex // held across driver calls but waits: no import meets a free of the same memory
	closed   bool
	mapped   map[tokenKey]*mapping
	leaving  map[tokenKey]*vmm.Event // recorded after a free in the order of a stream
	unclosed []*vmm.Event            // not needed any more, and the driver did not take them back
	used     uint64                  // bytes of mapped
	peak     uint64                  // the most of used
}

// ImportPool imports the pool of a descriptor. dev is the device whose memory the pool has. A
// process that does not see that device passes any other. ImportPool does not take fd; close it
// when it returns. A descriptor of something else is vmm.ErrInvalid. Without pools that can be
// shared it is vmm.ErrNotSupported.
//
// At first only the pool's own device has access, whatever the process that made the pool has
// granted. Grant access to any other device, also to dev, before its work uses a block. Import a
// pool once in a process: a block can be imported through one Pool only. The caller must Close it.
func ImportPool(dev *vmm.Device, fd int) (_ *Pool, err error) {
	defer func() { err = fail(dev, "import pool", 0, 0, err) }()
	calls, err := sharer(dev)
	if err != nil {
		return nil, err
	}
	pools, hasPools := calls.(driver.Pooler)
	frees, hasFrees := calls.(driver.Allocator)
	if !hasPools || !hasFrees {
		return nil, fmt.Errorf("%w: pools of the driver", vmm.ErrNotSupported)
	}
	p := &Pool{dev: dev, calls: calls, pools: pools, frees: frees, mapped: map[tokenKey]*mapping{}, leaving: map[tokenKey]*vmm.Event{}}
	if p.keep, err = inside.VMM.KeepOpen(dev, "imported pool"); err != nil {
		return nil, err
	}
	if p.raw, err = calls.ImportPool(fd); err != nil {
		p.keep()
		return nil, err
	}
	if p.in, err = inPool.WrapDriver(dev, p.raw); err != nil {
		err = joinErr(err, pools.DestroyPool(p.raw))
		p.keep()
		return nil, err
	}
	return p, nil
}

// Import maps the block of a token. Token.Size is taken as it is: of a token that does not
// tell the size the caller must set it, rightly. A token that is not of this pool is
// ErrHandle, as far as the driver can tell.
//
// Importing a token that is imported returns another Block of the same memory, which is
// unmapped when the last of them is freed. If the last one was freed in the order of a
// stream, Import of that token waits until the stream has come so far. A token that is
// imported through another Pool of this process is vmm.ErrBusy. The caller must free the
// Block, before the process that made it frees its own.
func (p *Pool) Import(t Token) (b *Block, err error) {
	err = p.with(func() (err error) {
		b, err = p.importLocked(t)
		return err
	})
	return b, fail(p.Device(), "import block", 0, t.Size, err)
}

// importLocked is Import; it needs p.mu, which it may release and take again.
func (p *Pool) importLocked(t Token) (*Block, error) {
	switch {
	case t.Raw == [64]byte{}:
		return nil, fmt.Errorf("%w: 64 zero bytes", ErrHandle)
	case t.Size == 0:
		return nil, fmt.Errorf("%w: a block of unknown size: set Token.Size", vmm.ErrInvalid)
	}
	k := keyOf(p.dev, t.Raw)
	if err := p.waitLeftLocked(k); err != nil {
		return nil, err
	}
	m := p.mapped[k]
	if m == nil {
		var err error
		if m, err = p.mapLocked(k, t.Size); err != nil {
			return nil, err
		}
		p.mapped[k] = m
		p.used += m.size
		p.peak = max(p.peak, p.used)
	}
	m.blocks++
	return &Block{p: p, m: m, size: t.Size}, nil
}

// waitLeftLocked waits until a free in a stream has unmapped what a token named: till then
// the driver might return an address that is about to go. It needs p.mu.
func (p *Pool) waitLeftLocked(k tokenKey) error {
	for p.leaving[k] != nil {
		e := p.leaving[k]
		if err := p.syncUnlocked(e); err != nil {
			return err
		}
		if p.leaving[k] == e {
			delete(p.leaving, k)
			p.closeEventLocked(e)
		}
	}
	if p.closed {
		return errPoolClosed
	}
	return nil
}

// syncUnlocked waits for an event. It releases p.mu for that, since functions of
// vmm.Device.OnSync may use the pool, and takes it again. Another call may have closed the
// event meanwhile, once it was reached.
func (p *Pool) syncUnlocked(e *vmm.Event) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	if err := e.Sync(); !errors.Is(err, vmm.ErrClosed) {
		return err
	}
	return nil
}

// mapLocked imports what is not imported yet. It needs p.mu.
func (p *Pool) mapLocked(k tokenKey, size uint64) (*mapping, error) {
	release, err := tokens.addImport(k, p)
	if err != nil {
		return nil, err
	}
	m := &mapping{key: k, size: size, release: release}
	if m.ptr, err = p.calls.ImportPointer(p.raw, k.raw); err != nil {
		tokens.removeImport(k)
		release()
		if errors.Is(err, vmm.ErrInvalid) {
			err = fmt.Errorf("%w: %w", ErrHandle, err)
		}
		return nil, err
	}
	m.noted = inside.VMM.NoteAllocation(p.dev, m.ptr, size)
	return m, nil
}

var (
	errNoPool     = fmt.Errorf("%w: no pool", vmm.ErrInvalid)
	errPoolClosed = fmt.Errorf("%w: imported pool", vmm.ErrClosed)
)

// with makes a call with p.mu held while the pool is open.
func (p *Pool) with(call func() error) error {
	if p == nil || p.dev == nil {
		return errNoPool
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errPoolClosed
	}
	return call()
}

// Device is the one that ImportPool was called with.
func (p *Pool) Device() *vmm.Device { return nonnil.Of(p).dev }

// Raw is the driver's handle, a CUmemoryPool on CUDA.
func (p *Pool) Raw() driver.Pool { return nonnil.Of(p).raw }

// inner is the pool as any of the driver's; nil if there is none, whose methods return errors.
func (p *Pool) inner() *pool.DriverPool { return nonnil.Of(p).in }

// Grant gives devices access to all that is and will be imported here, as pool.DriverPool's
// Grant does. No access is inherited from the process that made the pool, and none that is
// granted here counts there.
func (p *Pool) Grant(a vmm.Access, devs ...*vmm.Device) error { return p.inner().Grant(a, devs...) }

// Revoke is pool.DriverPool's Revoke, with its rule on work that begins meanwhile.
func (p *Pool) Revoke(devs ...*vmm.Device) error { return p.inner().Revoke(devs...) }

// Access is what a device may do with the memory here.
func (p *Pool) Access(d *vmm.Device) (vmm.Access, error) { return p.inner().Access(d) }

// TrimTo is passed on to the driver. It returns how many bytes this process really gave up,
// 0 if the driver does not tell; what the process that made the pool keeps is not among them.
// If the driver refuses, as CUDA's does, it is ErrImported.
func (p *Pool) TrimTo(keep uint64) (freed uint64, err error) {
	err = p.passOn("trim imported pool", func() error {
		before, unknown := p.pools.PoolAttribute(p.raw, driver.PoolReserved)
		if err := p.pools.TrimPool(p.raw, keep); err != nil {
			return err
		}
		if after, err := p.pools.PoolAttribute(p.raw, driver.PoolReserved); unknown == nil && err == nil {
			freed = before - min(before, after)
		}
		return nil
	})
	return freed, err
}

// SetReleaseThreshold is passed on to the driver. It changes nothing in the process that made
// the pool. If the driver refuses, as CUDA's does, it is ErrImported.
func (p *Pool) SetReleaseThreshold(bytes uint64) error {
	return p.passOn("set release threshold of imported pool", func() error {
		return p.pools.SetPoolAttribute(p.raw, driver.PoolReleaseThreshold, bytes)
	})
}

// ReleaseThreshold is what the driver says of the pool here. If it says nothing, as CUDA's
// does, that is ErrImported.
func (p *Pool) ReleaseThreshold() (bytes uint64, err error) {
	err = p.passOn("read release threshold of imported pool", func() (err error) {
		bytes, err = p.pools.PoolAttribute(p.raw, driver.PoolReleaseThreshold)
		return err
	})
	return bytes, err
}

// passOn makes a call of the driver that it may refuse for an imported pool.
func (p *Pool) passOn(op string, call func() error) error {
	return fail(p.Device(), op, 0, 0, p.with(func() error {
		err := call()
		if errors.Is(err, vmm.ErrInvalid) {
			err = fmt.Errorf("%w: %w", ErrImported, err)
		}
		return err
	}))
}

// Stats counts what this process has imported through the Pool, by Token.Size, until it is
// freed. A token that is imported several times counts once. Reserved is the same as Used.
// Nothing of what the process that made the pool has allocated is in it, and the driver is not
// asked.
func (p *Pool) Stats() (st pool.Stats, err error) {
	err = p.with(func() error {
		st = pool.Stats{Reserved: p.used, ReservedPeak: p.peak, Used: p.used, UsedPeak: p.peak}
		return nil
	})
	return st, fail(p.Device(), "read statistics of imported pool", 0, 0, err)
}

// ResetPeaks sets both peaks to what is imported now.
func (p *Pool) ResetPeaks() error {
	return fail(p.Device(), "reset peaks of imported pool", 0, 0, p.with(func() error {
		p.peak = p.used
		return nil
	}))
}

// Close gives the pool up. While a Block is imported it returns ErrBusy and changes nothing.
// It does not wait: work on blocks that were freed in stream order goes on. Twice is fine,
// and so is a nil Pool. After an error it can be called again.
func (p *Pool) Close() error {
	if p == nil || p.dev == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	return fail(p.dev, "close imported pool", 0, 0, p.closeLocked())
}

// closeLocked is Close; it needs p.mu.
func (p *Pool) closeLocked() error {
	if n := len(p.mapped); n > 0 {
		return fmt.Errorf("%w: %d blocks are imported", vmm.ErrBusy, n)
	}
	for k, e := range p.leaving {
		delete(p.leaving, k)
		p.closeEventLocked(e)
	}
	for len(p.unclosed) > 0 {
		if err := p.unclosed[0].Close(); err != nil {
			return err
		}
		p.unclosed = p.unclosed[1:]
	}
	// The wrapper first: it waits for calls that use the driver's pool.
	if err := p.in.Close(); err != nil {
		return err
	}
	if err := p.pools.DestroyPool(p.raw); err != nil && !lost(err) {
		return err
	}
	p.closed = true
	p.keep()
	return nil
}
