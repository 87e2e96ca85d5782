//go:build linux

package host

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
)

// refuse is the error of a call that breaks a rule of package driver, and has changed
// nothing. verb is the name of the call there.
func refuse(verb string, kind error, format string, args ...any) error {
	return &driver.CallError{Call: verb, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// fail turns an error of the system into one of package driver. The kernel returns
// ENOMEM for several reasons, so the caller says which kind it is here; too many
// mappings are recognised by counting them.
func (d *Driver) fail(call string, noMemory, err error) error {
	// What the kernel refuses for no reason listed here breaks one of its rules.
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
	case unix.ENOSYS:
		kind = driver.ErrNotSupported
	case unix.ENOENT: // no other files are opened
		kind = driver.ErrNotSupported
		err = fmt.Errorf("/proc is not mounted, by which processes find each other and their own files: %w", err)
	case unix.ENOMEM:
		kind = noMemory
		if all, _ := mapped(); all >= maxMapCount()-1 {
			kind = driver.ErrLimit
			err = fmt.Errorf("vm.max_map_count is reached: %w", err)
		}
	}
	return &driver.CallError{Call: call, Kind: kind, Err: err}
}
