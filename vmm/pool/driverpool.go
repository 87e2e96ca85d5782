package pool

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/internal/history"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// DriverPool is a pool of the driver's own, as cuMemAllocAsync uses. It frees only blocks that it
// allocated itself: a block of another DriverPool is ErrForeignBlock, even if both are of the same
// pool of the driver. Safe for concurrent use. The caller must Close it, before the device.
//
// When this module finds no memory on the device, the pool releases what no block uses
// (vmm.Device.OnPressure). The default and the current pool also release what other libraries have
// freed. With vmm.Device.SetLimit, or another bound, what the driver has reserved for the pool counts, once however
// often it is open. That is read when a bound is set, at each Alloc and release here, and before memory is given.
type DriverPool struct {
	// Immutable.
	dev   *vmm.Device
	calls driver.Pooler
	plain driver.Allocator
	pool  driver.Pool
	made  bool // by NewDriver, so Close destroys it

	onOOM func(*vmm.Stream, uint64) bool
	max   uint64 // 0: none
	in    owner  // what its blocks are in
	name  string
	stop  func() // takes back OnPressure; nil where it has not registered

	mu     sync.RWMutex // shared by all calls but Close
	closed bool

	last   atomic.Uint64 // Block.seq of the last block
	liveMu sync.Mutex
	live   map[uint64]driverBlock // those that are allocated, by Block.seq

	outside door.Outside // nil: dev had no access when the pool was wrapped, so the memory is another device's
}

// driverBlock is what a DriverPool knows of a block.
type driverBlock struct {
	holds int
	noted door.Allocation // for graphs
}

var _ Allocator = (*DriverPool)(nil)

// NewDriver makes a pool of the driver's for dev's memory. It returns ErrNotSupported if the driver
// has no pools. The caller must Close the pool, before dev.
//
// It uses these options: Name; Max, which the driver may round up; ReleaseThreshold; NoReuse;
// OnOOM, as for [New]; Share, as far as Device.Supports says for FeaturePoolShareFD and
// FeaturePoolShareFabric. Blocks are aligned to 256 bytes. A larger Align, and all other options,
// are ErrNotSupported.
func NewDriver(dev *vmm.Device, o Options) (_ *DriverPool, err error) {
	defer func() { err = wrapNamed(dev, "make driver's pool", o.Name, 0, 0, err) }()
	if err = o.resolveDriver(); err != nil {
		return nil, err
	}
	p, err := driverPool(dev)
	if err != nil {
		return nil, err
	}
	p.made, p.name, p.onOOM, p.max = true, o.Name, o.OnOOM, o.Max
	if p.pool, err = p.calls.CreatePool(driver.PoolProps{Max: o.Max, Share: o.Share}); err != nil {
		return nil, err
	}
	p.open()
	err = p.set(driver.PoolReleaseThreshold, o.ReleaseThreshold)
	if err == nil {
		err = p.setReuse(ReuseAll &^ o.NoReuse)
	}
	if err != nil {
		return nil, inside.VMM.Discard(dev, err, p.Close)
	}
	p.stop = dev.OnPressure(p.onPressure)
	return p, nil
}

// DriverDefault is the driver's default pool of a device. All libraries in the process share it,
// with its Stats, threshold and policies. Close leaves it as it is. The caller must Close it.
func DriverDefault(dev *vmm.Device) (*DriverPool, error) {
	return sharedPool(dev, "find default pool", driver.Pooler.DefaultPool)
}

// DriverCurrent is the pool that cuMemAllocAsync uses now: the default one until SetCurrent. The
// rest is as for DriverDefault.
func DriverCurrent(dev *vmm.Device) (*DriverPool, error) {
	return sharedPool(dev, "find current pool", driver.Pooler.CurrentPool)
}

// sharedPool is ofDriver of a pool from which this process allocates.
func sharedPool(dev *vmm.Device, op string, find func(driver.Pooler) (driver.Pool, error)) (*DriverPool, error) {
	p, err := ofDriver(dev, op, find)
	if err == nil {
		p.open()
		p.stop = dev.OnPressure(p.onPressure)
	}
	return p, err
}

