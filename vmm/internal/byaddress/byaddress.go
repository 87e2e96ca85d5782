// Package byaddress finds what an address lies in. It takes no lock: its caller has one.
package byaddress

import (
	"cmp"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Index is values by the addresses that they have. It consists of sorted blocks, so that adding one to
// many moves few. Its zero value is empty.
type Index[V any] [][]entry[V] // none is empty

type entry[V any] struct {
	at    driver.Ptr
	size  uint64
	value V
}

const blockSize = 256

// block is the index of the block that has the last value up to p; 0 if none begins there or before.
func (a Index[V]) block(p driver.Ptr) int {
	i, found := slices.BinarySearchFunc(a, p, func(b []entry[V], p driver.Ptr) int { return cmp.Compare(b[0].at, p) })
	if !found {
		i--
	}
	return max(i, 0)
}

// inBlock is where a value is that begins at p, or would be.
func inBlock[V any](b []entry[V], p driver.Ptr) (i int, found bool) {
	return slices.BinarySearchFunc(b, p, func(e entry[V], p driver.Ptr) int { return cmp.Compare(e.at, p) })
}

// Add adds a value with size bytes at p, where nothing else is.
func (a *Index[V]) Add(p driver.Ptr, size uint64, value V) {
	e := entry[V]{p, size, value}
	if len(*a) == 0 {
		*a = Index[V]{{e}}
		return
	}
	k := a.block(p)
	b := (*a)[k]
	i, _ := inBlock(b, p)
	b = slices.Insert(b, i, e)
	(*a)[k] = b
	if len(b) > blockSize {
		upper := slices.Clone(b[blockSize/2:])
		clear(b[blockSize/2:])
		(*a)[k] = b[:blockSize/2]
		*a = slices.Insert(*a, k+1, upper)
	}
}

// Remove removes the value that begins at p, if there is one.
func (a *Index[V]) Remove(p driver.Ptr) {
	if len(*a) == 0 {
		return
	}
	k := a.block(p)
	if i, found := inBlock((*a)[k], p); found {
		if (*a)[k] = slices.Delete((*a)[k], i, i+1); len((*a)[k]) == 0 {
			*a = slices.Delete(*a, k, k+1)
		}
	}
}

// Find is the value that p lies in.
func (a Index[V]) Find(p driver.Ptr) (value V, found bool) {
	if len(a) == 0 {
		return value, false
	}
	b := a[a.block(p)]
	i, found := inBlock(b, p)
	if !found {
		i--
	}
	if i < 0 || uint64(p-b[i].at) >= b[i].size {
		return value, false
	}
	return b[i].value, true
}
