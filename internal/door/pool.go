package door

import "github.com/cuvmm/cuvmm/vmm/driver"

// Pool is the door of package pool, for package ipc. Its types are *vmm.Device and *DriverPool.
type Pool[D, P any] interface {
	// WrapDriver is a DriverPool of a pool that the driver has already. If dev has no access to it
	// yet, the memory is taken to be another device's; if it has, dev's. Errors are those of Access.
	// Close leaves the driver's pool as it is. The caller must Close it, before dev.
	WrapDriver(dev D, of driver.Pool) (P, error)
}
