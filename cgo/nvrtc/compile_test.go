//go:build cgo && linux

package nvrtc_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nvrtc"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

func TestCompile(t *testing.T) {
	c, fake := onFake(t)
	o := nvrtc.Options{Arch: "compute_80", NoCache: true, Expressions: []string{"scale<float>", "scale<int>"}}
	ptx, err := c.Compile(source, o)
	require.NoError(t, err)
	require.Equal(t, nvrtc.KindPTX, ptx.Kind)
	require.Contains(t, string(ptx.Image), ".target sm_80")
	require.NotContains(t, string(ptx.Image), "\x00")
	require.Equal(t, map[string]string{"scale<float>": "_Z12scale_float_", "scale<int>": "_Z10scale_int_"}, ptx.Names)
	require.Empty(t, ptx.Log)
	require.False(t, ptx.Cached)
	require.NoError(t, ptx.CacheErr)
	require.Zero(t, fake.Calls("nvrtcGetCUBINSize"))

	o.Arch = "sm_80"
	cubin, err := c.Compile("#warning slow\n"+source, o)
	require.NoError(t, err)
	require.Equal(t, nvrtc.KindCubin, cubin.Kind)
	require.Regexp(t, "^\x7fELF\x00sm_80 [0-9a-f]{16}\x00$", string(cubin.Image), "zero bytes and all")
	require.Equal(t, "kernel.cu(1): warning #1105-D: #warning directive: slow\n", cubin.Log)
	require.Equal(t, 1, fake.Calls("nvrtcGetPTXSize"))
}

// Everything in the options reaches the compiler: without NoCache none of it may be
// ignored, so each change gives another image.
func TestCompileTakesAll(t *testing.T) {
	c, _ := onFake(t)
	seen := map[string]string{}
	for name, o := range variants() {
		o.NoCache = true
		r, err := c.Compile(source, o)
		require.NoError(t, err, name)
		require.NotContains(t, seen, string(r.Image), "%s and %s", name, seen[string(r.Image)])
		seen[string(r.Image)] = name
	}
}

// variants are options that differ from each other in one thing.
func variants() map[string]nvrtc.Options {
	all := map[string]nvrtc.Options{}
	for name, change := range map[string]func(*nvrtc.Options){
		"plain":                   func(*nvrtc.Options) {},
		"PTX":                     func(o *nvrtc.Options) { o.Arch = "compute_90" },
		"another architecture":    func(o *nvrtc.Options) { o.Arch = "sm_80" },
		"a letter":                func(o *nvrtc.Options) { o.Arch = "sm_90a" },
		"a name":                  func(o *nvrtc.Options) { o.Name = "other.cu" },
		"a flag":                  func(o *nvrtc.Options) { o.Flags = []string{"-DA-DB"} },
		"two flags":               func(o *nvrtc.Options) { o.Flags = []string{"-DA", "-DB"} },
		"two flags in turn":       func(o *nvrtc.Options) { o.Flags = []string{"-DB", "-DA"} },
		"a header":                func(o *nvrtc.Options) { o.Headers = map[string]string{"a": "bc"} },
		"its name longer":         func(o *nvrtc.Options) { o.Headers = map[string]string{"ab": "c"} },
		"another header's text":   func(o *nvrtc.Options) { o.Headers = map[string]string{"a": "bd"} },
		"an expression":           func(o *nvrtc.Options) { o.Expressions = []string{"scale<int>"} },
		"another expression":      func(o *nvrtc.Options) { o.Expressions = []string{"scale<char>"} },
		"an expression of no use": func(o *nvrtc.Options) { o.Expressions = []string{"scale<int>", "scale<char>"} },
	} {
		o := nvrtc.Options{Arch: "sm_90"}
		change(&o)
		all[name] = o
	}
	return all
}

