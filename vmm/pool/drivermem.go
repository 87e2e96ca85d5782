package pool

import (
	"cmp"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// allocCounted allocates. Where there is a bound, it counts a block before if the pool has too little memory for it.
func (p *DriverPool) allocCounted(n uint64, s driver.Stream) (vmm.Ptr, error) {
	if p.ownerUnknown || !p.outside.IsBounded() {
		return p.calls.AllocFromPool(p.pool, n, s)
	}
	p.outsideMu.Lock()
	defer p.outsideMu.Unlock()
	defer p.count()
	reserved, err := p.get(driver.PoolReserved)
	used, usedErr := p.get(driver.PoolUsed)
	if err = cmp.Or(err, usedErr); err != nil {
		return 0, err
	}
	p.outside.Set(reserved)
	if n > reserved-min(reserved, used) {
		if err := p.outside.Reserve(n); err != nil {
			return 0, err
		}
	}
	return p.calls.AllocFromPool(p.pool, n, s)
}

// count counts what the driver has reserved, as far as it says so.
func (p *DriverPool) count() {
	if reserved, err := p.get(driver.PoolReserved); err == nil {
		p.outside.Set(reserved)
	}
}

// TrimTo is cuMemPoolTrimTo. Allocations and frees by other libraries meanwhile may change the
// result.
func (p *DriverPool) TrimTo(keep uint64) (freed uint64, err error) {
	err = p.with("trim", func() error {
		p.outsideMu.Lock() // an Alloc under way is counted before the driver has reserved it
		defer p.outsideMu.Unlock()
		before, err := p.get(driver.PoolReserved)
		if err == nil {
			err = p.calls.TrimPool(p.pool, keep)
		}
		if err != nil {
			return err
		}
		after, err := p.get(driver.PoolReserved)
		if err == nil && !p.ownerUnknown && p.outside.IsBounded() {
			p.outside.Set(after)
		}
		freed = before - min(before, after)
		return err
	})
	return freed, err
}

// onPressure gives back what no block uses when the device's memory runs out.
func (p *DriverPool) onPressure(error) bool {
	freed, err := p.TrimTo(0)
	return err == nil && freed > 0
}
