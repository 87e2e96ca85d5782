package vmm

import "github.com/cuvmm/cuvmm/vmm/driver"

// The seam's plain types under this package's name, so that applications
// import vmm only. Their documentation is in package driver.
type (
	Ptr        = driver.Ptr
	Kind       = driver.Kind
	Location   = driver.Location
	Access     = driver.Access
	Share      = driver.Share
	Prop       = driver.Prop
	Info       = driver.Info
	Feature    = driver.Feature
	EventFlags = driver.EventFlags
)

// The seam's constants under this package's name.
const (
	Here     = driver.Here
	OnDevice = driver.OnDevice
	OnHost   = driver.OnHost

	None      = driver.None
	Read      = driver.Read
	ReadWrite = driver.ReadWrite

	ShareFD       = driver.ShareFD
	ShareFabric   = driver.ShareFabric
	ShareReadOnly = driver.ShareReadOnly

	VMM          = driver.VMM
	SharesFD     = driver.SharesFD
	SharesFabric = driver.SharesFabric
	DMABuf       = driver.DMABuf
	RDMA         = driver.RDMA
	HostNUMA     = driver.HostNUMA
	Pools        = driver.Pools
	LegacyIPC    = driver.LegacyIPC
	ValueWait    = driver.ValueWait
	Kernels      = driver.Kernels
	ReadOnlyMap  = driver.ReadOnlyMap

	EventTiming       = driver.EventTiming
	EventBlocking     = driver.EventBlocking
	EventInterprocess = driver.EventInterprocess
)
