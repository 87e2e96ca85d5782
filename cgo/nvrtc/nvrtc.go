package nvrtc

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Options say how a source is compiled. Only Arch must be set.
type Options struct {
	// Name stands for the source's file in messages; empty: kernel.cu.
	Name string
	// Arch is the architecture: "sm_90" is a cubin for exactly that one,
	// "compute_90" is PTX, which the driver compiles for that one and all newer
	// ones. A letter may follow, as in "sm_90a". Compiler.ArchFor finds the one for a
	// device.
	Arch string
	// Flags are further options of NVRTC, like "--std=c++17" or "--use_fast_math".
	Flags []string
	// Headers are texts by the names that #include has for them. Other files are found
	// where NVRTC looks: in the current folder, in the system's, and with Flags.
	Headers map[string]string
	// Expressions name kernels and variables as C++ does, like "scale<float>".
	// Result.Names has the names by which the module knows them.
	Expressions []string

	// Cache is where results are kept; nil: where a zero Cache keeps them.
	Cache *Cache
	// NoCache compiles, whatever is kept, and keeps nothing.
	NoCache bool
}

// Cache keeps results of Compile on disk, for later processes too. Processes and
// goroutines may share one folder. Which source, headers, options and version of the
// compiler a result is of decides whether it is used again. The version is NVRTC's own,
// like 12.4: after a repair of the compiler that keeps it, empty the folder.
//
// The folder must belong to this user, and no other user may be able to write to it. A
// file is used if the same holds for it, and if it is whole.
type Cache struct {
	// Dir is the folder; empty: cuvmm/nvrtc in os.UserCacheDir. It is made if it is
	// missing.
	Dir string
	// MaxBytes limits the files in it; 0: 256 MiB. What was used the longest time ago
	// is deleted first. A result that is larger is not kept.
	MaxBytes uint64
}

// Kind is what Result.Image is.
type Kind string

// Kinds of image.
const (
	KindPTX   Kind = "ptx"   // text, without a zero byte at its end
	KindCubin Kind = "cubin" // for one architecture
)

// Result is a source that was compiled. All of it is the caller's.
type Result struct {
	Image []byte
	Kind  Kind
	// Log is what the compiler said: warnings, or nothing.
	Log string
	// Names has the lowered name of each of Options.Expressions.
	Names map[string]string
	// Cached says that the result comes from the cache.
	Cached bool
	// CacheErr says what kept the cache from being used; nil also with NoCache. The
	// result is good all the same. A source that includes files which Options.Headers
	// does not have is never kept: what is in them is not known.
	CacheErr error
}

// CompileError is a source or an option that the compiler refuses. It is a
// driver.ErrInvalid.
type CompileError struct {
	Name string // Options.Name
	Log  string // all that the compiler said
}

// firstError finds the compiler's first error in a log. The file and the line come
// before it, if the error has them: "kernel.cu(3): error: ...".
var firstError = regexp.MustCompile(`(?m)^.*: (?:\w+ )?error\b.*$`)

// Error has the first error with its file and line.
func (e *CompileError) Error() string {
	first := firstError.FindString(e.Log)
	if first == "" {
		first, _, _ = strings.Cut(strings.TrimSpace(e.Log), "\n")
	}
	if first == "" {
		first = "the compiler gave no reason"
	}
	return "compile " + e.Name + ": " + strings.TrimSpace(first)
}

// Unwrap returns driver.ErrInvalid.
func (e *CompileError) Unwrap() error { return driver.ErrInvalid }

// Status is NVRTC's own error code, an nvrtcResult. It is found inside the
// *driver.CallError of a call that failed, with errors.As.
type Status int

// Error is NVRTC's number. The error of a call has its name too.
func (s Status) Error() string { return fmt.Sprintf("NVRTC error %d", int(s)) }
