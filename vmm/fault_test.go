package vmm_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// picture is all of a range or reservation that contract 2 is about.
type picture struct {
	Len, Cap uint64
	Segments [][2]uint64
	Access   [][]vmm.Access // per segment, per device
	Contents [32]byte       // their sum
	Gen      uint64
}

// watched is what picture can show.
type watched interface {
	Segments() []vmm.Segment
	Generation() uint64
}

func (w *world) picture(o watched) picture {
	w.t.Helper()
	w.registered("")
	p := picture{Gen: o.Generation()}
	for _, s := range o.Segments() {
		p.Segments = append(p.Segments, [2]uint64{uint64(s.Addr), s.Size})
		var all []vmm.Access
		for i := range w.devs {
			a, err := w.drv.Access(s.Addr, vmm.Location{Kind: vmm.LocationDevice, ID: i})
			require.NoError(w.t, err)
			all = append(all, a)
		}
		p.Access = append(p.Access, all)
	}
	if g, ok := o.(*vmm.Range); ok {
		p.Len, p.Cap, p.Contents = g.Len(), g.Cap(), w.contents(g)
	}
	return p
}

// contents sums a range without its own means.
func (w *world) contents(g *vmm.Range) [32]byte {
	w.t.Helper()
	b := make([]byte, g.Len())
	require.NoError(w.t, g.Device().CopyOut(b, g.Ptr()))
	return sha256.Sum256(b)
}

// scene is a world in the state before the operation under test.
type scene struct {
	do    func() error
	obj   watched // nil where there is nothing to compare
	close func() error
}

// operation is one public operation that makes several driver calls.
type operation struct {
	name  string
	kind  kind
	scene func(t testing.TB, w *world) scene
}

// kind is what a failed operation may leave behind.
type kind int

const (
	exact   kind = iota // nothing
	roomy               // capacity that was gained
	granted             // after a second fault, grants that the library knows of
	ending              // something that only Close works on
)

func ranged(t testing.TB, w *world, n int) *vmm.Range {
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 256 * page, Chunk: page})
	require.NoError(t, err)
	w.register(g)
	require.NoError(t, g.Append(pattern(n, 7)))
	return g
}

