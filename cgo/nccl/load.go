//go:build cgo && linux

package nccl

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#include "shims.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/cuvmm/cuvmm/cgo/internal/dl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// names are the library's names.
var names = []string{"libnccl.so.2", "libnccl.so"}

// oldest is the oldest version that works.
const oldest = 21800

// Statuses that decide what kind of error a call returns.
const (
	success        Status = 0
	cudaError      Status = 1
	systemError    Status = 2
	internalError  Status = 3
	invalidArg     Status = 4
	invalidUsage   Status = 5
	remoteError    Status = 6
	statusProgress Status = 7
)

// Library is an open libnccl. It need not be closed: the library stays loaded until the
// process ends. Its methods are safe for concurrent use.
//
// Safety: api has only pointers of C, and C keeps no pointer to it.
type Library struct {
	api     C.struct_cuvmm_nccl_api
	version int
}

// Open loads the libnccl at path. If path is empty, it is looked for as libnccl.so.2 and
// libnccl.so where the loader looks, then where pip puts it, below the site-packages of
// $VIRTUAL_ENV, of the user and of the system, and then in /usr/local/cuda/lib64 and
// /usr/lib/x86_64-linux-gnu. If there is none that works, the error Is
// driver.ErrNotSupported and says what was looked for. What is older than 2.18 does not
// work.
func Open(path string) (*Library, error) {
	if path != "" {
		return open(path)
	}
	return dl.OpenFirst("libnccl", candidates(os.Getenv("VIRTUAL_ENV"), os.Getenv("HOME")), open)
}

// candidates are the paths that Open tries, in their order.
func candidates(venv, home string) []string {
	const inside = "nvidia/nccl/lib/libnccl.so.2"
	var sites []string
	if venv != "" {
		sites = append(sites, filepath.Join(venv, "lib/python3*/site-packages"))
	}
	if home != "" {
		sites = append(sites, filepath.Join(home, ".local/lib/python3*/site-packages"))
	}
	for _, lib := range []string{"/usr/local/lib", "/usr/lib"} {
		sites = append(sites, lib+"/python3*/site-packages", lib+"/python3*/dist-packages")
	}
	paths := append([]string(nil), names...)
	for _, site := range sites {
		pattern := filepath.Join(site, inside)
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			found = []string{pattern} // for the error, which says what was looked for
		}
		paths = append(paths, found...)
	}
	for _, dir := range []string{"/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"} {
		for _, name := range names {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths
}

func notSupported(call, format string, args ...any) error {
	return &driver.CallError{Call: call, Kind: driver.ErrNotSupported, Err: fmt.Errorf(format, args...)}
}

// open loads the library at path.
func open(path string) (*Library, error) {
	lib, err := dl.Open(path, driver.ErrNotSupported)
	if err != nil {
		return nil, err
	}
	l := &Library{}
	missing := lib.Bind(unsafe.Pointer(&C.cuvmm_nccl_symbols), unsafe.Pointer(&l.api))
	// The version is known of libraries that are too old as well.
	if l.api.version != nil && l.api.error_string != nil && l.api.last_error != nil {
		var out C.struct_cuvmm_nccl_outcome
		var version C.int
		C.cuvmm_nccl_version(&l.api, &version, &out)
		if err := failure(&out); err != nil {
			return nil, err
		}
		l.version = int(version)
	}
	switch {
	case l.version > 0 && l.version < oldest:
		return nil, notSupported("open "+path, "NCCL %s is too old: 2.18 is needed", l)
	case missing != "" && l.version > 0:
		return nil, notSupported("open "+path, "NCCL %s has no %s", l, missing)
	case missing != "":
		return nil, lib.TooOld("NCCL", missing)
	}
	return l, nil
}

// Version is the library's version as NCCL numbers it: 22809 is 2.28.9.
func (l *Library) Version() int { return l.version }

// String is the library's version like "2.28.9".
func (l *Library) String() string {
	if l.version < 10000 { // until 2.8
		return fmt.Sprintf("%d.%d.%d", l.version/1000, l.version/100%10, l.version%100)
	}
	return fmt.Sprintf("%d.%d.%d", l.version/10000, l.version/100%100, l.version%100)
}

// NewID makes the identity of a new group. One member makes it, and gives it to all others
// before they join. It is good for one group.
//
// Safety: C writes to id and keeps no pointer to it.
func (l *Library) NewID() (ID, error) {
	var id ID
	var out C.struct_cuvmm_nccl_outcome
	C.cuvmm_nccl_unique_id(&l.api, unsafe.Pointer(&id), &out)
	return id, failure(&out)
}

// named is a Status with NCCL's texts about it.
type named struct {
	Status
	text string
}

func (n named) Error() string { return n.text }

// Unwrap lets errors.As find the Status.
func (n named) Unwrap() error { return n.Status }

// failure is the error of an outcome: nil, ErrInProgress, or a *driver.CallError of the call that
// failed.
func failure(out *C.struct_cuvmm_nccl_outcome) error {
	s := Status(out.r)
	switch s {
	case success:
		return nil
	case statusProgress:
		return ErrInProgress
	}
	text := s.Error()
	if out.text != nil {
		text = C.GoString(out.text)
	}
	if last := strings.TrimSpace(C.GoString(&out.last[0])); last != "" {
		text += ": " + last
	}
	kind := ErrFailed
	switch s {
	case invalidArg, invalidUsage:
		kind = driver.ErrInvalid
	case remoteError:
		kind = ErrPeerGone
	}
	return &driver.CallError{Call: C.GoString(out.call), Kind: kind, Err: named{s, text}}
}

// closed is the error of a Comm that has ended.
func closed(call string) error {
	return &driver.CallError{Call: call, Kind: driver.ErrClosed, Err: errors.New("the communicator has ended")}
}
