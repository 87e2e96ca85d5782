// Package verify fills memory with a pattern and finds the first word that is
// wrong. Each word depends on its offset. A pattern that repeats every chunk would
// not show two swapped chunks; this one never repeats.
package verify

import (
	"bytes"
	"context"

	"github.com/cuvmm/cuvmm/vmm/kernel"
)

const word = 8 // bytes

// Pattern gives each 8-byte word of a buffer a value that depends on the seed
// and the word's absolute offset. A device fills and compares it by kernels.
type Pattern kernel.Pattern

// From is the pattern as it goes on from off, a multiple of 8: what lies there in a buffer
// that was filled from its beginning.
func (p Pattern) From(off uint64) Pattern { return Pattern(kernel.Pattern(p).From(off)) }

// Fill writes what belongs at [off, off+len(dst)). off is a multiple of 8.
func (p Pattern) Fill(dst []byte, off uint64) { kernel.Pattern(p.From(off)).Fill(dst) }

// bytes are n bytes that belong at off, a multiple of 8.
func (p Pattern) bytes(off uint64, n int) []byte {
	b := make([]byte, n)
	p.Fill(b, off)
	return b
}

// differ compares got with what belongs at off, a multiple of 8. It returns how
// many bytes differ and the index of the first of them in got.
func (p Pattern) differ(got []byte, off uint64) (bad uint64, first int) {
	want := p.bytes(off, len(got))
	if bytes.Equal(got, want) {
		return 0, 0
	}
	for i := len(got) - 1; i >= 0; i-- {
		if got[i] != want[i] {
			bad, first = bad+1, i
		}
	}
	return bad, first
}

// find returns the offset at which a buffer of this size has a word, nil if it has none. No word is there
// twice.
func (p Pattern) find(ctx context.Context, one []byte, size uint64) (at *uint64) {
	_ = EachBlock(ctx, size, func(scratch []byte, off, n uint64) error {
		p.Fill(scratch[:n], off)
		if i := bytes.Index(scratch[:n], one); i >= 0 {
			at = new(off + uint64(i))
		}
		return nil
	})
	return at
}