// holed is a reservation with two runs of two chunks each.
func holed(t testing.TB, w *world) *vmm.Reservation {
	r, err := w.devs[0].Reserve(64*page, vmm.ReserveOptions{})
	require.NoError(t, err)
	w.register(r)
	for _, off := range []uint64{0, 8 * page} {
		a, b := chunk(t, w, page), chunk(t, w, 2*page)
		require.NoError(t, r.Map(off, a, b))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
	return r
}

func chunk(t testing.TB, w *world, size uint64) *vmm.Chunk {
	c, err := w.devs[0].Create(size, vmm.Prop{})
	require.NoError(t, err)
	return c
}

func operations() []operation {
	onRange := func(f func(g *vmm.Range) error) func(testing.TB, *world) scene {
		return func(t testing.TB, w *world) scene {
			g := ranged(t, w, 3*page)
			return scene{do: func() error { return f(g) }, obj: g, close: g.Close}
		}
	}
	onHoles := func(f func(w *world, r *vmm.Reservation) error) func(testing.TB, *world) scene {
		return func(t testing.TB, w *world) scene {
			r := holed(t, w)
			return scene{do: func() error { return f(w, r) }, obj: r, close: r.Close}
		}
	}
	return []operation{
		{"Range.Grow", exact, onRange(func(g *vmm.Range) error { return g.Grow(3 * page) })},
		{"Range.Grow of cached memory", exact, func(t testing.TB, w *world) scene {
			g := ranged(t, w, 3*page)
			w.devs[0].SetReleaseThreshold(64 * page)
			keepChunks(t, w, 1, 1)
			return scene{do: func() error { return g.Grow(3 * page) }, obj: g, close: g.Close}
		}},
		{"Range.Grow of zeroed memory", exact, func(t testing.TB, w *world) scene {
			w.devs[0].SetReleaseThreshold(64 * page)
			keepChunks(t, w, 1, 1)
			g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 256 * page, Chunk: page, Zero: true})
			w.register(g)
			return scene{do: func() error { return g.Grow(3 * page) }, obj: g, close: g.Close}
		}},
		{"Range.Grow of supplied memory", exact, func(t testing.TB, w *world) scene {
			g, _ := supplied(t, w)
			require.NoError(t, g.Append(pattern(page, 7)))
			return scene{do: func() error { return g.Grow(3 * page) }, obj: g, close: g.Close}
		}},
		{"Range.Append to supplied memory", roomy, func(t testing.TB, w *world) scene {
			g, _ := supplied(t, w)
			require.NoError(t, g.Append(pattern(page, 7)))
			return scene{do: func() error { return g.Append(pattern(3*page, 9)) }, obj: g, close: g.Close}
		}},
		{"Range.Append", roomy, onRange(func(g *vmm.Range) error { return g.Append(pattern(2*page, 9)) })},
		{"Range.AppendRows", roomy, onRange(func(g *vmm.Range) error { return g.AppendRows(pattern(2*page, 9), 64, 100) })},
		{"Range.ReadRowsAt", exact, onRange(func(g *vmm.Range) error {
			_, err := g.ReadRowsAt(make([]byte, page), 5, 64, 100)
			return err
		})},
		{"Range.ReadFrom", roomy, onRange(func(g *vmm.Range) error {
			_, err := g.ReadFrom(bytes.NewReader(pattern(4096, 9))) // in one piece
			return err
		})},
		{"Range.WriteTo", exact, onRange(func(g *vmm.Range) error {
			_, err := g.WriteTo(new(bytes.Buffer))
			return err
		})},
		{"Range.ReadAt", exact, onRange(func(g *vmm.Range) error {
			_, err := g.ReadAt(make([]byte, page), 5)
			return err
		})},
		{"Range.Clip", exact, func(t testing.TB, w *world) scene {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(3*page))
			return scene{do: g.Clip, obj: g, close: g.Close}
		}},
		{"Range.Clip with named streams", exact, func(t testing.TB, w *world) scene {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grow(3*page))
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			require.NoError(t, g.UsedBy(s))
			return scene{do: g.Clip, obj: g, close: func() error {
				require.NoError(t, s.Close())
				return g.Close()
			}}
		}},
		{"Range.Clip of granted memory", exact, func(t testing.TB, w *world) scene {
			g := ranged(t, w, 2*page)
			require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
			require.NoError(t, g.Grow(3*page))
			return scene{do: g.Clip, obj: g, close: g.Close}
		}},
		{"Range.Close", ending, onRange(func(g *vmm.Range) error { return g.Close() })},
		{"Reservation.Map", exact, func(t testing.TB, w *world) scene {
			r := holed(t, w)
			a, b := chunk(t, w, page), chunk(t, w, page)
			return scene{do: func() error { return r.Map(3*page, a, b, a) }, obj: r, close: func() error {
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
				return r.Close()
			}}
		}},
		{"Reservation.Unmap", exact, onHoles(func(_ *world, r *vmm.Reservation) error { return r.Unmap(8*page, 3*page) })},
		{"Reservation.UnmapNow", exact, onHoles(func(_ *world, r *vmm.Reservation) error { return r.UnmapNow(8*page, 3*page) })},
		{"Reservation.Grant", exact, onHoles(func(w *world, r *vmm.Reservation) error {
			return r.Grant(vmm.AccessReadWrite, w.devs[1:]...)
		})},
		{"Reservation.Grant of less", exact, func(t testing.TB, w *world) scene {
			r := holed(t, w)
			require.NoError(t, r.Grant(vmm.AccessReadWrite, w.devs[1]))
			return scene{do: func() error { return r.Grant(vmm.AccessRead, w.devs[1:]...) }, obj: r, close: r.Close}
		}},
		{"Reservation.Revoke", exact, func(t testing.TB, w *world) scene {
			r := holed(t, w)
			require.NoError(t, r.Grant(vmm.AccessReadWrite, w.devs[1:]...))
			return scene{do: func() error { return r.Revoke(w.devs[1:]...) }, obj: r, close: r.Close}
		}},
		{"Reservation.Close", ending, onHoles(func(_ *world, r *vmm.Reservation) error { return r.Close() })},
		{"EnablePeers", granted, func(t testing.TB, w *world) scene {
			g, h := ranged(t, w, 2*page), ranged(t, w, page)
			return scene{do: func() error { return vmm.EnablePeers(vmm.AccessRead, w.devs, g, h) }, obj: g, close: func() error {
				require.NoError(t, h.Close())
				return g.Close()
			}}
		}},
		{"EnablePeers of a reservation", granted, func(t testing.TB, w *world) scene {
			r, g := holed(t, w), ranged(t, w, page)
			return scene{do: func() error { return vmm.EnablePeers(vmm.AccessRead, w.devs, r, g) }, obj: r, close: func() error {
				require.NoError(t, g.Close())
				return r.Close()
			}}
		}},
		{"Device.NewRange", exact, func(t testing.TB, w *world) scene {
			var g *vmm.Range
			return scene{do: func() (err error) {
				g, err = w.devs[0].NewRange(vmm.RangeOptions{Max: page, Share: vmm.ShareFD})
				return err
			}, close: func() error { return g.Close() }}
		}},
		{"Device.Alloc", exact, func(t testing.TB, w *world) scene {
			var g *vmm.Range
			return scene{do: func() (err error) { g, err = w.devs[0].Alloc(5 * page); return err },
				close: func() error { return g.Close() }}
		}},
		{"Device.Reserve", exact, func(t testing.TB, w *world) scene {
			var r *vmm.Reservation
			return scene{do: func() (err error) { r, err = w.devs[0].Reserve(page, vmm.ReserveOptions{}); return err },
				close: func() error { return r.Close() }}
		}},
		{"Stream.Record", exact, func(t testing.TB, w *world) scene {
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			var e *vmm.Event
			return scene{do: func() (err error) { e, err = s.Record(); return err }, close: func() error {
				require.NoError(t, e.Close())
				return s.Close()
			}}
		}},
		{"Device.Close", ending, func(t testing.TB, w *world) scene {
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			e, err := s.Record()
			require.NoError(t, err)
			require.NoError(t, e.Close())
			require.NoError(t, s.Close())
			return scene{do: w.devs[0].Close, close: w.devs[0].Close}
		}},
		{"Stream.Close", ending, func(t testing.TB, w *world) scene {
			s, err := w.devs[0].NewStream()
			require.NoError(t, err)
			return scene{do: s.Close, close: s.Close}
		}},
	}
}

