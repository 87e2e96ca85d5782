package vmm_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestMirrorOfSealedMemory: an owner who says that its bytes change no more is believed, whatever
// access the device still has.
func TestMirrorOfSealedMemory(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		owner := &sealedOwner{}
		r, err := d.Reserve(page, vmm.ReserveOptions{Owner: owner})
		require.NoError(t, err)
		c := chunk(t, w, page)
		require.NoError(t, r.Map(0, c))
		require.NoError(t, d.CopyIn(r.Ptr(), pattern(page, 7)))
		m := mirror(t, d, r.Ptr(), page, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: pinned})
		clear(m.Bytes()[:page/2])
		require.NoError(t, m.Flush())
		want := out(t, d, r.Ptr(), page)
		require.Equal(t, m.Bytes(), want)

		owner.sealed.Store(true)
		clear(m.Bytes())
		require.ErrorIs(t, m.Flush(), vmm.ErrPermission)
		require.ErrorIs(t, m.Close(), vmm.ErrPermission)
		require.Equal(t, want, out(t, d, r.Ptr(), page))
		require.NoError(t, m.Refresh())
		require.Equal(t, want, m.Bytes())
		require.NoError(t, m.Discard())
		_, err = d.NewMirror(r.Ptr(), page, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: pinned})
		require.ErrorIs(t, err, vmm.ErrPermission)
		m = mirror(t, d, r.Ptr(), page, vmm.MirrorOptions{Init: true, MaxPinned: pinned})
		require.Equal(t, want, m.Bytes())
		require.NoError(t, m.Close())
		require.NoError(t, c.Close())
		require.NoError(t, r.Close())
	})
}

type sealedOwner struct{ sealed atomic.Bool }

func (o *sealedOwner) Sealed() bool { return o.sealed.Load() }

// TestMirrorModel: after any sequence of calls, mirror and memory are what two slices are after
// the same.
func TestMirrorModel(t *testing.T) {
	onMirrors(t, func(t *testing.T, w *world, pinned uint64) {
		d := w.devs[0]
		const n = 2 * page
		g := ranged(t, w, n)
		rapid.Check(t, func(r *rapid.T) {
			memory := pattern(n, 7)
			require.NoError(r, d.CopyIn(g.Ptr(), memory))
			part := func(n int, what string) (off, end int) {
				off = rapid.IntRange(0, n).Draw(r, what)
				return off, rapid.IntRange(off, n).Draw(r, what+"'s end")
			}
			off, end := part(n, "mirror")
			size := end - off
			init := rapid.Bool().Draw(r, "init")
			m, err := d.NewMirror(g.Ptr()+vmm.Ptr(off), uint64(size), vmm.MirrorOptions{Init: init, Write: true, MaxPinned: pinned})
			require.NoError(r, err)
			defer m.Discard() //nolint:errcheck // of a sequence that has failed
			want, dirty, marked := make([]byte, size), make([]bool, size), false
			if init {
				copy(want, memory[off:end])
			}
			writtenBack := func() {
				for i, b := range want {
					if dirty[i] || !marked {
						memory[off+i] = b
					}
				}
				clear(dirty)
			}
			for step := range rapid.IntRange(1, 20).Draw(r, "steps") {
				switch rapid.SampledFrom([]string{"write", "mark", "flush", "refresh", "beside"}).Draw(r, "step") {
				case "write":
					a, b := part(size, "write")
					for i := a; i < b; i++ {
						want[i] = byte(step)
					}
					copy(m.Bytes()[a:b], want[a:b])
				case "mark":
					a, b := part(size, "mark")
					require.NoError(r, m.MarkDirty(uint64(a), uint64(b-a)))
					marked = true
					for i := a; i < b; i++ {
						dirty[i] = true
					}
				case "flush":
					require.NoError(r, m.Flush())
					writtenBack()
				case "refresh":
					require.NoError(r, m.Refresh())
					copy(want, memory[off:end])
					clear(dirty)
				case "beside": // by a kernel, say
					a, b := part(n, "beside")
					copy(memory[a:b], pattern(b-a, byte(step)))
					require.NoError(r, d.CopyIn(g.Ptr()+vmm.Ptr(a), memory[a:b]))
				}
				require.Equal(r, want, m.Bytes())
			}
			require.NoError(r, m.Close())
			writtenBack()
			got := make([]byte, n)
			require.NoError(r, d.CopyOut(got, g.Ptr()))
			require.Equal(r, memory, got)
		})
		require.NoError(t, g.Close())
	})
}