func TestCompileError(t *testing.T) {
	c, fake := onFake(t)
	o, dir := keptIn(t)
	o.Headers = map[string]string{"bad.cuh": "\n\n\n#error bad header\n"}
	for _, test := range []struct {
		name, source, want string
		change             func(*nvrtc.Options)
	}{
		{"an error", "#warning first\n\n#error no\n#error nor this\n", "compile kernel.cu: kernel.cu(3): error: #error directive: no", nil},
		{"in a named file", "#error no\n", "compile mine.cu: mine.cu(1): error: #error directive: no", func(o *nvrtc.Options) { o.Name = "mine.cu" }},
		{"in a header", "#include \"bad.cuh\"\n", "compile kernel.cu: bad.cuh(4): error: #error directive: bad header", nil},
		{"no such file", "#include \"none.cuh\"\n", `compile kernel.cu: kernel.cu(1): catastrophic error: cannot open source file "none.cuh"`, nil},
		{"an unknown flag", source, "compile kernel.cu: nvrtc: error: unrecognized option fast found", func(o *nvrtc.Options) { o.Flags = []string{"fast"} }},
		{"an unknown expression", source, `compile kernel.cu: __nv_name_map(2): error: identifier "skale" is undefined`,
			func(o *nvrtc.Options) { o.Expressions = []string{"scale<int>", "skale<int>"} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := o
			if test.change != nil {
				test.change(&o)
			}
			for range 2 { // a failure is not kept
				before := fake.Calls("nvrtcCompileProgram")
				r, err := c.Compile(test.source, o)
				require.Nil(t, r)
				isOnly(t, err, driver.ErrInvalid)
				require.EqualError(t, err, test.want)
				var failed *nvrtc.CompileError
				require.ErrorAs(t, err, &failed)
				require.Contains(t, failed.Log, strings.SplitN(test.want, ": ", 2)[1])
				require.Equal(t, before+1, fake.Calls("nvrtcCompileProgram"))
			}
		})
	}
	require.Empty(t, filesIn(t, dir))
}

// The text of a CompileError is one line, whatever the log is.
func TestCompileErrorText(t *testing.T) {
	for log, want := range map[string]string{
		"":                                      "compile k.cu: the compiler gave no reason",
		"\n  \n":                                "compile k.cu: the compiler gave no reason",
		"something else\nand more\n":            "compile k.cu: something else",
		"k.cu(1): warning: errors\nx: error: y": "compile k.cu: x: error: y",
		"k.cu(7): error #20: z\r\nk.cu(8): error: w\r\n": "compile k.cu: k.cu(7): error #20: z",
	} {
		require.EqualError(t, &nvrtc.CompileError{Name: "k.cu", Log: log}, want)
	}
}

// What is wrong in itself is refused before the compiler is asked.
func TestCompileRefuses(t *testing.T) {
	c, fake := onFake(t)
	before := fake.Calls("")
	for _, test := range []struct {
		source string
		o      nvrtc.Options
		kind   error
		want   string
	}{
		{source, nvrtc.Options{}, driver.ErrInvalid, `architecture ""`},
		{source, nvrtc.Options{Arch: "90"}, driver.ErrInvalid, `architecture "90"`},
		{source, nvrtc.Options{Arch: "lto_90"}, driver.ErrInvalid, `architecture "lto_90"`},
		{source, nvrtc.Options{Arch: "sm_90 --x"}, driver.ErrInvalid, "architecture"},
		{source, nvrtc.Options{Arch: "sm_99999999999999999999"}, driver.ErrInvalid, "architecture"},
		{source, nvrtc.Options{Arch: "sm_100"}, driver.ErrNotSupported, "NVRTC 12.4 does not know sm_100; it knows [75 80 90]"},
		{source, nvrtc.Options{Arch: "compute_60"}, driver.ErrNotSupported, "compute_60"},
		{"a\x00b", nvrtc.Options{Arch: "sm_90"}, driver.ErrInvalid, `a zero byte at 1 of "a\x00b"`},
		{source, nvrtc.Options{Arch: "sm_90", Name: "\x00"}, driver.ErrInvalid, "a zero byte"},
		{source, nvrtc.Options{Arch: "sm_90", Flags: []string{"-DA\x00"}}, driver.ErrInvalid, "a zero byte"},
		{source, nvrtc.Options{Arch: "sm_90", Expressions: []string{"scale\x00"}}, driver.ErrInvalid, "a zero byte"},
		{source, nvrtc.Options{Arch: "sm_90", Headers: map[string]string{"a": "\x00"}}, driver.ErrInvalid, "a zero byte"},
		{source, nvrtc.Options{Arch: "sm_90", Headers: map[string]string{"\x00": ""}}, driver.ErrInvalid, "a zero byte"},
	} {
		_, err := c.Compile(test.source, test.o)
		isOnly(t, err, test.kind)
		require.ErrorContains(t, err, test.want)
	}
	require.Equal(t, before, fake.Calls(""))
}

