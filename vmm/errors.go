package vmm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Errors of the driver below; see package driver.
var (
	ErrOutOfMemory  = driver.ErrOutOfMemory
	ErrAddressSpace = driver.ErrAddressSpace
	ErrNotSupported = driver.ErrNotSupported
	ErrInvalid      = driver.ErrInvalid
	ErrPermission   = driver.ErrPermission
	ErrClosed       = driver.ErrClosed
	ErrNoDriver     = driver.ErrNoDriver
	ErrNoDevice     = driver.ErrNoDevice
	ErrDeviceLost   = driver.ErrDeviceLost
	ErrCapturing    = driver.ErrCapturing
	ErrPeerEnabled  = driver.ErrPeerEnabled
	ErrLimit        = driver.ErrLimit
	ErrContextReset = driver.ErrContextReset
	ErrUnavailable  = driver.ErrUnavailable
)

// What this package adds.
var (
	ErrFull   = errors.New("beyond the range's maximum")
	ErrBusy   = errors.New("in use")
	ErrBounds = errors.New("out of bounds")
	ErrAsleep = errors.New("asleep, see Wake")
)

// lost says whether the device is gone, and with it all its work.
func lost(err error) bool { return errors.Is(err, ErrDeviceLost) }

// OpError is an operation of this package that failed, as net.OpError is one
// of package net. Err is what errors.Is and errors.As look into; a failed
// driver call is a *driver.CallError in there.
type OpError struct {
	Op     string // "map", "grow", "append"
	Device string // "cuda:0"
	Addr   Ptr    // 0 where there is none
	Size   uint64 // bytes asked for; 0 where there is none
	Err    error
}

func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Size != 0 {
		b.WriteByte(' ')
		b.WriteString(sizeText(e.Size))
	}
	if e.Addr != 0 {
		b.WriteString(" at ")
		b.WriteString(e.Addr.String())
	}
	if e.Device != "" {
		b.WriteString(" on ")
		b.WriteString(e.Device)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns Err.
func (e *OpError) Unwrap() error { return e.Err }

// PairError is what device From cannot do with memory of device To. It lies
// within an OpError.
type PairError struct {
	From, To string // "cuda:1", "cuda:0"
	Err      error
}

func (e *PairError) Error() string {
	return fmt.Sprintf("%s to memory of %s: %v", e.From, e.To, e.Err)
}

// Unwrap returns Err.
func (e *PairError) Unwrap() error { return e.Err }

// also joins a second failure to the first in one line; either may be nil.
func also(first error, doing string, second error) error {
	switch {
	case second == nil:
		return first
	case first == nil:
		return second
	}
	return fmt.Errorf("%w; %s: %w", first, doing, second)
}

// sizeText is "2 MiB (2097152 bytes)": round sizes read well, odd ones stay exact.
func sizeText(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	v, u := float64(n)/(1<<10), 0
	for v >= 1<<10 && u < len(units)-1 {
		v, u = v/(1<<10), u+1
	}
	return fmt.Sprintf("%.4g %ciB (%d bytes)", v, units[u], n)
}

// Package driver's plain types under this package's name, so that applications
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

// Package driver's constants under this package's name.
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

	FeatureVMM           = driver.FeatureVMM
	FeatureShareFD       = driver.FeatureShareFD
	FeatureShareFabric   = driver.FeatureShareFabric
	FeatureDMABuf        = driver.FeatureDMABuf
	FeatureRDMA          = driver.FeatureRDMA
	FeatureHostNUMA      = driver.FeatureHostNUMA
	FeaturePools         = driver.FeaturePools
	FeatureLegacyIPC     = driver.FeatureLegacyIPC
	FeatureStreamMemOps  = driver.FeatureStreamMemOps
	FeatureKernels       = driver.FeatureKernels
	FeatureReadOnlyMap   = driver.FeatureReadOnlyMap
	FeatureShareReadOnly = driver.FeatureShareReadOnly
	FeaturePageChunks    = driver.FeaturePageChunks
	FeatureHostView      = driver.FeatureHostView

	EventTiming       = driver.EventTiming
	EventBlocking     = driver.EventBlocking
	EventInterprocess = driver.EventInterprocess
)
