package vmm

import "github.com/cuvmm/cuvmm/vmm/driver"

// The seam's plain types under this package's name, so that applications
// import vmm only. Their documentation is in package driver.
type (
	Ptr          = driver.Ptr
	LocationKind = driver.LocationKind
	Location     = driver.Location
	Access       = driver.Access
	Share        = driver.Share
	Prop         = driver.Prop
	Info         = driver.Info
	Feature      = driver.Feature
	EventFlags   = driver.EventFlags
)

// The seam's constants under this package's name.
const (
	LocationOwner    = driver.LocationOwner
	LocationDevice   = driver.LocationDevice
	LocationHostNUMA = driver.LocationHostNUMA

	AccessNone      = driver.AccessNone
	AccessRead      = driver.AccessRead
	AccessReadWrite = driver.AccessReadWrite

	ShareFD       = driver.ShareFD
	ShareFabric   = driver.ShareFabric
	ShareReadOnly = driver.ShareReadOnly

	FeatureVMM          = driver.FeatureVMM
	FeatureShareFD      = driver.FeatureShareFD
	FeatureShareFabric  = driver.FeatureShareFabric
	FeatureDMABuf       = driver.FeatureDMABuf
	FeatureRDMA         = driver.FeatureRDMA
	FeatureHostNUMA     = driver.FeatureHostNUMA
	FeaturePools        = driver.FeaturePools
	FeatureLegacyIPC    = driver.FeatureLegacyIPC
	FeatureStreamMemOps = driver.FeatureStreamMemOps
	FeatureKernels      = driver.FeatureKernels
	FeatureReadOnlyMap  = driver.FeatureReadOnlyMap

	EventTiming       = driver.EventTiming
	EventBlocking     = driver.EventBlocking
	EventInterprocess = driver.EventInterprocess
)
