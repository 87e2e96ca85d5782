package main

import (
	"errors"
	"slices"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// device is an open device. raw is the driver's device below it, for calls that the
// library does not make for others.
type device struct {
	*vmm.Device
	raw      driver.Device
	kernels  *kernels
	settings *settings
}

// Close closes the device and frees its kernels.
func (d device) Close() error { return errors.Join(d.kernels.close(), d.Device.Close()) }

// openDevice opens a device. The error is a usageError if the name is not valid.
func openDevice(set *settings, name string) (device, error) {
	dev, err := vmm.Open(name)
	if errors.Is(err, vmm.ErrInvalid) {
		err = usageError{err}
	}
	if err != nil {
		return device{}, err
	}
	d, err := withRaw(set, dev)
	if err != nil {
		return device{}, errors.Join(err, dev.Close())
	}
	return d, nil
}

func withRaw(set *settings, dev *vmm.Device) (device, error) {
	raw, err := dev.Raw()
	return device{dev, raw, &kernels{dev: device{Device: dev, raw: raw}}, set}, err
}

// checksItself reports whether the device fills and compares its memory by kernels.
func (d device) checksItself() bool { return d.settings.checksOnDevice(d) }

// openDevices opens all or none.
func openDevices(set *settings, names []string) ([]device, error) {
	var list []device
	for _, name := range names {
		dev, err := openDevice(set, name)
		if err != nil {
			return nil, errors.Join(err, closeDevices(list))
		}
		list = append(list, dev)
	}
	return list, nil
}

// closeDevices closes all, the last one first.
func closeDevices(list []device) error {
	var err error
	for _, dev := range slices.Backward(list) {
		err = errors.Join(err, dev.Close())
	}
	return err
}

// withoutRaw returns the devices as vmm takes them.
func withoutRaw(devs []device) []*vmm.Device {
	list := make([]*vmm.Device, len(devs))
	for i, dev := range devs {
		list[i] = dev.Device
	}
	return list
}