func ofDriver(dev *vmm.Device, op string, find func(driver.Pooler) (driver.Pool, error)) (*DriverPool, error) {
	p, err := driverPool(dev)
	if err == nil {
		p.pool, err = find(p.calls)
	}
	if err != nil {
		return nil, wrap(dev, op, 0, 0, err)
	}
	return p, nil
}

// driverPool is a DriverPool without a pool yet.
func driverPool(dev *vmm.Device) (*DriverPool, error) {
	raw, err := dev.Raw()
	if err != nil {
		return nil, err
	}
	calls, pools := raw.(driver.Pooler)
	plain, frees := raw.(driver.Allocator)
	if !pools || !frees {
		return nil, fmt.Errorf("%w: pools of the driver", vmm.ErrNotSupported)
	}
	return &DriverPool{dev: dev, calls: calls, plain: plain, live: map[uint64]driverBlock{}}, nil
}

// enter keeps the pool open until leave, unless it returns an error.
func (p *DriverPool) enter() error {
	if p == nil || p.dev == nil {
		return errNoPool
	}
	p.mu.RLock()
	if p.closed {
		p.mu.RUnlock()
		return errClosed
	}
	return nil
}

// leave ends what enter began.
func (p *DriverPool) leave() { p.mu.RUnlock() }

// with makes a call while the pool is open.
func (p *DriverPool) with(op string, f func() error) error { return p.withBlock(op, Block{}, f) }

// withBlock makes a call about a block while the pool is open.
func (p *DriverPool) withBlock(op string, b Block, f func() error) error {
	err := p.enter()
	if err == nil {
		err = f()
		p.leave()
	}
	return p.fail(op, b.ptr, b.size, err)
}

func (p *DriverPool) fail(op string, at vmm.Ptr, size uint64, err error) error {
	return wrapNamed(p.Device(), op, nonnil.Of(p).name, at, size, err)
}

// Device is the device with which the pool was made, found or wrapped. The memory is that device's,
// unless a process has imported the pool with another device.
func (p *DriverPool) Device() *vmm.Device { return nonnil.Of(p).dev }

// Raw is the driver's handle, a CUmemoryPool on CUDA.
func (p *DriverPool) Raw() driver.Pool { return nonnil.Of(p).pool }

// SetCurrent makes cuMemAllocAsync use the pool, in all libraries of the process. When Close
// destroys the pool, the default one is current again.
func (p *DriverPool) SetCurrent() error {
	return p.with("set current pool", func() error { return p.calls.SetCurrentPool(p.pool) })
}

// Alloc is cuMemAllocFromPoolAsync. The stream may be of another device that was granted access.
// Alloc returns ErrInvalid without that access, ErrClosed for a closed stream, and ErrCapturing for
// one that is being captured. If the device has no memory left, this process releases memory that
// it does not use, as for vmm.Device.Create, then calls Options.OnOOM. While memory is being
// released for another operation, Alloc waits for it, for up to 10 seconds.
func (p *DriverPool) Alloc(s *vmm.Stream, n uint64) (b Block, err error) {
	for {
		if b, err = p.allocOrRelease(s, n); err == nil {
			b.note(inside.VMM.HistoryLog(p.dev), history.Alloc, s, p.name)
			return b, nil
		}
		// The callback may free and close, so no lock is held.
		if !errors.Is(err, vmm.ErrOutOfMemory) || p.onOOM == nil || !p.onOOM(s, n) {
			return Block{}, p.fail("allocate", 0, n, err)
		}
	}
}

// allocOrRelease is alloc, for which other memory may have to be released.
func (p *DriverPool) allocOrRelease(s *vmm.Stream, n uint64) (b Block, err error) {
	lacking := inside.VMM.WithMemory(p.Device(), "allocate", nonnil.Of(p).name, n, func() error {
		var full bool
		if b, full, err = p.alloc(s, n); full {
			return nil // no release helps
		}
		return err
	})
	return b, cmp.Or(lacking, err)
}

