package vmm_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// BenchmarkBesideHeldOperation measures an append that grows a range while an operation on another
// range of the device waits.
func BenchmarkBesideHeldOperation(b *testing.B) {
	const most = 1024 * page
	for _, name := range append([]string{"nothing"}, slices.Sorted(maps.Keys(heldUps))...) {
		b.Run("held="+name, func(b *testing.B) {
			w := newWorld(b, 2)
			d := w.devs[0]
			used, mine := newStream(b, d), newStream(b, d)
			h, held := heldUps[name]
			g := heldRange(w, h, used)
			open, end := func() {}, func() error { return nil }
			if held {
				var op func() error
				open, op = h.hold(w, g, used)
				end = parked(op)
			}
			next := func() *vmm.Range {
				r := newRange(b, d, vmm.RangeOptions{Max: most, Chunk: page})
				require.NoError(b, r.UsedBy(mine))
				return r
			}
			r, data := next(), make([]byte, page)
			for b.Loop() {
				if err := r.Append(data); err != nil {
					b.Fatal(err)
				}
				if r.Len() == most {
					b.StopTimer()
					require.NoError(b, r.Close())
					r = next()
					b.StartTimer()
				}
			}
			require.NoError(b, r.Close())
			open()
			require.NoError(b, end())
			for _, x := range []interface{ Close() error }{g, used, mine} {
				require.NoError(b, x.Close())
			}
			w.end()
		})
	}
}

// newStream is a stream that the caller closes.
func newStream(t testing.TB, d *vmm.Device) *vmm.Stream {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	return s
}