// TestFaultAtEveryCall fails call i of every operation, and then call i together with each
// call after it: contract 2, literally.
func TestFaultAtEveryCall(t *testing.T) {
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			calls := undisturbed(t, op)
			require.Greater(t, len(calls), 1, "an operation of several calls: %v", calls)
			for i := 1; i <= len(calls); i++ {
				after := failOnce(t, op, i)
				for j := 1; j <= after; j++ {
					failTwice(t, op, i, i+j)
				}
			}
		})
	}
}

// undisturbed returns the calls that the operation makes.
func undisturbed(t *testing.T, op operation) []string {
	t.Helper()
	w := unstaged(t)
	sc := op.scene(t, w)
	_, _, err := w.devs[0].MemInfo() // makes the context, as below
	require.NoError(t, err)
	w.arm()
	require.NoError(t, sc.do())
	calls := w.disarm()
	require.NoError(t, sc.close())
	w.end()
	return calls
}

// failOnce fails call i alone: everything is as before and the operation works at the next
// try. It returns how many calls came after call i.
func failOnce(t *testing.T, op operation, i int) (after int) {
	t.Helper()
	w := unstaged(t)
	sc := op.scene(t, w)
	var before picture
	if sc.obj != nil {
		before = w.picture(sc.obj)
	}
	free := w.spare()

	w.arm(i)
	err := sc.do()
	calls := w.disarm()
	note := fmt.Sprintf("call %d of %v: %v", i, calls, err)
	if err == nil {
		// Few calls may fail without an error. Memory that the driver does not release is counted.
		require.True(t, forgiven(calls, []int{i}), note)
		require.Equal(t, calls[i-1] == "Release", w.devs[0].Stats().Quarantined > 0, note)
	} else {
		isInjected(w, err)
		if op.kind != ending && sc.obj != nil {
			w.same(before, sc.obj, op.kind, note)
		}
		if op.kind == exact || op.kind == granted {
			require.Equal(t, free, w.spare(), note)
			require.Zero(t, w.devs[0].Stats().Quarantined, note)
		}
		require.NoError(t, sc.do(), note)
	}
	require.NoError(t, sc.close(), note)
	w.end()
	return len(calls) - i
}

// filledAgain reports whether calls i and k were the two waits for a fill of new memory, and
// the growth filled it once more.
func filledAgain(calls []string, i, k int) bool {
	return k == i+1 && calls[k-1] == "SyncStream" && slices.Equal(calls[i-2:i], []string{"Fill", "SyncStream"}) &&
		slices.Equal(calls[len(calls)-2:], []string{"Fill", "SyncStream"})
}

