// Package frames tells the program's lines in a stack from the library's.
package frames

import (
	"runtime"
	"strings"
)

// Place is whose line a frame is.
type Place int

// The places of frames.
const (
	Program Place = iota // also a test, a command or an example of this module
	Library
	Runtime // runtime or sync: they only call what others gave them
)

const module = "github.com/cuvmm/cuvmm/"

// Of returns whose line a frame is.
func Of(f runtime.Frame) Place {
	pkg := packageOf(f.Function)
	if pkg == "" || pkg == "runtime" || pkg == "sync" {
		return Runtime
	}
	sub, ours := strings.CutPrefix(pkg+"/", module)
	if !ours || strings.HasSuffix(pkg, "_test") || strings.HasSuffix(f.File, "_test.go") ||
		strings.HasPrefix(sub, "cmd/") || strings.HasPrefix(sub, "examples/") {
		return Program
	}
	return Library
}

// packageOf is the import path of a function's package.
func packageOf(function string) string {
	i := strings.LastIndexByte(function, '/') + 1
	if j := strings.IndexByte(function[i:], '.'); j >= 0 {
		return function[:i+j]
	}
	return function
}
