//go:build !linux

package host

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Driver returns ErrNotSupported: it needs Linux's memfd.
type Driver struct{ options string }

var (
	_ driver.Driver     = (*Driver)(nil)
	_ driver.HostViewer = (*Driver)(nil)
	_ driver.PeerInfo   = (*Driver)(nil)
)

// New makes a driver without devices.
func New(Config) *Driver { return &Driver{} }

func no(verb string) error {
	return &driver.CallError{Call: verb, Kind: driver.ErrNotSupported, Err: errors.New("host memory as a device needs Linux")}
}

// Name is "host".
func (*Driver) Name() string { return "host" }

// Devices is not supported.
func (*Driver) Devices() ([]driver.Info, error) { return nil, no("Devices") }

// Supports is not supported.
func (*Driver) Supports(int, driver.Feature) error { return no("Supports") }

// CanAccessPeer is not supported.
func (*Driver) CanAccessPeer(_, _ int) (bool, error) { return false, no("CanAccessPeer") }

// Peering is not supported.
func (*Driver) Peering(_, _ int) (driver.Peering, error) { return driver.Peering{}, no("Peering") }

// Granularity is not supported.
func (*Driver) Granularity(driver.Prop) (uint64, error) { return 0, no("Granularity") }

// GranularityRecommended is not supported.
func (*Driver) GranularityRecommended(driver.Prop) (uint64, error) {
	return 0, no("GranularityRecommended")
}

// Reserve is not supported.
func (*Driver) Reserve(_, _ uint64) (driver.Ptr, error) { return 0, no("Reserve") }

// Free is not supported.
func (*Driver) Free(driver.Ptr, uint64) error { return no("Free") }

// Create is not supported.
func (*Driver) Create(uint64, driver.Prop) (driver.Handle, error) { return 0, no("Create") }

// Properties is not supported.
func (*Driver) Properties(driver.Handle) (driver.Prop, error) {
	return driver.Prop{}, no("Properties")
}

// Release is not supported.
func (*Driver) Release(driver.Handle) error { return no("Release") }

// Map is not supported.
func (*Driver) Map(driver.Ptr, uint64, driver.Handle) error { return no("Map") }

// Unmap is not supported.
func (*Driver) Unmap(driver.Ptr, uint64) error { return no("Unmap") }

// SetAccess is not supported.
func (*Driver) SetAccess(driver.Ptr, uint64, []driver.Grant) error { return no("SetAccess") }

// Access is not supported.
func (*Driver) Access(driver.Ptr, driver.Location) (driver.Access, error) {
	return driver.AccessNone, no("Access")
}

// Export is not supported.
func (*Driver) Export(driver.Handle) (int, error) { return -1, no("Export") }

// Import is not supported.
func (*Driver) Import(int, uint64, driver.Prop) (driver.Handle, error) { return 0, no("Import") }

// SyncIfActive is not supported.
func (*Driver) SyncIfActive(int) error { return no("SyncIfActive") }

// Open is not supported.
func (*Driver) Open(int) (driver.Device, error) { return nil, no("Open") }

// ResetContext is not supported.
func (*Driver) ResetContext(int) error { return no("ResetContext") }

// HostBytes is not supported.
func (*Driver) HostBytes(driver.Ptr, uint64) ([]byte, error) { return nil, no("HostBytes") }
