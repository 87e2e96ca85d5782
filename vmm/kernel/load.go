package kernel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Code is what Load loads: one of Image and CUDA for a GPU, Host for host memory.
type Code struct {
	// Image is PTX text, a cubin or a fatbin.
	Image []byte
	// CUDA is source in CUDA C++, compiled at run time by libnvrtc. It can include
	// cuvmm_append.cuh.
	CUDA string
	// Compile says how CUDA is compiled. Its Arch is the device's if it is empty, and
	// Headers has cuvmm_append.cuh besides.
	Compile nvrtc.Options
	// Host has Go functions that stand in for the kernels on host memory.
	Host Host

	MaxRegisters uint32 // of a thread, when PTX is compiled by the driver; 0: no limit
	LineInfo     bool   // line numbers for profilers, when PTX is compiled by the driver
}

// Module is code that is loaded on a device. Safe for concurrent use. The caller must Close
// it.
type Module struct {
	m     *vmm.Module
	log   string
	names map[string]string      // mangled names of Compile.Expressions
	ptx   map[string][]vmm.Param // parameters of each kernel, if the image is PTX text

	strides map[string][]uint64 // of each kernel, on the host; see Func
}

// Load loads code on the device. Code that the device or the driver cannot run returns
// vmm.ErrNotSupported, and so does code without Host on a host device, and CUDA source where
// there is no libnvrtc; code with mistakes returns vmm.ErrInvalid with the compiler's text.
// The caller must Close the Module.
func Load(dev *vmm.Device, c Code) (*Module, error) { return load(dev, c, ptxParams) }

// load is Load with a function that knows the parameters of the image's kernels.
func load(dev *vmm.Device, c Code, params func(image []byte) map[string][]vmm.Param) (*Module, error) {
	m := &Module{}
	if c.Image != nil && c.CUDA != "" {
		return nil, fmt.Errorf("load module: %w: both Image and CUDA", vmm.ErrInvalid)
	}
	host, strides, err := c.Host.kernels()
	if err != nil {
		return nil, fmt.Errorf("load module: %w", err)
	}
	// Only a GPU has an architecture that can be compiled for.
	isGPU := strings.HasPrefix(dev.Info().Arch, "sm_")
	if !isGPU {
		m.strides = strides
	}
	if c.CUDA != "" && isGPU {
		compiled, err := compile(dev, c.CUDA, c.Compile)
		if err != nil {
			return nil, fmt.Errorf("load module: %w", err)
		}
		c.Image, m.log, m.names = compiled.Image, compiled.Log, compiled.Names
	}
	var log string
	m.m, log, err = dev.LoadModule(vmm.Code{Image: c.Image, MaxRegisters: c.MaxRegisters, LineInfo: c.LineInfo, Host: host})
	if err != nil {
		return nil, err
	}
	m.log += log
	m.ptx = params(c.Image)
	return m, nil
}

// Log is what the compilers said: warnings, and with Compile.Flags more.
func (m *Module) Log() string { return nonnil.Of(m).log }

// Close waits for the work of the device's context and unloads the code; see
// vmm.Module.Close. Twice is fine, and so is a nil Module.
func (m *Module) Close() error {
	m = nonnil.Of(m)
	return m.m.Close()
}

// Device is the device that the code is loaded on.
func (m *Module) Device() *vmm.Device {
	m = nonnil.Of(m)
	return m.m.Device()
}

// Func finds a kernel: by its name if it is extern "C", else by its mangled name, or by one
// of Code.Compile.Expressions. If there is none, it returns vmm.ErrInvalid.
func (m *Module) Func(name string) (*Func, error) {
	if m == nil {
		return nil, fmt.Errorf("find kernel %s: %w: no module", name, vmm.ErrInvalid)
	}
	symbol := name
	if mangled, ok := m.names[name]; ok {
		symbol = mangled
	}
	f, err := m.m.Function(symbol)
	if err != nil {
		return nil, err
	}
	params, err := f.Params()
	switch {
	case errors.Is(err, vmm.ErrNotSupported): // an older driver
		params = m.ptx[symbol] // nil, not known, if the code is no PTX
	case err != nil:
		return nil, err
	case params == nil:
		params = []vmm.Param{} // known: there are none
	}
	return &Func{f: f, params: params, strides: m.strides[symbol]}, nil
}

// Host has Go functions that stand in for kernels, by the kernels' names. A function runs
// once for a whole launch, in the stream's order, in a goroutine of the driver. Its
// parameters take the arguments of the launch, in order:
//
//	fixed-size numbers, structs and arrays of them  by value, as in C
//	[]T                                             a pointer and a count
//	*T, vmm.Ptr                                     a pointer; see Slice
//	*DeviceCursor                                   a *Cursor
//	Threads, as the first parameter                 takes no argument: the launch's size
//
// It may return an error. A function that returns one, panics, or touches memory that is
// not there has faulted, as a kernel can: the device is lost.
type Host map[string]any
