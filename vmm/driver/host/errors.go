//go:build linux

package host

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// rule is the answer to a call that breaks a rule of the seam: verb is the
// seam's own. Nothing has changed.
func rule(verb string, kind error, format string, args ...any) error {
	return &driver.CallError{Call: verb, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// fail turns the system's answer into an error. The kernel says ENOMEM for
// several things, so the caller says what it means here; that too many
// mappings is one of them is found out afterwards.
func (d *Driver) fail(call string, noMemory, err error) error {
	kind := driver.ErrInvalid
	switch err {
	case unix.EMFILE, unix.ENFILE:
		kind = driver.ErrLimit
	case unix.EFBIG:
		kind = driver.ErrLimit
		err = fmt.Errorf("memory is a file here, and RLIMIT_FSIZE allows none so large: %w", err)
	case unix.EPERM, unix.EACCES:
		kind = driver.ErrPermission
	case unix.ENOSPC, unix.EDQUOT:
		kind = driver.ErrOutOfMemory
	case unix.ENOSYS, unix.ENOENT:
		kind = driver.ErrNotSupported
	case unix.ENOMEM:
		kind = noMemory
		if all, _ := mapped(); all >= maxMapCount()-1 {
			kind = driver.ErrLimit
			err = fmt.Errorf("vm.max_map_count is reached: %w", err)
		}
	}
	return &driver.CallError{Call: call, Kind: kind, Err: err}
}
