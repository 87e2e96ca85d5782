package verify

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

const chunk = 2 << 20

var (
	pattern = Pattern{Seed: 42}
	starts  = []uint64{0, chunk, 2 * chunk}
)

func filled() []byte {
	b := make([]byte, 3*chunk)
	pattern.Fill(b, 0)
	return b
}

// check is the result of both ways to check.
func check(t *testing.T, mode Mode, b []byte) Result {
	t.Helper()
	return bothWays(t, pattern, mode, b, starts)
}

func bothWays(t *testing.T, p Pattern, mode Mode, b []byte, starts []uint64) Result {
	t.Helper()
	r, err := p.Check(t.Context(), mode, uint64(len(b)), starts, viewOf(b))
	require.NoError(t, err)
	require.Zero(t, r.ByDevice)
	by, err := p.CheckBy(t.Context(), mode, uint64(len(b)), starts, comparer(b), viewOf(b))
	require.NoError(t, err)
	require.Equal(t, r.Bytes, by.ByDevice)
	by.ByDevice = 0
	require.Equal(t, r, by)
	return r
}

// viewOf is the View of a slice.
func viewOf(b []byte) View {
	return func(_ []byte, off, n uint64) ([]byte, error) { return b[off : off+n], nil }
}

// comparer compares as a device does.
func comparer(b []byte) Compare {
	return func(off, n uint64, p Pattern) (bad, first uint64, err error) {
		bad, at := p.differ(b[off:off+n], 0)
		return bad, uint64(at), nil
	}
}

// A device that finds a wrong byte which is not there, or elsewhere, is not believed.
func TestWrongComparisonIsFound(t *testing.T) {
	b := filled()
	says := func(bad, first uint64) error {
		_, err := pattern.CheckBy(t.Context(), Full, uint64(len(b)), starts, func(uint64, uint64, Pattern) (uint64, uint64, error) {
			return bad, first, nil
		}, viewOf(b))
		return err
	}
	require.NoError(t, says(0, 0))
	for _, first := range []uint64{0, 7, 3*chunk - 1} {
		require.ErrorContains(t, says(1, first), "and the host does not")
	}
	for _, first := range []uint64{3 * chunk, 1 << 63} {
		require.ErrorContains(t, says(1, first), "beyond")
	}
	b[chunk+2] ^= 1
	require.NoError(t, says(1, chunk+2))
	for _, first := range []uint64{chunk + 1, chunk + 3, chunk + 8} {
		require.ErrorContains(t, says(1, first), "and the host does not")
	}
}

