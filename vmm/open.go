package vmm

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// Open opens a device by name:
//
//	"auto"             the first CUDA device; the host only where there is no
//	                   CUDA driver or no device of it
//	"cuda:1"           by ordinal
//	"cuda:GPU-..."     by UUID, "cuda:MIG-..." a MIG instance
//	"host", "host:1"   host memory
//
// A CUDA driver that is there and fails is an error for "auto" too, and so is
// one that this program cannot use: it was built without cgo, or finds no
// libcuda. No context is made until a call needs one. The caller must Close it.
func Open(name string) (*Device, error) {
	d, err := open(name)
	if err != nil {
		return nil, &OpError{Op: "open", Device: name, Err: err}
	}
	return d, nil
}

// nvidiaDevice is there where the kernel has NVIDIA's driver. Tests change it.
var nvidiaDevice = "/dev/nvidiactl"

func open(name string) (*Device, error) {
	if name == "auto" {
		d, err := open("cuda:0")
		if errors.Is(err, ErrNoDriver) {
			if _, found := os.Stat(nvidiaDevice); found == nil {
				return nil, fmt.Errorf("%w; but %s is there: build with CGO_ENABLED=1 and a C compiler, "+
					"have libcuda.so.1 where the loader looks, or take Open(\"host\")", err, nvidiaDevice)
			}
		}
		if errors.Is(err, ErrNoDriver) || errors.Is(err, ErrNoDevice) {
			return open("host")
		}
		return d, err
	}
	kind, which, colon := strings.Cut(name, ":")
	if !colon {
		which = "0"
	}
	drv, err := driverNamed(kind)
	if err != nil {
		return nil, err
	}
	n, err := ordinal(drv, which)
	if err != nil {
		return nil, err
	}
	return openDriver(drv, n)
}

// driverNamed gives the driver that the part of a device name before the colon stands for.
func driverNamed(kind string) (driver.Driver, error) {
	switch kind {
	case "host":
		return host.Default(), nil
	case "cuda":
		return cuda.Default()
	}
	return nil, fmt.Errorf("%w: a device is \"auto\", \"cuda:N\", \"cuda:UUID\" or \"host:N\"", ErrInvalid)
}

// ordinal finds the device that which, the part after the colon, stands for.
func ordinal(drv driver.Driver, which string) (int, error) {
	if n, err := strconv.Atoi(which); err == nil {
		return n, nil
	}
	all, err := drv.Devices()
	if err != nil {
		return 0, err
	}
	for _, i := range all {
		if which != "" && (which == i.MIG || which == uuidText(i.UUID)) {
			return i.Ordinal, nil
		}
	}
	return 0, fmt.Errorf("%w: none of the %d of driver %s is %q", ErrNoDevice, len(all), drv.Name(), which)
}

// uuidText is how NVIDIA's tools write a device's UUID.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// OpenDriver opens device n of any driver: one that injects faults, or one of
// another vendor. The driver's dynamic type must be comparable, as pointers
// are. The caller must Close it.
func OpenDriver(drv driver.Driver, n int) (*Device, error) {
	d, err := openDriver(drv, n)
	if err != nil {
		return nil, &OpError{Op: "open", Device: fmt.Sprintf("device %d", n), Err: err}
	}
	return d, nil
}

func openDriver(drv driver.Driver, n int) (*Device, error) {
	if drv == nil || !reflect.ValueOf(drv).Comparable() {
		return nil, fmt.Errorf("%w: no driver, or one whose type cannot be compared", ErrInvalid)
	}
	all, err := drv.Devices()
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.Ordinal == n {
			return newDevice(drv, i), nil
		}
	}
	return nil, fmt.Errorf("%w: driver %s has %d, this is number %d", ErrNoDevice, drv.Name(), len(all), n)
}

// Devices lists CUDA's devices, then the host's first; "host:1" and on, which
// share its memory, are opened on demand. That there is no CUDA driver is no
// error; that there is one and it fails is.
func Devices() ([]Info, error) {
	var all []Info
	drv, err := cuda.Default()
	if err == nil {
		all, err = drv.Devices()
	}
	if err != nil && !errors.Is(err, ErrNoDriver) && !errors.Is(err, ErrNoDevice) {
		return nil, &OpError{Op: "list devices", Err: err}
	}
	here, err := host.Default().Devices()
	if err != nil {
		return nil, &OpError{Op: "list devices", Err: err}
	}
	return append(all, here[:1]...), nil
}