// alloc reports also whether it failed because of the pool's Max.
func (p *DriverPool) alloc(s *vmm.Stream, n uint64) (b Block, full bool, err error) {
	if err := p.enter(); err != nil {
		return Block{}, false, err
	}
	defer p.leave()
	var at vmm.Ptr
	err = p.onStream(s, func(handle driver.Stream) (err error) {
		if err = p.reaches(s.Device()); err != nil || n == 0 {
			return err
		}
		return p.change(n, func() (err error) {
			at, err = p.calls.AllocFromPool(p.pool, n, handle)
			return err
		})
	})
	if p.max > 0 && errors.Is(err, vmm.ErrOutOfMemory) {
		used, unknown := p.get(driver.PoolUsed)
		full = unknown == nil && (n > p.max || used > p.max-n)
	}
	if err != nil || n == 0 {
		return Block{in: &p.in}, full, err
	}
	b = Block{ptr: at, size: n, in: &p.in, seq: p.last.Add(1)}
	p.setLive(b, driverBlock{noted: inside.VMM.NoteAllocation(p.dev, at, n)})
	return b, false, nil
}

// onStream makes a call with the driver's handle of a stream, which cannot be closed
// meanwhile.
func (p *DriverPool) onStream(s *vmm.Stream, f func(driver.Stream) error) error {
	if s.Device().Driver() != p.dev.Driver() {
		if err := s.Usable(); err != nil {
			return err
		}
		return fmt.Errorf("%w: the stream is of another driver", vmm.ErrInvalid)
	}
	return onStream(s, f)
}

func onStream(s *vmm.Stream, f func(driver.Stream) error) error {
	handle, capturing, release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	if capturing {
		return fmt.Errorf("%w: memory of the driver's pools would become part of the graph", vmm.ErrCapturing)
	}
	return f(handle)
}

// reaches is ErrInvalid if a device has no access to the pool.
func (p *DriverPool) reaches(dev *vmm.Device) error {
	if ordinal(dev) == ordinal(p.dev) {
		return nil
	}
	a, err := p.calls.PoolAccess(p.pool, location(dev))
	if err == nil && a == vmm.AccessNone {
		err = fmt.Errorf("%w: %v has no access to the pool of %v", vmm.ErrInvalid, dev, p.dev)
	}
	return err
}

// Free is cuMemFreeAsync. The errors are those of [Pool.Free].
func (p *DriverPool) Free(s *vmm.Stream, b Block) error {
	return p.free(b, s, func() error {
		return p.onStream(s, func(handle driver.Stream) error {
			return p.plain.FreeAsync(b.ptr, handle)
		})
	})
}

// FreeNow is cuMemFree: the driver assumes that no work uses the block, and does not wait.
func (p *DriverPool) FreeNow(b Block) error {
	return p.free(b, nil, func() error {
		return p.plain.FreePlain(b.ptr)
	})
}

// Resize returns ErrNotSupported: a block of the driver's keeps its size.
func (p *DriverPool) Resize(_ *vmm.Stream, b Block, n uint64) (Block, error) {
	return b, p.fail("resize", b.ptr, n, fmt.Errorf("%w: a block of the driver's", vmm.ErrNotSupported))
}

// free makes the call that frees a block. If it fails the block is allocated as before.
func (p *DriverPool) free(b Block, s *vmm.Stream, call func() error) error {
	return p.withBlock("free", b, func() error {
		err := p.freeOpen(b, call)
		if err == nil {
			b.note(inside.VMM.HistoryLog(p.dev), history.Free, s, p.name)
		}
		return err
	})
}

func (p *DriverPool) freeOpen(b Block, call func() error) error {
	switch {
	case b.in != &p.in:
		return ErrForeignBlock
	case b.seq == 0:
		return nil // of 0 bytes
	}
	was, err := p.setFreed(b)
	if err != nil {
		return err
	}
	was.noted.Retire()
	if err = call(); err != nil {
		was.noted.Restore()
		p.setLive(b, was)
	}
	return err
}

func (p *DriverPool) setLive(b Block, as driverBlock) {
	p.liveMu.Lock()
	defer p.liveMu.Unlock()
	p.live[b.seq] = as
}

// setFreed returns ErrDoubleFree for a block that was freed before, or is being freed, and
// ErrBusy for one that is held.
func (p *DriverPool) setFreed(b Block) (driverBlock, error) {
	p.liveMu.Lock()
	defer p.liveMu.Unlock()
	x, was := p.live[b.seq]
	switch {
	case !was:
		return x, ErrDoubleFree
	case x.holds > 0:
		return x, fmt.Errorf("%w: the block is imported in this process", vmm.ErrBusy)
	}
	delete(p.live, b.seq)
	return x, nil
}

