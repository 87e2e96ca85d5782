package drivertest_test

import (
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// Mutants of Supports.

// hides has a feature and denies it.
type hides struct {
	*host.Driver
	feature driver.Feature
}

func (d *hides) Supports(dev int, f driver.Feature) error {
	if f == d.feature {
		return d.Driver.Supports(dev, driver.FeatureRDMA) // ErrNotSupported
	}
	return d.Driver.Supports(dev, f)
}

// boasts claims a feature that it has not.
type boasts struct {
	*host.Driver
	feature driver.Feature
}

func (d *boasts) Supports(dev int, f driver.Feature) error {
	if f == d.feature {
		return nil
	}
	return d.Driver.Supports(dev, f)
}