func TestCheckByReturnsErrors(t *testing.T) {
	broken := errors.New("broken")
	wrong := func(_, _ uint64, _ Pattern) (uint64, uint64, error) { return 1, 0, nil }
	_, err := pattern.CheckBy(t.Context(), Full, chunk, starts, func(_, _ uint64, _ Pattern) (uint64, uint64, error) { return 0, 0, broken }, nil)
	require.ErrorIs(t, err, broken)
	_, err = pattern.CheckBy(t.Context(), Full, chunk, starts, wrong, func([]byte, uint64, uint64) ([]byte, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pattern.CheckBy(ctx, Full, chunk, starts, wrong, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// Whatever word stands in memory, it is found where it belongs.
func TestFind(t *testing.T) {
	for _, off := range []uint64{0, 8, chunk - 8, 3*chunk - 8} {
		require.Equal(t, off, *pattern.find(t.Context(), pattern.bytes(off, word), 3*chunk))
		require.Nil(t, pattern.find(t.Context(), pattern.bytes(off, word), off))
	}
	require.Nil(t, pattern.find(t.Context(), bytes.Repeat([]byte{Poison}, word), 3*chunk))
}

// One byte that is changed, wherever it is, is the one that is found.
func FuzzOneByteIsFound(f *testing.F) {
	f.Add(uint64(1), uint16(1000), uint16(999), byte(1))
	f.Add(uint64(2), uint16(8), uint16(0), byte(0x80))
	f.Fuzz(func(t *testing.T, seed uint64, size, at uint16, change byte) {
		if at >= size || change == 0 {
			t.Skip("changes nothing")
		}
		p := Pattern{Seed: seed}
		b := make([]byte, size)
		p.Fill(b, 0)
		b[at] ^= change
		r := bothWays(t, p, Full, b, []uint64{0})
		require.Equal(t, uint64(1), r.Errors)
		require.Equal(t, uint64(at), r.FirstBad.Offset)
		require.Equal(t, b[at]^change, r.FirstBad.Expected)
		require.Equal(t, b[at], r.FirstBad.Got)
	})
}

func TestFillInPiecesIsFillAtOnce(t *testing.T) {
	whole, pieces := make([]byte, 1003), make([]byte, 1003)
	pattern.Fill(whole, 0)
	for off := 0; off < len(pieces); off += 40 {
		pattern.Fill(pieces[off:min(off+40, len(pieces))], uint64(off))
	}
	require.Equal(t, whole, pieces)
}

func TestCheckPasses(t *testing.T) {
	r := check(t, Full, filled())
	require.Equal(t, Result{Mode: Full, Bytes: 3 * chunk}, r)
	require.Equal(t, Result{Mode: Edges, Bytes: 6 * edge}, check(t, Edges, filled()))
	require.Equal(t, Result{Mode: Off}, check(t, Off, filled()))

	odd := filled()[:chunk+13]
	require.Equal(t, Result{Mode: Full, Bytes: chunk + 13}, check(t, Full, odd))
	odd[chunk+12] ^= 1
	require.Equal(t, uint64(chunk+12), check(t, Full, odd).FirstBad.Offset)
}

func TestOneByteIsFound(t *testing.T) {
	for _, off := range []uint64{0, 5, chunk - 1, chunk, 2*chunk + 4095, 3*chunk - 1} {
		b := filled()
		want := b[off]
		b[off] ^= 0x10
		for _, mode := range []Mode{Full, Edges} {
			r := check(t, mode, b)
			require.Equal(t, uint64(1), r.Errors)
			require.Equal(t, &Bad{Offset: off, Chunk: int(off / chunk), Expected: want, Got: want ^ 0x10}, r.FirstBad)
		}
	}
}

// The pattern of other tools repeats every 2 MiB, and there this passes.
func TestSwappedChunksAreFound(t *testing.T) {
	for _, mode := range []Mode{Full, Edges} {
		b := filled()
		held := bytes.Clone(b[:chunk])
		copy(b[:chunk], b[2*chunk:])
		copy(b[2*chunk:], held)
		r := check(t, mode, b)
		require.NotNil(t, r.FirstBad)
		require.Less(t, r.FirstBad.Offset, uint64(8), "in the first word: its first byte may be the same by chance")
		require.Equal(t, uint64(2*chunk), *r.FirstBad.Holds, "it says where the data belong")
	}
}

func TestStaleDestinationIsFound(t *testing.T) {
	b := filled()
	for i := range b[chunk : 2*chunk] {
		b[chunk+i] = Poison
	}
	r := check(t, Full, b)
	require.Equal(t, uint64(chunk), r.FirstBad.Offset)
	require.Equal(t, 1, r.FirstBad.Chunk)
	require.Equal(t, byte(Poison), r.FirstBad.Got)
	require.Nil(t, r.FirstBad.Holds)

	old := make([]byte, 3*chunk)
	Pattern{Seed: 41}.Fill(old, 0)
	require.NotZero(t, check(t, Full, old).Errors, "another run's data are no match")
}

func TestReadErrorIsReturned(t *testing.T) {
	broken := errors.New("broken")
	_, err := pattern.Check(t.Context(), Full, chunk, starts, func([]byte, uint64, uint64) ([]byte, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
}

func BenchmarkCheck(b *testing.B) {
	buf := make([]byte, 64<<20)
	pattern.Fill(buf, 0)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		_, err := pattern.Check(b.Context(), Full, uint64(len(buf)), starts[:1], viewOf(buf))
		require.NoError(b, err)
	}
}