func (p *DriverPool) get(a driver.PoolAttribute) (uint64, error) {
	return p.calls.PoolAttribute(p.pool, a)
}

func (p *DriverPool) set(a driver.PoolAttribute, value uint64) error {
	return p.calls.SetPoolAttribute(p.pool, a, value)
}

// SetReleaseThreshold sets how many bytes stay reserved when anything in the process synchronises a
// stream, an event or the device.
func (p *DriverPool) SetReleaseThreshold(bytes uint64) error {
	return p.with("set release threshold", func() error { return p.set(driver.PoolReleaseThreshold, bytes) })
}

// ReleaseThreshold is what was set last, by any library.
func (p *DriverPool) ReleaseThreshold() (bytes uint64, err error) {
	err = p.with("read release threshold", func() (err error) {
		bytes, err = p.get(driver.PoolReleaseThreshold)
		return err
	})
	return bytes, err
}

// policies are in the order of the bits of Reuse.
var policies = [...]driver.PoolAttribute{driver.PoolReuseFollowEvents, driver.PoolReuseOpportunistic, driver.PoolReuseInternalDependencies}

// SetReuse switches the policies. If it fails some may be switched already.
func (p *DriverPool) SetReuse(r Reuse) error {
	return p.with("set reuse", func() error {
		if r&^ReuseAll != 0 {
			return fmt.Errorf("%w: reuse %#x", vmm.ErrInvalid, uint8(r))
		}
		return p.setReuse(r)
	})
}

func (p *DriverPool) setReuse(r Reuse) error {
	for i, a := range policies {
		if err := p.set(a, uint64(r>>i&1)); err != nil {
			return err
		}
	}
	return nil
}

// Reuse is the policies that are on.
func (p *DriverPool) Reuse() (r Reuse, err error) {
	err = p.with("read reuse", func() error {
		for i, a := range policies {
			on, err := p.get(a)
			if err != nil {
				return err
			}
			if on != 0 {
				r |= 1 << i
			}
		}
		return nil
	})
	return r, err
}

// Grant is cuMemPoolSetAccess. All devices are checked before anything changes. It waits as Revoke
// does if a device gets less access than it has.
func (p *DriverPool) Grant(a vmm.Access, devs ...*vmm.Device) error {
	if a == vmm.AccessNone {
		return p.Revoke(devs...)
	}
	return p.with("grant", func() error { return p.setAccess(a, devs) })
}

// Revoke waits for all work of the devices, then removes their access. It returns ErrCapturing and
// changes nothing while one of their streams is being captured. Launches and copies that begin
// during the call are not held back: if one uses the memory, its device can be lost. The caller
// must prevent that. Revoke of a Pool prevents it itself.
func (p *DriverPool) Revoke(devs ...*vmm.Device) error {
	return p.with("revoke", func() error { return p.setAccess(vmm.AccessNone, devs) })
}

func (p *DriverPool) setAccess(a vmm.Access, devs []*vmm.Device) error {
	if len(devs) == 0 {
		return fmt.Errorf("%w: no device", vmm.ErrInvalid)
	}
	var grants []driver.Grant
	for _, d := range devs {
		if d == nil {
			return fmt.Errorf("%w: no device", vmm.ErrInvalid)
		}
		if err := p.checkGrant(a, d); err != nil {
			return &vmm.PairError{From: d.String(), To: p.dev.String(), Err: err}
		}
		release, err := inside.VMM.KeepOpen(d, "access to a pool")
		if err != nil { // it is closed, and opens no context here
			return err
		}
		release()
		g := driver.Grant{To: location(d), Access: a}
		if slices.Contains(grants, g) {
			return fmt.Errorf("%w: %v is named twice", vmm.ErrInvalid, d)
		}
		grants = append(grants, g)
	}
	// Work that uses what is taken away would be lost, and its device with it.
	for _, d := range devs {
		had, err := p.calls.PoolAccess(p.pool, location(d))
		if err == nil && had > a {
			err = d.Sync()
		}
		if err != nil {
			return err
		}
	}
	return p.calls.SetPoolAccess(p.pool, grants)
}

