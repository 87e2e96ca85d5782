package drivertest_test

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// Mutants for lost devices and resets.

type createLost struct{ *host.Driver }

func (d *createLost) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	h, err := d.Driver.Create(size, p)
	return h, pass(err, driver.ErrDeviceLost)
}

type lostAlone struct{ *host.Driver }

func (d *lostAlone) SyncIfActive(dev int) error {
	err := d.Driver.SyncIfActive(dev)
	if dev == 1 {
		return pass(err, driver.ErrDeviceLost)
	}
	return err
}

type silentReset struct{ full }

func (d *silentReset) Done(e driver.Event) (bool, error) {
	yes, err := d.full.Done(e)
	return yes, pass(err, driver.ErrContextReset)
}

type resetAll struct{ *host.Driver }

func (d *resetAll) ResetContext(int) error {
	return errors.Join(d.Driver.ResetContext(0), d.Driver.ResetContext(1))
}

type resetRevokes struct{ *host.Driver }

func (d *resetRevokes) Access(p driver.Ptr, who driver.Location) (driver.Access, error) {
	_, err := d.Driver.Access(p, who)
	return driver.AccessNone, err
}

type unmapLost struct{ *host.Driver }

func (d *unmapLost) Unmap(p driver.Ptr, size uint64) error {
	if errors.Is(d.Supports(0, driver.FeatureVMM), driver.ErrDeviceLost) {
		return &driver.CallError{Call: "unmap", Kind: driver.ErrDeviceLost}
	}
	return d.Driver.Unmap(p, size)
}

type silentLoss struct{ full }

func (d *silentLoss) SyncStream(s driver.Stream) error {
	return pass(d.full.SyncStream(s), driver.ErrDeviceLost)
}
