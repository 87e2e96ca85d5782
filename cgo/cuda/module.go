//go:build cgo && linux

package cuda

// #include <stdlib.h>
// #include "shims.h"
import "C"

import (
	stdbytes "bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.Launcher = (*device)(nil)

// logSize is the room for each log of the compiler, which leaves out what is beyond.
const logSize = 16 << 10

// LoadModule loads code. The compiler's errors are in the log and in the error.
func (v *device) LoadModule(code driver.Code) (m driver.Module, log string, err error) {
	const call = "cuModuleLoadDataEx"
	var logs []byte
	handle, err := v.newHandle(call, &v.d.modules, func() (c C.cuvmm_value, err error) {
		image, err := loadable(call, code.Image)
		if err != nil {
			return c, err
		}
		lines := C.int(0)
		if code.LineInfo {
			lines = 1
		}
		logs = make([]byte, 2*logSize)
		return C.cuvmm_module_load(v.d.api, v.ctx, bytes(image), C.uint(code.MaxRegisters), lines,
			bytes(logs), bytes(logs[logSize:]), logSize), nil
	})
	if logs == nil {
		return 0, "", err
	}
	if err == nil {
		return driver.Module(handle), text(logs[:logSize]), nil
	}
	log = text(logs[logSize:])
	var failed *driver.CallError
	if log != "" && errors.As(err, &failed) {
		failed.Err = fmt.Errorf("%w: %s", failed.Err, log)
		// Of PTX for a newer architecture the driver says that it is wrong (measured, 580.159).
		if errors.Is(err, driver.ErrInvalid) && strings.Contains(log, tooNew) {
			failed.Kind = driver.ErrNotSupported
		}
	}
	return 0, log, err
}

// tooNew is in the driver's log of PTX whose .target is not of this device or an older one.
const tooNew = "SM version specified by .target is higher"

// text is what stands before the first zero.
func text(log []byte) string {
	log, _, _ = stdbytes.Cut(log, []byte{0})
	return strings.TrimSpace(string(log))
}

// loadable is an image as the driver reads it: text to a zero, anything else as far as
// its headers say.
func loadable(call string, image []byte) ([]byte, error) {
	const elf, fatbin = "\x7fELF", "\x50\xed\x55\xba"
	size := uint64(0)
	switch {
	case len(image) == 0:
		return nil, refuse(call, driver.ErrInvalid, "the code is empty")
	case stdbytes.HasPrefix(image, []byte(elf)):
		size = elfSize(image)
	case stdbytes.HasPrefix(image, []byte(fatbin)):
		size = fatbinSize(image)
	case image[len(image)-1] != 0:
		return append(image[:len(image):len(image)], 0), nil
	}
	if size > uint64(len(image)) {
		return nil, refuse(call, driver.ErrInvalid, "the code is cut short: %d of %d bytes", len(image), size)
	}
	return image, nil
}

// elfSize is where the later of a cubin's two tables of headers ends. They are behind
// all else.
func elfSize(image []byte) uint64 {
	const header = 64
	if len(image) < header {
		return header
	}
	table := func(at, size int) uint64 {
		u16 := binary.LittleEndian.Uint16
		n := uint64(u16(image[size:])) * uint64(u16(image[size+2:]))
		from := binary.LittleEndian.Uint64(image[at:])
		if from > math.MaxInt64 {
			return math.MaxUint64
		}
		return from + n
	}
	return max(header, table(32, 54), table(40, 58))
}

// fatbinSize is the size of a fatbin with its header.
func fatbinSize(image []byte) uint64 {
	const header = 16
	if len(image) < header {
		return header
	}
	n := binary.LittleEndian.Uint64(image[8:])
	if n > math.MaxInt64 {
		return n
	}
	return n + uint64(binary.LittleEndian.Uint16(image[6:]))
}

// UnloadModule frees a module and its functions.
func (v *device) UnloadModule(m driver.Module) error {
	const call = "cuModuleUnload"
	if err := v.beginEvenLost(call); err != nil {
		return err
	}
	defer v.end()
	return v.d.modules.remove(call, uint64(m), v, func(e *tableEntry) error {
		err := e.destroy(call, func() C.CUresult {
			return C.cuvmm_module_unload(e.maker.d.api, e.maker.ctx, C.CUmodule(pointer(uint64(m))))
		})
		if err == nil {
			v.d.functions.removeIf(func(f *tableEntry) bool { return f.module == e })
		}
		return err
	})
}

// Function finds a kernel by its name. A call with it counts as one with its module,
// which is what is freed.
//
// Safety: C does not keep the name.
func (v *device) Function(m driver.Module, name string) (driver.Function, error) {
	const call = "cuModuleGetFunction"
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	if strings.IndexByte(name, 0) >= 0 {
		return 0, refuse(call, driver.ErrInvalid, "no kernel %q", name)
	}
	module, err := v.acquireOwn(call, &v.d.modules, uint64(m))
	if err != nil {
		return 0, err
	}
	defer module.release(v)
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	c := C.cuvmm_module_function(v.d.api, v.ctx, C.CUmodule(pointer(uint64(m))), text)
	if Result(c.r) == notFound {
		return 0, refuse(call, driver.ErrInvalid, "no kernel %q: %w", name, v.d.text(notFound))
	}
	if err := v.check(call, c.r); err != nil {
		return 0, err
	}
	v.d.functions.add(&tableEntry{handle: uint64(c.v), maker: module.maker, module: module})
	return driver.Function(c.v), nil
}

// Params lists a kernel's parameters: CUDA is asked until there is none.
func (v *device) Params(f driver.Function) (params []driver.Param, err error) {
	err = v.onFunction("cuFuncGetParamInfo", f, func() C.CUresult {
		for {
			p := C.cuvmm_function_param(v.d.api, v.ctx, function(f), C.size_t(len(params)))
			switch Result(p.r) {
			case success:
				params = append(params, driver.Param{Offset: uint32(p.offset), Size: uint32(p.size)})
			case invalidValue:
				return 0
			default:
				params = nil
				return p.r
			}
		}
	})
	return params, err
}

// FunctionInfo describes a kernel.
func (v *device) FunctionInfo(f driver.Function) (info driver.FunctionInfo, err error) {
	err = v.onFunction("cuFuncGetAttribute", f, func() C.CUresult {
		c := C.cuvmm_function_info(v.d.api, v.ctx, function(f))
		if c.r == 0 {
			info = driver.FunctionInfo{
				MaxThreads: uint32(c.threads), Registers: uint32(c.registers), StaticShared: uint32(c.shared),
				Local: uint32(c.local), Constant: uint32(c.constant), MaxDynamicShared: uint32(c.dynamic),
				PTXVersion: uint32(c.ptx), BinaryVersion: uint32(c.binary),
			}
		}
		return c.r
	})
	return info, err
}

// SetMaxDynamicShared allows launches with that much dynamic shared memory.
func (v *device) SetMaxDynamicShared(f driver.Function, n uint32) error {
	return v.onFunction("cuFuncSetAttribute", f, func() C.CUresult {
		if n > math.MaxInt32 {
			return C.CUDA_ERROR_INVALID_VALUE
		}
		return C.cuvmm_function_set_shared(v.d.api, v.ctx, function(f), C.int(n))
	})
}

// Occupancy is how many blocks run at once on one multiprocessor.
func (v *device) Occupancy(f driver.Function, threads, shared uint32) (blocks int, err error) {
	err = v.onFunction("cuOccupancyMaxActiveBlocksPerMultiprocessor", f, func() C.CUresult {
		if threads > math.MaxInt32 {
			return C.CUDA_ERROR_INVALID_VALUE
		}
		c := C.cuvmm_occupancy(v.d.api, v.ctx, function(f), C.int(threads), C.size_t(shared))
		blocks = int(c.v)
		return c.r
	})
	return blocks, err
}

// SuggestBlock is the block and the grid that occupy the device best.
func (v *device) SuggestBlock(f driver.Function, shared uint32) (threads, blocks uint32, err error) {
	err = v.onFunction("cuOccupancyMaxPotentialBlockSize", f, func() C.CUresult {
		c := C.cuvmm_occupancy_block(v.d.api, v.ctx, function(f), C.size_t(shared))
		threads, blocks = uint32(c.threads), uint32(c.blocks)
		return c.r
	})
	return threads, blocks, err
}

// onFunction makes a call with a function whose module cannot be unloaded meanwhile.
func (v *device) onFunction(call string, f driver.Function, do func() C.CUresult) error {
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	entry, err := v.acquireOwn(call, &v.d.functions, uint64(f))
	if err != nil {
		return err
	}
	defer entry.release(v)
	return v.check(call, do())
}

// acquireOwn is acquire of a handle that must be of this device and of this package.
func (v *device) acquireOwn(call string, table *handleTable, handle uint64) (*tableEntry, error) {
	e, err := table.acquire(call, handle, v)
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return nil, refuse(call, driver.ErrInvalid, "no handle %#x", handle)
	case e.maker.n != v.n:
		n := e.maker.n
		e.release(v)
		return nil, refuse(call, driver.ErrInvalid, "%#x is of cuda:%d", handle, n)
	}
	return e, nil
}

// function is a handle as C wants it. It points into the driver's memory, never into
// Go's.
func function(f driver.Function) C.CUfunction { return C.CUfunction(pointer(uint64(f))) }
