//go:build cgo && linux

package cuda

import "github.com/cuvmm/cuvmm/vmm/driver"

// Results that decide what kind of error a call returns.
const (
	success             Result = 0
	invalidValue        Result = 1
	outOfMemory         Result = 2
	deinitialized       Result = 4 // the process is ending
	stubLibrary         Result = 34
	deviceUnavailable   Result = 46 // in exclusive compute mode, and another process uses it
	noDevice            Result = 100
	invalidDevice       Result = 101
	invalidImage        Result = 200
	invalidContext      Result = 201
	mapFailed           Result = 205
	noBinary            Result = 209 // code for other architectures
	eccUncorrectable    Result = 214
	peerUnsupported     Result = 217
	invalidPTX          Result = 218
	nvlinkUncorrectable Result = 220
	noCompiler          Result = 221
	unsupportedPTX      Result = 222 // of a newer version
	compilerDisabled    Result = 223
	unsupportedAffinity Result = 224
	contained           Result = 226 // an error that the device contained; it ends the process's work all the same
	invalidSource       Result = 300
	operatingSystem     Result = 304
	invalidHandle       Result = 400
	illegalState        Result = 401
	notFound            Result = 500
	notReady            Result = 600
	illegalAddress      Result = 700
	outOfResources      Result = 701 // a block needs more registers or shared memory than there are
	launchTimeout       Result = 702
	peerEnabled         Result = 704
	peerNotEnabled      Result = 705
	contextDestroyed    Result = 709
	assert              Result = 710
	tooManyPeers        Result = 711
	stackError          Result = 714
	illegalInstruction  Result = 715
	misaligned          Result = 716
	invalidSpace        Result = 717
	invalidPC           Result = 718
	launchFailed        Result = 719
	tooLarge            Result = 720 // the blocks of a cooperative launch cannot all run at once
	tensorLeak          Result = 721 // a kernel ended without freeing its tensor memory
	notPermitted        Result = 800
	notSupported        Result = 801
	systemNotReady      Result = 802 // the fabric manager is still starting
	mpsTerminated       Result = 810 // the MPS server has ended this client
	captureFirst        Result = 900
	captureInvalidated  Result = 901
	captureUnmatched    Result = 903
	captureUnjoined     Result = 904
	captureWrongThread  Result = 908
	captureLast         Result = 908
	updateFailure       Result = 910 // the two graphs are not alike
	externalDevice      Result = 911 // a device outside CUDA, for which this process waits, failed
	invalidCluster      Result = 912
	unknown             Result = 999
)

// named is a Result with CUDA's name and text for it.
type named struct {
	Result
	text string
}

func (n named) Error() string { return n.text }

// Unwrap lets errors.As find the Result.
func (n named) Unwrap() error { return n.Result }

// sticky reports whether the process has lost its devices for good.
func (r Result) sticky() bool {
	switch r {
	case eccUncorrectable, nvlinkUncorrectable, contained, tensorLeak, mpsTerminated, externalDevice, illegalAddress, launchTimeout, assert, stackError,
		illegalInstruction, misaligned, invalidSpace, invalidPC, launchFailed:
		return true
	}
	return false
}

// kind is the error of package driver that a result means. It depends on the call,
// because CUDA uses one code for several things.
func (r Result) kind(call string) error {
	switch {
	case r.sticky():
		return driver.ErrDeviceLost
	case r >= captureFirst && r <= captureLast:
		return driver.ErrCapturing
	}
	switch r {
	case contextDestroyed:
		return driver.ErrContextReset
	case outOfMemory:
		if call == "cuMemAddressReserve" {
			return driver.ErrAddressSpace
		}
		return driver.ErrOutOfMemory
	case notSupported:
		if call == "cuMemMap" {
			return driver.ErrInvalid // the size is not the handle's
		}
		return driver.ErrNotSupported
	case unknown:
		if call == "cuMemImportFromShareableHandle" || call == "cuMemPoolImportFromShareableHandle" {
			return driver.ErrInvalid // the descriptor is of something else
		}
	case invalidValue, invalidHandle, illegalState, invalidContext, notFound, notReady, peerNotEnabled,
		invalidImage, invalidPTX, invalidSource, outOfResources, tooLarge, invalidCluster, updateFailure:
		return driver.ErrInvalid
	case mapFailed:
		if call == "cuIpcOpenEventHandle" {
			return driver.ErrInvalid // the handle is of no event
		}
	case peerUnsupported, noBinary, noCompiler, unsupportedPTX, compilerDisabled, unsupportedAffinity:
		return driver.ErrNotSupported
	case peerEnabled:
		return driver.ErrPeerEnabled
	case tooManyPeers:
		return driver.ErrLimit
	case notPermitted:
		return driver.ErrPermission
	case noDevice, invalidDevice:
		if r == invalidDevice && call == "cuMemPoolSetAccess" {
			return driver.ErrInvalid // a device without a path to the pool's
		}
		return driver.ErrNoDevice
	case deinitialized:
		return driver.ErrClosed
	case deviceUnavailable, systemNotReady:
		return driver.ErrUnavailable
	case stubLibrary:
		return driver.ErrNoDriver
	case operatingSystem:
		switch call {
		case "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemGetHandleForAddressRange",
			"cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle":
			return driver.ErrLimit // no descriptor is left
		}
	case forked:
		return driver.ErrInvalid
	}
	return r
}
