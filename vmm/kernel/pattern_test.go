package kernel_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// The first outputs of splitmix64 with this seed, as its author publishes them.
func TestPatternIsSplitmix64(t *testing.T) {
	p := kernel.Pattern{Seed: 1234567}
	for i, want := range []uint64{
		6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
	} {
		require.Equal(t, want, p.Word(uint64(i)))
	}
}

func TestPatternGoesOn(t *testing.T) {
	p := kernel.Pattern{Seed: 42}
	whole, pieces := make([]byte, 1003), make([]byte, 1003)
	p.Fill(whole)
	for off := 0; off < len(pieces); off += 40 {
		p.From(uint64(off)).Fill(pieces[off:min(off+40, len(pieces))])
	}
	require.Equal(t, whole, pieces)
}

func TestPatternDiffers(t *testing.T) {
	p := kernel.Pattern{Seed: 42}
	for _, size := range []int{0, 1, 7, 8, 9, 1003} {
		b := make([]byte, size)
		p.Fill(b)
		bad, first := p.Differ(b)
		require.Zero(t, bad)
		require.Zero(t, first)
		for _, at := range []int{0, size / 2, size - 1} {
			if size == 0 {
				continue
			}
			wrong := bytes.Clone(b)
			wrong[at] ^= 0x80
			wrong[size-1] ^= 0x11 // may be the same byte
			bad, first = p.Differ(wrong)
			want := uint64(2)
			if at == size-1 {
				want = 1
			}
			require.Equal(t, want, bad)
			require.Equal(t, uint64(at), first)
		}
	}
	filled := make([]byte, 64)
	p.Fill(filled)
	bad, _ := kernel.Pattern{Seed: 43}.Differ(filled)
	require.NotZero(t, bad, "another seed")
	bad, first := p.From(8).Differ(filled)
	require.NotZero(t, bad, "another place")
	require.Less(t, first, uint64(8))
}
