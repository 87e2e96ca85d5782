package kernel

import (
	"reflect"

	"github.com/cuvmm/cuvmm/vmm"
)

// HostBuiltins is hostBuiltins.
var HostBuiltins = hostBuiltins

// BuiltinPTX is the kernels that the Go functions stand in for.
func BuiltinPTX() []byte { return builtinPTX }

// Sizes that device/builtin.cu has too.
const (
	BuiltinThreads = builtinThreads
	CompactTile32  = compactTile32
	CompactTile64  = compactTile64
	CursorBytes    = 8 * cursorWords
)

// HostParams is the parameters of a Go function as a kernel has them.
func HostParams(f any) ([]vmm.Param, error) {
	k, _, err := hostKernel(reflect.ValueOf(f))
	return k.Params, err
}

// Word is the i-th word of the pattern.
func (p Pattern) Word(i uint64) uint64 { return p.word(i) }

// Differ is differ.
func (p Pattern) Differ(got []byte) (bad, first uint64) { return p.differ(got) }
