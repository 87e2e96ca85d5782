// Package verify fills memory with words that know where they belong, and finds
// the first that does not. A pattern that repeats every chunk cannot see two
// chunks swapped; this one never repeats.
package verify

import (
	"encoding/binary"
	"math/bits"
)

const word = 8 // bytes

// Pattern gives each 8-byte word of a buffer a value that depends on the seed
// and the word's absolute offset.
type Pattern struct{ Seed uint64 }

// golden is odd, so multiplying by it loses nothing and can be undone.
const golden = 0x9e3779b97f4a7c15

// word is the i-th word. The mixing is splitmix64's: every bit of the index
// reaches every bit of the word, and no two indices share a word.
func (p Pattern) word(i uint64) uint64 {
	x := p.Seed + (i+1)*golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// index undoes word: the index of the word whose value is x.
func (p Pattern) index(x uint64) uint64 {
	x = unshift(x, 31) * inverse(0x94d049bb133111eb)
	x = unshift(x, 27) * inverse(0xbf58476d1ce4e5b9)
	x = unshift(x, 30)
	return (x-p.Seed)*inverse(golden) - 1
}

// unshift undoes x ^ x>>n.
func unshift(x uint64, n int) uint64 {
	for ; n < 64; n *= 2 {
		x ^= x >> n
	}
	return x
}

// inverse is the number that times odd is 1. Newton's step doubles the bits
// that are right, and odd is its own inverse in the lowest three.
func inverse(odd uint64) uint64 {
	x := odd
	for range 5 {
		x *= 2 - odd*x
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

// differ compares got with what belongs at off, a multiple of 8. It gives how
// many bytes differ and where in got the first of them is.
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

// tail is the last few bytes of a buffer as the low end of a word.
func tail(b []byte) uint64 {
	var last [word]byte
	copy(last[:], b)
	return binary.LittleEndian.Uint64(last[:])
}

// at is the byte that belongs at off.
func (p Pattern) at(off uint64) byte {
	return byte(p.word(off/word) >> (8 * (off % word)))
}
