package kernel

import (
	"encoding/binary"
	"math/bits"
)

// Pattern is what FillPattern writes and VerifyPattern expects: each 8-byte word depends on
// the seed and on its offset, and within one pattern no two words are the same. So it shows
// bytes that were never written, written twice, or written in the wrong place.
type Pattern struct{ Seed uint64 }

const (
	patternWord = 8                  // bytes
	golden      = 0x9e3779b97f4a7c15 // odd, so no two multiples below 1<<64 are the same
)

// From is the pattern as it goes on from off, a multiple of 8: what lies there in memory
// that was filled from its beginning.
func (p Pattern) From(off uint64) Pattern { return Pattern{p.Seed + off/patternWord*golden} }

// word returns the i-th word, in little-endian order. It is splitmix64: every bit of the
// index changes every bit of the word.
func (p Pattern) word(i uint64) uint64 {
	x := p.Seed + (i+1)*golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Fill writes the pattern, from its beginning, over all of dst.
func (p Pattern) Fill(dst []byte) {
	i := uint64(0)
	for ; len(dst) >= patternWord; dst = dst[patternWord:] {
		binary.LittleEndian.PutUint64(dst, p.word(i))
		i++
	}
	var last [patternWord]byte
	binary.LittleEndian.PutUint64(last[:], p.word(i))
	copy(dst, last[:])
}

// differ compares got with what Fill writes. It returns how many bytes differ and the index
// of the first of them.
func (p Pattern) differ(got []byte) (bad, first uint64) {
	for at := 0; at < len(got); at += patternWord {
		var last [patternWord]byte
		n := copy(last[:], got[at:])
		x := binary.LittleEndian.Uint64(last[:]) ^ p.word(uint64(at/patternWord))
		x &= 1<<(8*n) - 1
		for ; x != 0; bad++ {
			b := bits.TrailingZeros64(x) / 8
			if bad == 0 {
				first = uint64(at + b)
			}
			x &^= 0xff << (8 * b)
		}
	}
	return bad, first
}
