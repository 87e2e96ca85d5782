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
	"slices"
	"strings"
	"unsafe"

	"github.com/cuvmm/cuvmm/cgo/internal/dl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// names are the library's names.
var names = []string{"libnccl.so.2", "libnccl.so"}

// folders are where the library is if the loader does not find it: NVIDIA's own, and those of
// Python's packages.
func folders() []string {
	all := []string{"/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}
	var roots []string
	if env := os.Getenv("VIRTUAL_ENV"); env != "" {
		roots = append(roots, env)
	}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".local"))
	}
	for _, root := range append(roots, "/usr/local", "/usr") {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			found, _ := filepath.Glob(filepath.Join(root, "lib", "python3*", packages, "nvidia", "nccl", "lib"))
			all = append(all, found...)
		}
	}
	return all
}

// Library is an open libnccl. It need not be closed: the library stays loaded until the
// process ends.
//
// Safety: api has only pointers of C, and C keeps no pointer to it.
type Library struct {
	api     C.struct_cuvmm_nccl_api
	version int
	has     map[string]bool // the optional symbols
}

// Open loads the libnccl at path. If path is empty, it is looked for by its names where the
// loader looks, then where NVIDIA installs it, and where Python's packages have it. If there is
// none that works, the error Is driver.ErrNotSupported and says what was looked for. What is
// older than NCCL 2.18 does not work.
func Open(path string) (*Library, error) {
	if path != "" {
		return open(path)
	}
	candidates := slices.Clone(names)
	for _, dir := range folders() {
		candidates = append(candidates, filepath.Join(dir, names[0]))
	}
	return openFirst(candidates)
}

// openFirst opens the first library that works.
func openFirst(candidates []string) (*Library, error) {
	var sought, broken []string
	for _, candidate := range candidates {
		l, err := open(candidate)
		switch {
		case err == nil:
			return l, nil
		case dl.There(candidate):
			broken = append(broken, err.Error())
		default:
			sought = append(sought, candidate)
		}
	}
	text := strings.Join(broken, "; ")
	if len(sought) > 0 {
		text = strings.Join(append(broken, "looked for "+strings.Join(sought, ", ")), "; ")
	}
	return nil, unsupported("open libnccl", text)
}

func unsupported(call, text string) error {
	return &driver.CallError{Call: call, Kind: driver.ErrNotSupported, Err: errors.New(text)}
}

// open loads the library at path.
func open(path string) (*Library, error) {
	lib, err := dl.Open(path)
	if err != nil {
		return nil, unsupported("open "+path, err.Error())
	}
	l := &Library{has: map[string]bool{}}
	for i := range C.cuvmm_nccl_symbol_count() {
		name := C.GoString(C.cuvmm_nccl_symbol_name(i))
		p, err := lib.Sym(name)
		switch {
		case err == nil:
			C.cuvmm_nccl_bind(&l.api, i, p)
			l.has[name] = true
		case C.cuvmm_nccl_symbol_required(i) != 0:
			_ = lib.Close() // none of its functions has been called yet
			return nil, unsupported("open "+path, "this NCCL is older than 2.18: it has no "+name)
		}
	}
	var version C.int
	if s := Status(C.cuvmm_nccl_version(&l.api, &version)); s != success {
		return nil, l.fail("ncclGetVersion", s, nil)
	}
	l.version = int(version)
	return l, nil
}

// Version is NCCL's: 22809 is 2.28.9.
func (l *Library) Version() int { return l.version }

// String is the version as NCCL writes it.
func (l *Library) String() string {
	return fmt.Sprintf("NCCL %d.%d.%d", l.version/10_000, l.version/100%100, l.version%100)
}

// NewID makes the identity of a group. NCCL then listens in this process for the members, of
// which it has to be one.
//
// Safety: C writes to id during the call only.
func (l *Library) NewID() (id ID, err error) {
	s := Status(C.cuvmm_nccl_unique_id(&l.api, (*C.char)(unsafe.Pointer(&id[0]))))
	return id, l.fail("ncclGetUniqueId", s, nil)
}

// fail is the error of a call; nil for success.
func (l *Library) fail(call string, s Status, c *C.struct_cuvmm_nccl_comm) error {
	var kind error
	switch s {
	case success:
		return nil
	case statusProgress:
		return ErrInProgress
	case invalidArg, invalidUsage:
		kind = driver.ErrInvalid
	case remoteError:
		kind = ErrPeerGone
	default:
		kind = ErrFailed
	}
	text := C.GoString(C.cuvmm_nccl_error_string(&l.api, C.ncclResult_t(s)))
	if last := C.GoString(C.cuvmm_nccl_last_error(&l.api, c)); last != "" {
		text += ": " + strings.TrimSpace(last)
	}
	return &driver.CallError{Call: call, Kind: kind, Err: fmt.Errorf("%w: %s", s, text)}
}
