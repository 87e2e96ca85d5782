//go:build cgo && linux

package nvrtc

/*
#cgo noescape cuvmm_nvrtc_compile
#cgo nocallback cuvmm_nvrtc_compile
#include <stdlib.h>
#include "shims.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Statuses that decide what kind of error a call returns.
const (
	success           Status = 0
	invalidInput      Status = 3
	invalidOption     Status = 5
	compilation       Status = 6
	builtinFailure    Status = 7 // libnvrtc-builtins is missing or of another version
	invalidExpression Status = 10
)

// named is a Status with NVRTC's name for it, and what there is to say about it.
type named struct {
	Status
	text string
}

func (n named) Error() string { return n.text }

// Unwrap lets errors.As find the Status.
func (n named) Unwrap() error { return n.Status }

// fail is the error of a call that failed. more is added to its text.
func (c *Compiler) fail(call string, s Status, more string) error {
	text := s.Error()
	if name := C.cuvmm_nvrtc_text(&c.api, C.nvrtcResult(s)); name != nil {
		text = C.GoString(name)
	}
	if more != "" {
		text += ": " + more
	}
	var kind error = s
	switch s {
	case invalidInput, invalidExpression:
		kind = driver.ErrInvalid
	case builtinFailure:
		kind = driver.ErrNotSupported
	}
	return &driver.CallError{Call: call, Kind: kind, Err: named{s, text}}
}

// refuse is an error about which NVRTC is not asked.
func refuse(kind error, format string, args ...any) error {
	return &driver.CallError{Call: "nvrtcCompileProgram", Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Compile compiles CUDA C++. What the compiler refuses is a *CompileError with its log,
// which Is driver.ErrInvalid. An architecture that the compiler does not know is
// driver.ErrNotSupported, and so is a compiler of which a part is missing.
//
// A result is looked for in the cache first and kept there afterwards. A cache that
// cannot be used is no error; Result.CacheErr says why it was not.
func (c *Compiler) Compile(source string, o Options) (*Result, error) {
	if o.Name == "" {
		o.Name = "kernel.cu"
	}
	cubin, err := c.check(source, o)
	if err != nil {
		return nil, err
	}
	if o.NoCache {
		return c.compile(source, o, cubin)
	}
	if name := unknownInclude(source, o); name != "" {
		r, err := c.compile(source, o, cubin)
		if err == nil {
			r.CacheErr = fmt.Errorf("not kept: what %s includes is not known", name)
		}
		return r, err
	}

	key := c.key(source, o)
	folder, cacheErr := openFolder(o.Cache)
	if folder != nil {
		defer folder.Close()
		if r := folder.load(key); r != nil {
			return r, nil
		}
	}
	r, err := c.compile(source, o, cubin)
	if err != nil {
		return nil, err
	}
	if folder != nil {
		cacheErr = folder.store(key, r)
	}
	r.CacheErr = cacheErr
	return r, nil
}

// check refuses what NVRTC would misunderstand, and architectures that it does not
// know. It reports whether a cubin is wanted.
func (c *Compiler) check(source string, o Options) (cubin bool, err error) {
	texts := append([]string{source, o.Name}, o.Flags...)
	texts = append(texts, o.Expressions...)
	for name, text := range o.Headers {
		texts = append(texts, name, text)
	}
	// C would take what comes before the zero byte for all of it.
	for _, text := range texts {
		if i := strings.IndexByte(text, 0); i >= 0 {
			return false, refuse(driver.ErrInvalid, "a zero byte at %d of %.40q", i, text)
		}
	}
	if len(texts) > math.MaxInt32 {
		return false, refuse(driver.ErrInvalid, "%d texts", len(texts))
	}
	prefix, number, err := parseArch(o.Arch)
	if err != nil {
		return false, refuse(driver.ErrInvalid, "%w", err)
	}
	if _, known := slices.BinarySearch(c.archs, number); !known {
		return false, refuse(driver.ErrNotSupported, "NVRTC %d.%d does not know %s; it knows %v", c.major, c.minor, o.Arch, c.archs)
	}
	return prefix == "sm", nil
}

// compile has NVRTC compile.
//
// Safety: all that in and out point to is C's. Only Go frees in, and out after C has
// filled it.
func (c *Compiler) compile(source string, o Options, cubin bool) (*Result, error) {
	var keep cMemory
	defer keep.free()
	headers := slices.Sorted(maps.Keys(o.Headers))
	headerTexts := make([]string, len(headers))
	for i, name := range headers {
		headerTexts[i] = o.Headers[name]
	}
	options := append([]string{"--gpu-architecture=" + o.Arch}, o.Flags...)
	in := C.struct_cuvmm_nvrtc_input{
		source:           keep.text(source),
		name:             keep.text(o.Name),
		header_count:     C.int(len(headers)),
		header_texts:     keep.texts(headerTexts),
		header_names:     keep.texts(headers),
		option_count:     C.int(len(options)),
		options:          keep.texts(options),
		expression_count: C.int(len(o.Expressions)),
		expressions:      keep.texts(o.Expressions),
	}
	if cubin {
		in.cubin = 1
	}
	var out C.struct_cuvmm_nvrtc_output
	C.cuvmm_nvrtc_compile(&c.api, &in, &out)
	defer C.cuvmm_nvrtc_free(&in, &out)

	log := string(goText(out.log))
	if out.call != nil {
		return nil, c.failure(&out, o, log)
	}
	r := &Result{Kind: KindPTX, Log: log, Image: goText(out.image), Names: map[string]string{}}
	if cubin {
		r.Kind, r.Image = KindCubin, goBytes(out.image)
	}
	if len(r.Image) == 0 {
		return nil, refuse(driver.ErrInvalid, "with %q there is no %s", o.Flags, r.Kind)
	}
	for i, name := range unsafe.Slice(out.names, len(o.Expressions)) {
		r.Names[o.Expressions[i]] = C.GoString(name)
	}
	return r, nil
}

// failure is the error of a compilation.
func (c *Compiler) failure(out *C.struct_cuvmm_nvrtc_output, o Options, log string) error {
	call, s := C.GoString(out.call), Status(out.r)
	switch {
	case call == "nvrtcCompileProgram" && (s == compilation || s == invalidOption):
		return &CompileError{Name: o.Name, Log: log}
	case call == "malloc":
		return &driver.CallError{Call: call, Kind: s, Err: errors.New("out of host memory")}
	case out.expression >= 0:
		return c.fail(call, s, o.Expressions[out.expression])
	}
	return c.fail(call, s, strings.TrimSpace(log))
}

// goBytes copies bytes of C's.
//
// Safety: b.at is NULL or has b.size bytes.
func goBytes(b C.struct_cuvmm_nvrtc_bytes) []byte {
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(b.at)), int(b.size)))
}

// goText is goBytes without the zero byte at the end of a text.
func goText(b C.struct_cuvmm_nvrtc_bytes) []byte { return bytes.TrimSuffix(goBytes(b), []byte{0}) }

// cMemory is what C reads during one call.
type cMemory struct{ all []unsafe.Pointer }

func (m *cMemory) free() {
	for _, p := range m.all {
		C.free(p)
	}
}

func (m *cMemory) text(s string) *C.char {
	p := C.CString(s)
	m.all = append(m.all, unsafe.Pointer(p))
	return p
}

// texts is an array of texts in C's memory, NULL if there are none.
//
// Safety: the array has room for as many pointers as there are texts. C.malloc returns
// no NULL.
func (m *cMemory) texts(list []string) **C.char {
	if len(list) == 0 {
		return nil
	}
	p := C.malloc(C.size_t(len(list)) * C.size_t(unsafe.Sizeof((*C.char)(nil))))
	m.all = append(m.all, p)
	array := unsafe.Slice((**C.char)(p), len(list))
	for i, s := range list {
		array[i] = m.text(s)
	}
	return (**C.char)(p)
}
