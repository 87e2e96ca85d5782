package frames

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		function, file string
		want           Place
	}{
		{"github.com/cuvmm/cuvmm/vmm.(*Device).Create", "chunk.go", Library},
		{"github.com/cuvmm/cuvmm/vmm/pool.(*Pool).Alloc", "pool.go", Library},
		{"github.com/cuvmm/cuvmm/cgo/cuda.(*Device).Create", "memory.go", Library},
		{"github.com/cuvmm/cuvmm/vmm.TestCreate", "chunk_test.go", Program},
		{"github.com/cuvmm/cuvmm/vmm_test.leak", "any.go", Program},
		{"github.com/cuvmm/cuvmm/examples/kernels.run", "main.go", Program},
		{"github.com/cuvmm/cuvmm/cmd/vmmstored.run", "run.go", Program},
		{"main.main", "main.go", Program},
		{"example.com/cuvmm/vmm.F", "f.go", Program},
		{"runtime.goexit", "asm.s", Runtime},
		{"sync.(*WaitGroup).Go.func1", "waitgroup.go", Runtime},
		{"", "", Runtime},
	} {
		require.Equal(t, c.want, Of(runtime.Frame{Function: c.function, File: c.file}), c.function)
	}
}
