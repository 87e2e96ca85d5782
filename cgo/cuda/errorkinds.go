//go:build cgo && linux

package cuda

import (
	"cmp"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

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

// kinds are the errors of package driver that results mean, but for those of sticky results and of
// captures. A result that is not here is an error of its own.
var kinds = map[Result]error{
	contextDestroyed: driver.ErrContextReset,
	outOfMemory:      driver.ErrOutOfMemory,
	peerEnabled:      driver.ErrPeerEnabled,
	tooManyPeers:     driver.ErrLimit,
	notPermitted:     driver.ErrPermission,
	deinitialized:    driver.ErrClosed,
	stubLibrary:      driver.ErrNoDriver,
	noDevice:         driver.ErrNoDevice, invalidDevice: driver.ErrNoDevice,
	deviceUnavailable: driver.ErrUnavailable, systemNotReady: driver.ErrUnavailable,
	notSupported: driver.ErrNotSupported, peerUnsupported: driver.ErrNotSupported, unsupportedAffinity: driver.ErrNotSupported,
	noBinary: driver.ErrNotSupported, noCompiler: driver.ErrNotSupported, unsupportedPTX: driver.ErrNotSupported, compilerDisabled: driver.ErrNotSupported,
	invalidValue: driver.ErrInvalid, invalidHandle: driver.ErrInvalid, invalidContext: driver.ErrInvalid, invalidCluster: driver.ErrInvalid,
	invalidImage: driver.ErrInvalid, invalidPTX: driver.ErrInvalid, invalidSource: driver.ErrInvalid, forked: driver.ErrInvalid,
	illegalState: driver.ErrInvalid, notFound: driver.ErrInvalid, notReady: driver.ErrInvalid, peerNotEnabled: driver.ErrInvalid,
	outOfResources: driver.ErrInvalid, tooLarge: driver.ErrInvalid, updateFailure: driver.ErrInvalid,
}

// callResult is a result of one call.
type callResult struct {
	call string
	r    Result
}

// kindsOf are the errors where one call means something else by a result: CUDA uses one code for
// several things.
var kindsOf = map[callResult]error{
	{"cuMemAddressReserve", outOfMemory}:            driver.ErrAddressSpace,
	{"cuMemMap", notSupported}:                      driver.ErrInvalid, // the size is not the handle's
	{"cuMemImportFromShareableHandle", unknown}:     driver.ErrInvalid, // the descriptor is of something else
	{"cuMemPoolImportFromShareableHandle", unknown}: driver.ErrInvalid, // as above
	{"cuIpcOpenEventHandle", mapFailed}:             driver.ErrInvalid, // the handle is of no event
	{"cuMemPoolSetAccess", invalidDevice}:           driver.ErrInvalid, // a device without a path to the pool's
	// No descriptor is left.
	{"cuMemExportToShareableHandle", operatingSystem}:       driver.ErrLimit,
	{"cuMemImportFromShareableHandle", operatingSystem}:     driver.ErrLimit,
	{"cuMemGetHandleForAddressRange", operatingSystem}:      driver.ErrLimit,
	{"cuMemPoolExportToShareableHandle", operatingSystem}:   driver.ErrLimit,
	{"cuMemPoolImportFromShareableHandle", operatingSystem}: driver.ErrLimit,
}

// kind is the error of package driver that a result of a call means.
func (r Result) kind(call string) error {
	switch {
	case r.sticky():
		return driver.ErrDeviceLost
	case r >= captureFirst && r <= captureLast:
		return driver.ErrCapturing
	}
	return cmp.Or(kindsOf[callResult{call, r}], kinds[r], error(r))
}
