package driver

import (
	"errors"
	"io/fs"
	"os"
)

// sentinel is an error that errors.Is knows by identity and, if std is set, also by
// a wider error, the standard library's or another of ours.
type sentinel struct {
	text string
	std  error
}

func (s *sentinel) Error() string        { return s.text }
func (s *sentinel) Is(target error) bool { return s.std != nil && target == s.std }

// The errors of a driver, always inside a *CallError. Compare with errors.Is.
var (
	ErrOutOfMemory  error = &sentinel{text: "out of memory"}                             // Create, Map, SetAccess, AllocPlain, AllocHost
	ErrAddressSpace error = &sentinel{text: "out of address space"}                      // Reserve; never ErrOutOfMemory
	ErrNotSupported error = &sentinel{text: "not supported", std: errors.ErrUnsupported} // the device cannot do this
	ErrInvalid      error = &sentinel{text: "invalid argument", std: os.ErrInvalid}      // a rule was broken; nothing has changed
	ErrPermission   error = &sentinel{text: "permission denied", std: fs.ErrPermission}  // the system refuses
	ErrClosed       error = &sentinel{text: "already closed", std: os.ErrClosed}         // used after Close
	ErrNoDriver     error = &sentinel{text: "no driver"}                                 // not installed; the text says what was looked for
	ErrNoDevice     error = &sentinel{text: "no such device"}                            // installed, but this device is not there
	ErrDeviceLost   error = &sentinel{text: "device lost"}                               // of every device, until the process ends
	ErrCapturing    error = &sentinel{text: "a stream is being captured"}                // the wait would destroy the capture
	ErrPeerEnabled  error = &sentinel{text: "peer access is enabled already"}            // LegacyPeers.EnablePeer; possibly by another library
	ErrLimit        error = &sentinel{text: "a limit is reached"}                        // nofile, vm.max_map_count, peers of a device, a quota
	ErrUnavailable  error = &sentinel{text: "not available for now"}                     // the driver or the device is there and not ready, or in exclusive use: try later

	// ErrContextReset is an ErrDeviceLost of one opened Device: another library
	// has reset the device's context. The Device's streams, events, plain memory and
	// pinned memory are gone, mapped memory is not. Close it and open it again.
	ErrContextReset error = &sentinel{text: "the device's context was reset", std: ErrDeviceLost}
)

// CallError is a driver call that failed.
type CallError struct {
	Call string // "cuMemMap", "mmap", or the method whose rule was broken
	Kind error  // a sentinel of this package, which Is compares with
	Err  error  // the driver's own error (a cuda.Result, an errno, a sentence), which Unwrap returns
}

func (e *CallError) Error() string {
	if e.Err == nil {
		return e.Call + ": " + e.Kind.Error()
	}
	return e.Call + ": " + e.Kind.Error() + ": " + e.Err.Error()
}

// Is reports whether target is this error's Kind.
func (e *CallError) Is(target error) bool { return errors.Is(e.Kind, target) }

// Unwrap returns the driver's own error.
func (e *CallError) Unwrap() error { return e.Err }
