package memory

import (
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/examples/arrow/poolmem"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// pooled is what stands in for Go's heap.
var pooled = sync.OnceValue(func() *poolmem.Allocator {
	a, err := poolmem.Open("host?page=4K", pool.Options{})
	if err != nil {
		panic(err)
	}
	return a
})

// PoolReport says what the pool has done.
func PoolReport() string {
	s, err := pooled().Stats()
	return fmt.Sprintf("pool: %d allocations, %d frees, error %v", s.Allocs, s.Frees, err)
}

// GoAllocator is the pool under the name that Arrow's tests use.
type GoAllocator struct{}

// NewGoAllocator is what DefaultAllocator is, too.
func NewGoAllocator() *GoAllocator { return &GoAllocator{} }

// Allocate is a method of Allocator.
func (*GoAllocator) Allocate(size int) []byte { return pooled().Allocate(size) }

// Reallocate is a method of Allocator.
func (*GoAllocator) Reallocate(size int, b []byte) []byte { return pooled().Reallocate(size, b) }

// Free is a method of Allocator.
func (*GoAllocator) Free(b []byte) { pooled().Free(b) }
