// Package verify fills memory with a pattern and finds the first word that is
// wrong. Each word depends on its offset. A pattern that repeats every chunk would
// not show two swapped chunks; this one never repeats.
package verify

import (
	"encoding/binary"
	"math/bits"
)

const word = 8 // bytes

// Pattern gives each 8-byte word of a buffer a value that depends on the seed
// and the word's absolute offset.
type Pattern struct{ Seed uint64 }

// From is the pattern as it goes on from off, a multiple of 8: what lies there in a buffer
// that was filled from its beginning.
func (p Pattern) From(off uint64) Pattern { return Pattern{p.Seed + off/word*golden} }

// Factors of word, each with its inverse: the product of both is 1. Odd numbers have one.
const (
	golden, ungolden = 0x9e3779b97f4a7c15, 0xf1de83e19937733d
	mix1, unmix1     = 0xbf58476d1ce4e5b9, 0x96de1b173f119089
	mix2, unmix2     = 0x94d049bb133111eb, 0x319642b2d24d8ec3
)

// word returns the i-th word. The mixing is that of splitmix64: every bit of the
// index changes every bit of the word, and no two indices have the same word.
func (p Pattern) word(i uint64) uint64 {
	x := p.Seed + (i+1)*golden
	x = (x ^ x>>30) * mix1
	x = (x ^ x>>27) * mix2
	return x ^ x>>31
}

// index undoes word: the index of the word whose value is x.
func (p Pattern) index(x uint64) uint64 {
	x = unshift(x, 31) * unmix2
	x = unshift(x, 27) * unmix1
	x = unshift(x, 30)
	return (x-p.Seed)*ungolden - 1
}

// unshift undoes x ^ x>>n.
func unshift(x uint64, n int) uint64 {
	for ; n < 64; n *= 2 {
		x ^= x >> n
	}
	return x
}

// Fill writes what belongs at [off, off+len(dst)). off is a multiple of 8.
func (p Pattern) Fill(dst []byte, off uint64) {
	i := off / word
	for ; len(dst) >= word; dst = dst[word:] {
		binary.LittleEndian.PutUint64(dst, p.word(i))
		i++
	}
	var last [word]byte
	binary.LittleEndian.PutUint64(last[:], p.word(i))
	copy(dst, last[:])
}

// differ compares got with what belongs at off, a multiple of 8. It returns how
// many bytes differ and the index of the first of them in got.
func (p Pattern) differ(got []byte, off uint64) (bad uint64, first int) {
	i := off / word
	for at := 0; at < len(got); at += word {
		var x uint64
		if rest := got[at:]; len(rest) >= word {
			x = binary.LittleEndian.Uint64(rest) ^ p.word(i)
		} else {
			x = tail(rest) ^ p.word(i)&(1<<(8*len(rest))-1)
		}
		i++
		for ; x != 0; bad++ {
			n := bits.TrailingZeros64(x) / 8
			if bad == 0 {
				first = at + n
			}
			x &^= 0xff << (8 * n)
		}
	}
	return bad, first
}

// tail returns up to 8 bytes as the low end of a word.
func tail(b []byte) uint64 {
	var last [word]byte
	copy(last[:], b)
	return binary.LittleEndian.Uint64(last[:])
}

// at returns the byte that belongs at off.
func (p Pattern) at(off uint64) byte {
	return byte(p.word(off/word) >> (8 * (off % word)))
}
