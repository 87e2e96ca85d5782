package kernel

import (
	_ "embed"
	"maps"
	"sync"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/vmm"
)

// AppendHeader is cuvmm_append.cuh: what a kernel needs to append to a Cursor, and
// atomicAggInc. Code.CUDA can include it by that name; for other compilers write it to a
// file.
//
//go:embed device/cuvmm_append.cuh
var AppendHeader string

const appendHeaderName = "cuvmm_append.cuh"

// compiler is libnvrtc, looked for once. A machine without it is asked again.
var compiler struct {
	mu sync.Mutex
	c  *nvrtc.Compiler
}

func openCompiler() (*nvrtc.Compiler, error) {
	compiler.mu.Lock()
	defer compiler.mu.Unlock()
	if compiler.c != nil {
		return compiler.c, nil
	}
	c, err := nvrtc.Open("")
	if err == nil {
		compiler.c = c
	}
	return c, err
}

// compile compiles CUDA C++ for the device.
func compile(dev *vmm.Device, source string, o nvrtc.Options) (*nvrtc.Result, error) {
	c, err := openCompiler()
	if err != nil {
		return nil, err
	}
	if o.Arch == "" {
		o.Arch = c.ArchFor(dev.Info().Arch)
	}
	o.Headers = maps.Clone(o.Headers)
	if o.Headers == nil {
		o.Headers = map[string]string{}
	}
	if _, ok := o.Headers[appendHeaderName]; !ok {
		o.Headers[appendHeaderName] = AppendHeader
	}
	return c.Compile(source, o)
}
