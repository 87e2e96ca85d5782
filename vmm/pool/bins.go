package pool

import "math/bits"

// bins are free extents by size: each bin is a list of those whose number of pages begins
// with the same four bits. Finding one takes a time that does not grow with their number.
type bins struct {
	heads [binCount]*extent
	used  [(binCount + 63) / 64]uint64 // a bit for each bin that is not empty
}

const (
	binBits  = 3                         // a power of two is divided into 8 bins
	binCount = (34 - binBits) << binBits // up to 2^33 pages
	scanMost = 24                        // how many extents of a bin a search looks at
)

// binOf is the bin of extents of so many pages.
func binOf(pages uint64) int {
	if pages < 1<<(binBits+1) {
		return int(pages)
	}
	shift := bits.Len64(pages) - 1 - binBits
	return shift<<binBits + int(pages>>shift)
}

func (b *bins) insert(e *extent, i int) {
	e.bin = i
	e.binPrev, e.binNext = nil, b.heads[i]
	if e.binNext != nil {
		e.binNext.binPrev = e
	}
	b.heads[i] = e
	b.used[i>>6] |= 1 << (i & 63)
}

func (b *bins) remove(e *extent) {
	if e.binNext != nil {
		e.binNext.binPrev = e.binPrev
	}
	if e.binPrev != nil {
		e.binPrev.binNext = e.binNext
	} else if b.heads[e.bin] = e.binNext; e.binNext == nil {
		b.used[e.bin>>6] &^= 1 << (e.bin & 63)
	}
	e.binPrev, e.binNext = nil, nil
}

// from returns the first bin from i on that is not empty; -1 if there is none.
func (b *bins) from(i int) int {
	if i >= binCount {
		return -1
	}
	w := i >> 6
	for word := b.used[w] &^ (1<<(i&63) - 1); ; word = b.used[w] {
		if word != 0 {
			return w<<6 + bits.TrailingZeros64(word)
		}
		if w++; w == len(b.used) {
			return -1
		}
	}
}

// largest is the size of the longest extent.
func (b *bins) largest() (size uint64) {
	for w := len(b.used) - 1; w >= 0; w-- {
		if b.used[w] == 0 {
			continue
		}
		for e := b.heads[w<<6+bits.Len64(b.used[w])-1]; e != nil; e = e.binNext {
			size = max(size, e.size)
		}
		return size
	}
	return 0
}

// find returns an extent of at least size bytes and a stamp below before, from the lowest bin
// in which it sees one. It looks at the first scanMost extents of each bin, and takes the lowest
// address of those that fit, so that high addresses empty out.
func (b *bins) find(size, before uint64) (best *extent) {
	for i := b.from(binOf(size / pageSize)); i >= 0 && best == nil; i = b.from(i + 1) {
		n := 0
		for e := b.heads[i]; e != nil && n < scanMost; e = e.binNext {
			n++
			if e.size >= size && e.stamp < before && (best == nil || e.off < best.off) {
				best = e
			}
		}
	}
	return best
}

// beforeHole returns the longest extent of less than size bytes behind which lies a hole that is
// long enough for the chunks that are missing. It looks at the first scanMost extents of each bin.
func (b *bins) beforeHole(size, chunk uint64) (best *extent) {
	for i := b.upTo(binOf(size / pageSize)); i >= 0 && best == nil; i = b.upTo(i - 1) {
		n := 0
		for e := b.heads[i]; e != nil && n < scanMost; e = e.binNext {
			n++
			if e.size >= size || e.next == nil || e.next.kind != kindHole || best != nil && e.size <= best.size {
				continue
			}
			if (size-e.size+chunk-1)/chunk*chunk <= e.next.size {
				best = e
			}
		}
	}
	return best
}

// upTo returns the last bin up to i that is not empty; -1 if there is none.
func (b *bins) upTo(i int) int {
	for w := i >> 6; i >= 0; w-- {
		if word := b.used[w] & (1<<(i&63+1) - 1); word != 0 {
			return w<<6 + bits.Len64(word) - 1
		}
		i = w<<6 - 1
	}
	return -1
}