// checkGrant says why a device cannot have that access.
func (p *DriverPool) checkGrant(a vmm.Access, d *vmm.Device) error {
	switch drv := d.Driver(); {
	case drv == nil || drv != p.dev.Driver():
		return fmt.Errorf("%w: %v is no device of the same driver", vmm.ErrInvalid, d)
	case p.outside == nil:
		return nil
	case a == vmm.AccessNone && ordinal(d) == ordinal(p.dev):
		return fmt.Errorf("%w: it owns the memory and cannot be revoked", vmm.ErrInvalid)
	case a != vmm.AccessNone:
		if can, err := drv.CanAccessPeer(ordinal(d), ordinal(p.dev)); err != nil || !can {
			return cmp.Or(err, fmt.Errorf("%w: no path between them", vmm.ErrNotSupported))
		}
	}
	return nil
}

// Access is what a device may do with the memory.
func (p *DriverPool) Access(d *vmm.Device) (a vmm.Access, err error) {
	err = p.with("read access", func() (err error) {
		if d.Driver() == nil || d.Driver() != p.dev.Driver() {
			return nil
		}
		a, err = p.calls.PoolAccess(p.pool, location(d))
		return err
	})
	return a, err
}

// Stats is the pool in numbers, including what other libraries have of it. The driver tells what is
// reserved and used, and both peaks.
func (p *DriverPool) Stats() (s Stats, err error) {
	err = p.with("read statistics", func() error {
		for a, n := range map[driver.PoolAttribute]*uint64{
			driver.PoolReserved: &s.Reserved, driver.PoolReservedPeak: &s.ReservedPeak, driver.PoolUsed: &s.Used, driver.PoolUsedPeak: &s.UsedPeak,
		} {
			if *n, err = p.get(a); err != nil {
				return err
			}
		}
		return nil
	})
	return s, err
}

// ResetPeaks sets both peaks to the present values, for every library.
func (p *DriverPool) ResetPeaks() error {
	return p.with("reset peaks", func() error {
		if err := p.set(driver.PoolReservedPeak, 0); err != nil {
			return err
		}
		return p.set(driver.PoolUsedPeak, 0)
	})
}

// Close destroys a pool made by NewDriver; one that the driver has anyway stays. It returns ErrBusy
// and changes nothing while a block is allocated. It does not wait: work on memory freed in stream
// order goes on. Twice is fine, and so is a nil DriverPool.
func (p *DriverPool) Close() error {
	if p == nil || p.dev == nil {
		return nil
	}
	err := p.close()
	if err == nil && p.stop != nil {
		p.stop() // without the lock, which a call of onPressure takes
	}
	return err
}

func (p *DriverPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if n := len(p.live); n > 0 { // no call is under way, so it does not change
		return p.fail("close", 0, 0, fmt.Errorf("%w: %d blocks are allocated", vmm.ErrBusy, n))
	}
	var destroy func() error
	if p.made {
		destroy = func() error { return p.calls.DestroyPool(p.pool) }
	}
	if p.outside != nil {
		if err := p.outside.Close(destroy); err != nil {
			return p.fail("close", 0, 0, err)
		}
	}
	p.closed = true
	return nil
}

// FreePlain frees memory that another library has allocated by cuMemAlloc or cuMemAllocAsync, once
// the work that the stream has now has ended. It does not wait. Blocks of a DriverPool are freed by
// its Free, which counts them. FreePlain returns ErrInvalid for other addresses, and ErrCapturing
// for a stream that is being captured. Safe for concurrent use.
func FreePlain(s *vmm.Stream, at vmm.Ptr) error {
	err := onStream(s, func(handle driver.Stream) error {
		raw, err := s.Device().Raw()
		if err != nil {
			return err
		}
		plain, ok := raw.(driver.Allocator)
		if !ok {
			return fmt.Errorf("%w: plain memory", vmm.ErrNotSupported)
		}
		return plain.FreeAsync(at, handle)
	})
	return wrap(s.Device(), "free plain memory", at, 0, err)
}

func ordinal(d *vmm.Device) int { return d.Info().Ordinal }

func location(d *vmm.Device) vmm.Location {
	return vmm.Location{Kind: vmm.LocationDevice, ID: ordinal(d)}
}
