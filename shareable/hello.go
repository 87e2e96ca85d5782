package shareable

import (
	"fmt"
	"os"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// hello is how a process that has memory of dev's driver says what it is. An owner
// adds its instance, a reader its token.
func localHello(dev *vmm.Device) (wire.Hello, error) {
	if dev == nil {
		return wire.Hello{}, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	}
	info := dev.Info()
	gran, err := dev.Driver().Granularity(driver.Prop{Location: driver.Location{Kind: driver.LocationDevice, ID: info.Ordinal}})
	h := wire.Hello{UUID: info.UUID, PID: uint32(os.Getpid()), Granularity: gran, Backend: wire.BackendCUDA}
	if dev.Driver().Name() == "host" {
		h.Backend = wire.BackendHost
	}
	return h, err
}
