package vmm

import (
	"fmt"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// driverNamed returns the driver that a device name stands for: the part before the
// colon, and the options.
func driverNamed(kind, options string) (driver.Driver, error) {
	switch {
	case kind == "host":
		return host.DefaultWith(options)
	case kind == "cuda" && options == "":
		return cuda.Default()
	case kind == "cuda" || kind == "auto":
		return nil, fmt.Errorf("%w: only host has options, not %s", ErrInvalid, kind)
	}
	return nil, fmt.Errorf("%w: no device has such a name; there are \"host\", \"host:N\" and \"host?page=4K\", "+
		"\"cuda\", \"cuda:N\" and \"cuda:UUID\", and \"auto\"", ErrInvalid)
}

// uuidText is how NVIDIA's tools write a device's UUID.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// devicesOf returns which devices a driver has.
func devicesOf(drv driver.Driver, all []Info) string {
	switch len(all) {
	case 0:
		return "the driver " + drv.Name() + " has none"
	case 1:
		return "there is " + all[0].Open
	}
	return "there are " + all[0].Open + " to " + all[len(all)-1].Open
}