// A part of the compiler that is missing is no fault of the source.
func TestCompileWithoutBuiltins(t *testing.T) {
	c, fake := onFake(t)
	fake.Fail("nvrtcCompileProgram", 1, 7)
	_, err := c.Compile(source, nvrtc.Options{Arch: "sm_90", NoCache: true})
	isOnly(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE")
}

// TestFaults fails each call to libnvrtc of a compilation, in each form of it.
func TestFaults(t *testing.T) {
	c, fake := onFake(t)
	symbols := []string{
		"nvrtcCreateProgram", "nvrtcAddNameExpression", "nvrtcCompileProgram", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog",
		"nvrtcGetPTXSize", "nvrtcGetPTX", "nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetLoweredName", "nvrtcDestroyProgram",
	}
	const internal = 11
	n := 0
	for _, arch := range []string{"sm_90", "compute_90"} {
		o, dir := keptIn(t)
		o.Arch, o.Expressions = arch, []string{"scale<float>", "scale<int>"}
		calls := map[string]int{}
		for _, s := range symbols {
			calls[s] = -fake.Calls(s)
		}
		_, err := c.Compile(source, o)
		require.NoError(t, err)
		for _, s := range symbols {
			calls[s] += fake.Calls(s)
		}
		o.Cache = &nvrtc.Cache{Dir: dir + "2"}
		for _, s := range symbols {
			for k := 1; k <= calls[s]; k++ {
				what := fmt.Sprintf("call %d of %s for %s", k, s, arch)
				fake.Fail(s, k, internal)
				r, err := c.Compile(source, o)
				require.Nil(t, r, what)
				isOnly(t, err, nil, what)
				var call *driver.CallError
				require.ErrorAs(t, err, &call, what)
				require.Equal(t, s, call.Call, what)
				var status nvrtc.Status
				require.ErrorAs(t, err, &status, what)
				require.Equal(t, nvrtc.Status(internal), status, what)
				require.Empty(t, filesIn(t, o.Cache.Dir), what)
				left := 0
				if s == "nvrtcDestroyProgram" { // and is not tried again
					left = 1
				}
				require.Equal(t, left, fake.Live(), what)
				require.Empty(t, fake.Violations(), what)
				fake.Reset()
				n++
			}
		}
		r, err := c.Compile(source, o)
		require.NoError(t, err, "again")
		require.NoError(t, r.CacheErr)
		require.False(t, r.Cached)
	}
	require.Equal(t, 2*11, n, "every call of both")
}

// Where compiling fails and the log cannot be had, the error is still the first.
func TestFaultAfterError(t *testing.T) {
	c, fake := onFake(t)
	for _, symbol := range []string{"nvrtcGetProgramLogSize", "nvrtcGetProgramLog"} {
		fake.Fail(symbol, 1, 11)
		_, err := c.Compile("#error no\n", nvrtc.Options{Arch: "sm_90", NoCache: true})
		isOnly(t, err, driver.ErrInvalid)
		require.EqualError(t, err, "compile kernel.cu: the compiler gave no reason")
	}
}

// One Compiler compiles in several goroutines at once.
func TestCompileConcurrently(t *testing.T) {
	c, _ := onFake(t)
	alone := map[string]*nvrtc.Result{}
	for name, o := range variants() {
		o.NoCache = true
		r, err := c.Compile(source, o)
		require.NoError(t, err)
		alone[name] = r
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for name, o := range variants() {
				o.NoCache = true
				r, err := c.Compile(source, o)
				assert.NoError(t, err)
				assert.Equal(t, alone[name], r)
			}
		})
	}
	all.Wait()
}
