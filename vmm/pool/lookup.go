package pool

import (
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Found is what Lookup returns.
type Found struct {
	Device int         // ordinal of the device whose memory it is
	Pool   *Pool       // whose addresses it is among; nil: no Pool's
	Block  Block       // of Pool, in which it lies; the zero Block: none is allocated there
	Driver driver.Pool // from which the driver has allocated it; 0: from no pool
}

// Lookup finds the pool of an address, of any device of dev's driver. It finds a Pool without
// calling the driver, which knows nothing of it. Otherwise it asks the driver, also for plain
// memory. It returns ErrInvalid for an address that the driver does not know, and ErrNotSupported
// for a driver without pools. Lookup must not run beside a Free of the block.
func Lookup(dev *vmm.Device, at vmm.Ptr) (Found, error) {
	if r, _, ok := dev.Lookup(at); ok {
		if p, ok := r.Owner().(*Pool); ok {
			b, _ := p.Find(at)
			return Found{Device: p.dev.Info().Ordinal, Pool: p, Block: b}, nil
		}
	}
	var found Found
	p, err := driverPool(dev)
	if err == nil {
		found.Driver, found.Device, err = p.calls.PoolOf(at)
	}
	if err != nil {
		return Found{}, wrap(dev, "look up address", at, 0, err)
	}
	return found, nil
}