// spare says how much memory of the first device is unused, cached memory included.
func (w *world) spare() uint64 {
	w.t.Helper()
	free, _, err := w.devs[0].MemInfo()
	require.NoError(w.t, err)
	return free + w.devs[0].Stats().Cached
}

// failTwice fails call i and call k, which undoes it or comes after it. Length and contents
// are as before. What could not be undone is quarantined and counted, and the rest is as
// before. Trying again mends it or returns the error, and Close releases everything.
func failTwice(t *testing.T, op operation, i, k int) {
	t.Helper()
	w := unstaged(t)
	sc := op.scene(t, w)
	var before picture
	if sc.obj != nil {
		before = w.picture(sc.obj)
	}
	_, _, err := w.devs[0].MemInfo()
	require.NoError(t, err)
	w.arm(i, k)
	err = sc.do()
	calls := w.disarm()
	note := fmt.Sprintf("calls %d and %d of %v: %v", i, k, calls, err)
	quarantined := w.devs[0].Stats().Quarantined
	if err != nil {
		isInjected(w, err)
		if g, ok := sc.obj.(*vmm.Range); ok && op.kind != ending {
			require.Equal(t, before.Len, g.Len(), note)
			require.Equal(t, before.Contents, w.contents(g), note)
			require.GreaterOrEqual(t, g.Cap(), before.Cap, note)
			if g.Stats().Quarantined > 0 {
				require.ErrorIs(t, g.Grow(g.Cap()-g.Len()+1), errInjected, "growth past it: "+note)
			}
		}
		if op.kind == granted {
			require.NoError(t, sc.obj.(interface {
				Revoke(devs ...*vmm.Device) error
			}).Revoke(w.devs[1:]...), note)
		}
		if op.kind != ending && sc.obj != nil {
			w.sameButQuarantined(before, sc.obj, op.kind, quarantined, note)
		}
		if err := sc.do(); err != nil {
			require.NotZero(t, quarantined, note)
			require.ErrorIs(t, err, errInjected, "what is quarantined says why: "+note)
		} else if _, mapped := sc.obj.(*vmm.Reservation); mapped && op.kind == exact {
			require.Zero(t, w.devs[0].Stats().Quarantined, "healed: "+note)
		}
	} else {
		require.True(t, forgiven(calls, []int{i, k}) || filledAgain(calls, i, k), note)
	}
	require.NoError(t, sc.close(), note)
	w.end()
}

// isInjected checks that the error is typed and says operation and device.
func isInjected(w *world, err error) {
	w.t.Helper()
	require.ErrorIs(w.t, err, errInjected)
	var op *vmm.OpError
	require.ErrorAs(w.t, err, &op)
	require.Equal(w.t, w.devs[0].String(), op.Device)
	require.NotEmpty(w.t, op.Op)
	var call *driver.CallError
	require.ErrorAs(w.t, err, &call)
}

// sameButQuarantined is same, apart from the access of what is quarantined.
func (w *world) sameButQuarantined(before picture, obj watched, k kind, quarantined uint64, note string) {
	w.t.Helper()
	now := w.picture(obj)
	if quarantined == 0 {
		w.same(before, obj, k, note)
		return
	}
	if k == exact {
		require.Equal(w.t, before.Segments, now.Segments, note)
	}
	require.Equal(w.t, before.Gen, now.Gen, note)
	inDoubt := map[uint64]bool{}
	for _, o := range w.devs[0].Report().Open {
		for _, c := range o.Chunks {
			if c.Quarantined != "" {
				inDoubt[uint64(o.Addr)+c.Off] = true
			}
		}
	}
	for i, s := range before.Segments {
		if !inDoubt[s[0]] {
			require.Equal(w.t, before.Access[i], now.Access[i], note)
		}
	}
}

// same checks that the object is as it was, except for gained capacity.
func (w *world) same(before picture, obj watched, k kind, note string) {
	w.t.Helper()
	now := w.picture(obj)
	if k == roomy {
		require.GreaterOrEqual(w.t, now.Cap, before.Cap, note)
		now.Cap = before.Cap
		now.Segments = now.Segments[:len(before.Segments)]
		now.Access = now.Access[:len(before.Access)]
	}
	require.Equal(w.t, before, now, note)
}
