package pool

import (
	"cmp"
	"math"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// open begins to count what the driver has reserved.
func (p *DriverPool) open() {
	p.outside = inside.VMM.Outside(p.dev, p.pool, func() (reserved, used uint64, err error) {
		reserved, err = p.get(driver.PoolReserved)
		used, usedErr := p.get(driver.PoolUsed)
		return reserved, used, cmp.Or(err, usedErr)
	})
}

// reservedAtATime is the step in which CUDA's driver reserves memory for a pool. Other drivers reserve as much as a block
// needs.
const reservedAtATime = 32 << 20

// mostReserved is what the driver reserves at most for a block for which the pool has no room.
func (p *DriverPool) mostReserved(n uint64) uint64 {
	if p.dev.Driver().Name() != "cuda" || n > math.MaxUint64-reservedAtATime {
		return n
	}
	return (n + reservedAtATime - 1) / reservedAtATime * reservedAtATime
}

// change makes a call that has the driver reserve or release memory; n is how many bytes it allocates.
func (p *DriverPool) change(n uint64, call func() error) error {
	if p.outside == nil {
		return call()
	}
	return p.outside.Change(n, p.mostReserved(n), call)
}

// TrimTo is cuMemPoolTrimTo. Allocations and frees by other libraries meanwhile may change the
// result.
func (p *DriverPool) TrimTo(keep uint64) (freed uint64, err error) {
	err = p.with("trim", func() error {
		return p.change(0, func() error {
			before, err := p.get(driver.PoolReserved)
			if err == nil {
				err = p.calls.TrimPool(p.pool, keep)
			}
			if err != nil {
				return err
			}
			after, err := p.get(driver.PoolReserved)
			freed = before - min(before, after)
			return err
		})
	})
	return freed, err
}

// onPressure gives back what no block uses when the device's memory runs out.
func (p *DriverPool) onPressure(error) bool {
	freed, err := p.TrimTo(0)
	return err == nil && freed > 0
}
