package vmm

import (
	"cmp"
	"slices"
)

// byAddress is reservations by their addresses. It consists of sorted blocks, so that adding one to
// many moves few.
type byAddress [][]*Reservation // none is empty

const blockSize = 256

// block is the index of the block that has the last reservation up to p; 0 if none begins there or before.
func (a byAddress) block(p Ptr) int {
	i, found := slices.BinarySearchFunc(a, p, func(b []*Reservation, p Ptr) int { return cmp.Compare(b[0].ptr, p) })
	if !found {
		i--
	}
	return max(i, 0)
}

// inBlock is where a reservation is that begins at p, or would be.
func inBlock(b []*Reservation, p Ptr) (i int, found bool) {
	return slices.BinarySearchFunc(b, p, func(r *Reservation, p Ptr) int { return cmp.Compare(r.ptr, p) })
}

func (a *byAddress) add(r *Reservation) {
	if len(*a) == 0 {
		*a = byAddress{{r}}
		return
	}
	k := a.block(r.ptr)
	b := (*a)[k]
	i, _ := inBlock(b, r.ptr)
	b = slices.Insert(b, i, r)
	(*a)[k] = b
	if len(b) > blockSize {
		upper := slices.Clone(b[blockSize/2:])
		clear(b[blockSize/2:])
		(*a)[k] = b[:blockSize/2]
		*a = slices.Insert(*a, k+1, upper)
	}
}

func (a *byAddress) remove(r *Reservation) {
	if len(*a) == 0 {
		return
	}
	k := a.block(r.ptr)
	if i, found := inBlock((*a)[k], r.ptr); found {
		if (*a)[k] = slices.Delete((*a)[k], i, i+1); len((*a)[k]) == 0 {
			*a = slices.Delete(*a, k, k+1)
		}
	}
}

// find is the reservation that p lies in, or nil.
func (a byAddress) find(p Ptr) *Reservation {
	if len(a) == 0 {
		return nil
	}
	b := a[a.block(p)]
	i, found := inBlock(b, p)
	if !found {
		i--
	}
	if i < 0 || p-b[i].ptr >= Ptr(b[i].size) {
		return nil
	}
	return b[i]
}
