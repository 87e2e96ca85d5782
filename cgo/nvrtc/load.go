//go:build cgo && linux

package nvrtc

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#include "shims.h"
*/
import "C"

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"unsafe"

	"github.com/cuvmm/cuvmm/cgo/internal/dl"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// names are the library's names, the newest first. 11.2 is the name of all 11 from 11.2
// on.
var names = []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"}

// toolkit is where NVIDIA's installer puts the library. It does not tell the loader.
const toolkit = "/usr/local/cuda/lib64"

// Compiler is an open libnvrtc. It need not be closed: the library stays loaded until
// the process ends.
//
// Safety: api has only pointers of C, and C keeps no pointer to it.
type Compiler struct {
	api          C.struct_cuvmm_nvrtc_api
	major, minor int
	archs        []int // ascending: 90 stands for sm_90 and compute_90
}

// Open loads the libnvrtc at path. If path is empty, it is looked for by the names that
// NVIDIA gives it, the newest first, where the loader looks and then in
// /usr/local/cuda/lib64. If there is none that works, the error Is
// driver.ErrNotSupported and says what was looked for. What is older than CUDA 11.2 does
// not work.
//
// A driver may refuse what a newer major version compiles. Then open an older one by its
// name.
func Open(path string) (*Compiler, error) {
	if path != "" {
		return open(path)
	}
	candidates := slices.Clone(names)
	for _, name := range names {
		candidates = append(candidates, filepath.Join(toolkit, name))
	}
	return dl.OpenFirst("libnvrtc", candidates, open)
}

// open loads the library at path.
func open(path string) (*Compiler, error) {
	lib, err := dl.Open(path, driver.ErrNotSupported)
	if err != nil {
		return nil, err
	}
	c := &Compiler{}
	if missing := lib.Bind(unsafe.Pointer(&C.cuvmm_nvrtc_symbols), unsafe.Pointer(&c.api)); missing != "" {
		return nil, lib.TooOld("the compiler", missing)
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	return c, nil
}

// start asks for the version and the architectures.
func (c *Compiler) start() error {
	var major, minor, count C.int
	if s := Status(C.cuvmm_nvrtc_version(&c.api, &major, &minor)); s != success {
		return c.fail("nvrtcVersion", s, "")
	}
	c.major, c.minor = int(major), int(minor)
	if s := Status(C.cuvmm_nvrtc_arch_count(&c.api, &count)); s != success {
		return c.fail("nvrtcGetNumSupportedArchs", s, "")
	}
	if count <= 0 {
		return nil
	}
	archs := make([]C.int, count)
	if s := Status(C.cuvmm_nvrtc_archs(&c.api, &archs[0])); s != success {
		return c.fail("nvrtcGetSupportedArchs", s, "")
	}
	for _, a := range archs {
		c.archs = append(c.archs, int(a))
	}
	slices.Sort(c.archs)
	return nil
}

// Version is the version of CUDA that the compiler is of.
func (c *Compiler) Version() (major, minor int) { return c.major, c.minor }

var archForm = regexp.MustCompile(`^(sm|compute)_([0-9]{1,6})([a-z]?)$`)

// parseArch takes an architecture apart. For "sm_90a" it returns "sm" and 90.
func parseArch(arch string) (prefix string, number int, err error) {
	parts := archForm.FindStringSubmatch(arch)
	if parts == nil {
		return "", 0, fmt.Errorf(`architecture %q is neither like "sm_90" nor like "compute_90"`, arch)
	}
	number, err = strconv.Atoi(parts[2])
	return parts[1], number, err
}

// ArchFor is the architecture to compile for, given a device's, like "sm_90": the
// device's own if the compiler knows it, or else the newest before it that the compiler
// knows, as PTX. If there is none, or arch is no architecture, it is arch, which Compile
// refuses.
func (c *Compiler) ArchFor(arch string) string {
	_, number, err := parseArch(arch)
	if err != nil {
		return arch
	}
	i, known := slices.BinarySearch(c.archs, number)
	if known || i == 0 {
		return arch
	}
	return fmt.Sprintf("compute_%d", c.archs[i-1])
}
