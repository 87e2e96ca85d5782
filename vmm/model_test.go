package vmm_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestModel runs random operations on a Range, on a Reservation and on plain Go slices
// beside them, and wants the same results: 100,000 in all, a fifth of that in the quick suite
// and ten times as many in a soak.
// At the end everything is released.
func TestModel(t *testing.T) {
	steps := testgate.Effort(1000, 1000, 10000) // of 100 programs, or 20: rapid has fewer with -short
	var done atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, rt)
		actions := m.actions()
		names := make([]string, 0, len(actions))
		for name := range actions {
			names = append(names, name)
		}
		slices.Sort(names)
		for range steps {
			actions[rapid.SampledFrom(names).Draw(rt, "action")]()
			done.Add(1)
		}
		m.finish()
	})
	if !t.Failed() {
		require.GreaterOrEqual(t, done.Load(), int64(testgate.Effort(20, 100, 100)*steps))
	}
}

// With pages of a GPU's size, fewer of them: every byte is compared.
const (
	modelMax   = min(64*page, 16*mib)
	modelPages = min(32, 16*mib/page)
)

// model is a Range with the bytes it should hold, and a Reservation with the
// chunks that should be mapped in it.
type model struct {
	*rapid.T
	w *world

	g       *vmm.Range
	want    []byte
	ptr     vmm.Ptr
	holds   map[uint64][]func()
	granted vmm.Access

	slow

	registry *registry // of g

	r      *vmm.Reservation
	chunks []*piece
	placed []placement
	peer   vmm.Access
}

// piece is a kept chunk and what was last written to it, wherever it was mapped.
type piece struct {
	c    *vmm.Chunk
	data []byte
}

type placement struct {
	off uint64
	p   *piece
}

// modelDevices is 2, or 1 on a machine with one device: then there is no peer.
func modelDevices() int {
	if onCUDA {
		if all, err := vmm.Devices(); err == nil && len(all) < 3 { // the host is one of them
			return 1
		}
	}
	return 2
}

func newModel(t *testing.T, rt *rapid.T) *model {
	m := &model{T: rt, w: newWorld(t, modelDevices())}
	m.t = t
	m.open()
	r, err := m.w.devs[0].Reserve(modelPages*page, vmm.ReserveOptions{})
	require.NoError(rt, err)
	m.r = r
	m.w.register(r)
	m.begin()
	return m
}

func (m *model) open() {
	o := vmm.RangeOptions{Max: modelMax}
	if rapid.Bool().Draw(m.T, "fixed") {
		o.Chunk = 2 * page
	}
	if rapid.Bool().Draw(m.T, "ahead") {
		o.GrowAhead = page * rapid.Uint64Range(1, 8).Draw(m.T, "pages ahead")
	}
	g, err := m.w.devs[0].NewRange(o)
	require.NoError(m, err)
	m.registry = m.w.register(g)
	m.g, m.want, m.ptr, m.holds, m.granted = g, nil, g.Ptr(), map[uint64][]func(){}, vmm.AccessNone
	m.ahead, m.asleep = o.GrowAhead > 0, false
}

func (m *model) held() (n uint64) {
	for h := range m.holds {
		n = max(n, h)
	}
	return n
}

// check checks the cheap facts after every action on the range.
func (m *model) check() {
	require.Equal(m, m.ptr, m.g.Ptr())
	require.EqualValues(m, len(m.want), m.g.Len())
	least := m.g.Cap()
	require.LessOrEqual(m, m.g.Len(), least)
	require.LessOrEqual(m, least, m.g.Max())
	var sum uint64
	for _, s := range m.g.Segments() {
		require.Equal(m, m.ptr+vmm.Ptr(sum), s.Addr, "one after the other")
		sum += s.Size
	}
	// Growth ahead may map more, and show it a little later.
	require.LessOrEqual(m, least, sum)
	require.True(m, m.ahead || least == sum)
	m.w.registered("")
	m.budget()
}

func (m *model) actions() map[string]func() {
	all := map[string]func(){
		"append": m.append, "grow": m.grow, "set length": m.setLen, "clip": m.clip,
		"read": m.read, "write": m.write, "all": m.all, "hold": m.hold, "release": m.release,
		"grant": m.grant, "revoke": m.revoke, "peer": m.touch, "close": m.close,
		"chunk": m.chunk, "map": m.mapAnywhere, "unmap": m.unmap, "scribble": m.scribble,
		"watch": m.watch,
	}
	for name, f := range all {
		all[name] = func() { m.unlessAsleep(name, f) }
	}
	maps.Copy(all, m.slowActions())
	if len(m.w.devs) == 1 {
		delete(all, "grant")
		delete(all, "revoke")
		delete(all, "peer")
	}
	return all
}

// bytes is up to most bytes that differ from the last ones.
func (m *model) bytes(most int) []byte {
	return pattern(rapid.IntRange(0, most).Draw(m.T, "bytes"), rapid.Byte().Draw(m.T, "seed"))
}

func (m *model) append() {
	p := m.bytes(3 * page)
	err := m.g.Append(p)
	if len(m.want)+len(p) > modelMax {
		require.ErrorIs(m, err, vmm.ErrFull)
	} else if !m.scarce(err) {
		require.NoError(m, err)
		m.want = append(m.want, p...)
	}
	m.check()
}

func (m *model) grow() {
	n := rapid.Uint64Range(0, modelMax+page).Draw(m.T, "more")
	before := m.g.Cap()
	err := m.g.Grow(n)
	if uint64(len(m.want))+n > modelMax {
		require.ErrorIs(m, err, vmm.ErrFull)
		require.True(m, m.ahead || before == m.g.Cap())
	} else if !m.scarce(err) {
		require.NoError(m, err)
		require.GreaterOrEqual(m, m.g.Cap(), uint64(len(m.want))+n)
	}
	m.check()
}

// setLen moves down or, as after a kernel, up over bytes that were written.
func (m *model) setLen() {
	capacity := m.g.Cap()
	n := rapid.Uint64Range(0, capacity+1).Draw(m.T, "length")
	have := uint64(len(m.want))
	if n > have && n <= capacity {
		fill := pattern(int(n-have), byte(n))
		require.NoError(m, m.w.devs[0].CopyIn(m.ptr+vmm.Ptr(have), fill))
		m.want = append(m.want, fill...)
	}
	switch err := m.g.SetLen(n); {
	case n > capacity:
		if err == nil && m.ahead { // it fits by now; no action wrote that one byte
			m.want = append(m.want, make([]byte, int(n-have))...)
			require.NoError(m, m.w.devs[0].CopyIn(m.ptr+vmm.Ptr(have), m.want[have:]))
			break
		}
		require.ErrorIs(m, err, vmm.ErrBounds)
	case n < m.held():
		require.ErrorIs(m, err, vmm.ErrBusy)
	default:
		require.NoError(m, err)
		m.want = m.want[:n]
	}
	m.check()
}

func (m *model) clip() {
	require.NoError(m, m.g.Clip())
	if m.ahead {
		m.check()
		return
	}
	segs := m.g.Segments()
	if n := len(segs); n > 0 {
		require.Less(m, uint64(segs[n-1].Addr-m.ptr), m.g.Len(), "the last chunk holds data")
	} else {
		require.Zero(m, m.g.Len())
	}
	m.check()
}

func (m *model) read() {
	m.finishWork()
	off := rapid.IntRange(0, len(m.want)+10).Draw(m.T, "off")
	p := make([]byte, rapid.IntRange(0, 2*page).Draw(m.T, "n"))
	n, err := m.g.ReadAt(p, int64(off))
	want := m.want[min(off, len(m.want)):]
	want = want[:min(len(p), len(want))]
	require.Equal(m, len(want), n)
	require.True(m, bytes.Equal(want, p[:n]))
	if n < len(p) {
		require.Equal(m, io.EOF, err)
	} else {
		require.NoError(m, err)
	}
}

func (m *model) write() {
	off := rapid.IntRange(0, len(m.want)+10).Draw(m.T, "off")
	p := m.bytes(page)
	n, err := m.g.WriteAt(p, int64(off))
	if off+len(p) > len(m.want) {
		require.ErrorIs(m, err, vmm.ErrBounds)
		require.Zero(m, n)
	} else {
		require.NoError(m, err)
		require.Equal(m, len(p), n)
		copy(m.want[off:], p)
	}
	m.check()
}

func (m *model) all() {
	m.finishWork()
	var b bytes.Buffer
	_, err := m.g.WriteTo(&b)
	require.NoError(m, err)
	require.True(m, bytes.Equal(m.want, b.Bytes()))
	if h, err := m.g.Host(); onCUDA {
		require.ErrorIs(m, err, vmm.ErrNotSupported)
	} else {
		require.NoError(m, err)
		require.True(m, bytes.Equal(m.want, h))
		require.Equal(m, fmt.Sprintf("%#x", uint64(m.g.Ptr())), fmt.Sprintf("%p", h), "also of no bytes")
	}
}

func (m *model) hold() {
	n := rapid.Uint64Range(0, uint64(len(m.want))+1).Draw(m.T, "below")
	if n > uint64(len(m.want)) {
		_, err := m.g.Hold(0, m.g.Max()+1)
		require.ErrorIs(m, err, vmm.ErrBounds)
		return
	}
	release, err := m.g.Hold(0, n)
	require.NoError(m, err)
	m.holds[n] = append(m.holds[n], release)
}

func (m *model) release() {
	for n, fs := range m.holds {
		fs[0]()
		fs[0]()
		if m.holds[n] = fs[1:]; len(fs) == 1 {
			delete(m.holds, n)
		}
		return
	}
}

func (m *model) grant() {
	m.finishWork()
	a := rapid.SampledFrom([]vmm.Access{vmm.AccessRead, vmm.AccessReadWrite}).Draw(m.T, "access")
	if rapid.Bool().Draw(m.T, "range") {
		require.NoError(m, m.g.Grant(a, m.w.devs[1]))
		m.granted = a
	} else {
		require.NoError(m, m.r.Grant(a, m.w.devs[1]))
		m.peer = a
	}
}

func (m *model) revoke() {
	m.finishWork()
	if rapid.Bool().Draw(m.T, "range") {
		require.NoError(m, m.g.Revoke(m.w.devs[1]))
		m.granted = vmm.AccessNone
	} else {
		require.NoError(m, m.r.Revoke(m.w.devs[1]))
		m.peer = vmm.AccessNone
	}
}

// touch: the peer can do just what it was granted, on every chunk.
func (m *model) touch() {
	peer := m.w.devs[1]
	try := func(p vmm.Ptr, a vmm.Access) {
		b := make([]byte, 1)
		if err := peer.CopyOut(b, p); a >= vmm.AccessRead {
			require.NoError(m, err)
		} else {
			require.ErrorIs(m, err, vmm.ErrPermission)
		}
		if err := peer.CopyIn(p, b); a >= vmm.AccessReadWrite {
			require.NoError(m, err)
		} else {
			require.ErrorIs(m, err, vmm.ErrPermission)
		}
	}
	for _, s := range m.g.Segments() {
		try(s.Addr, m.granted)
	}
	for _, s := range m.r.Segments() {
		try(s.Addr, m.peer)
	}
}

func (m *model) close() {
	if len(m.holds) > 0 {
		require.ErrorIs(m, m.g.Close(), vmm.ErrBusy)
		m.check()
		return
	}
	if rapid.IntRange(0, 9).Draw(m.T, "really") > 0 {
		return
	}
	m.finishWork()
	require.NoError(m, m.g.Close())
	require.NoError(m, m.g.Close())
	require.ErrorIs(m, m.g.Append([]byte{1}), vmm.ErrClosed)
	m.unregister()
	m.open()
}

func (m *model) chunk() {
	if len(m.chunks) == 6 {
		p := m.chunks[0]
		require.NoError(m, p.c.Close())
		m.chunks = m.chunks[1:]
		return
	}
	size := page * rapid.Uint64Range(1, 4).Draw(m.T, "pages")
	c, err := m.w.devs[0].Create(size, vmm.Prop{})
	if m.scarce(err) {
		return
	}
	require.NoError(m, err)
	m.chunks = append(m.chunks, &piece{c: c, data: make([]byte, size)})
}

// mapAnywhere maps a kept chunk, old contents included, perhaps a second time.
func (m *model) mapAnywhere() {
	if len(m.chunks) == 0 {
		return
	}
	p := rapid.SampledFrom(m.chunks).Draw(m.T, "chunk")
	off := page * rapid.Uint64Range(0, modelPages).Draw(m.T, "page")
	size := p.c.Size()
	err := m.r.Map(off, p.c)
	if off+size > modelPages*page {
		require.ErrorIs(m, err, vmm.ErrBounds)
		return
	}
	for _, q := range m.placed {
		if off < q.off+q.p.c.Size() && q.off < off+size {
			require.ErrorIs(m, err, vmm.ErrInvalid)
			return
		}
	}
	require.NoError(m, err)
	m.placed = append(m.placed, placement{off, p})
	m.compare()
}

func (m *model) unmap() {
	m.finishWork()
	off := page * rapid.Uint64Range(0, modelPages).Draw(m.T, "page")
	size := page * rapid.Uint64Range(0, 6).Draw(m.T, "pages")
	var covered uint64
	whole := true
	for _, q := range m.placed {
		end := q.off + q.p.c.Size()
		if off < end && q.off < off+size {
			whole = whole && q.off >= off && end <= off+size
			covered += end - q.off
		}
	}
	gen := m.r.Generation()
	err := m.r.Unmap(off, size)
	switch {
	case size == 0 || off+size > modelPages*page:
		require.ErrorIs(m, err, vmm.ErrBounds)
	case !whole || covered != size:
		require.ErrorIs(m, err, vmm.ErrInvalid)
	default:
		require.NoError(m, err)
		require.Equal(m, gen+1, m.r.Generation())
		m.placed = slices.DeleteFunc(m.placed, func(q placement) bool { return q.off >= off && q.off < off+size })
	}
	m.compare()
}

func (m *model) scribble() {
	if len(m.placed) == 0 {
		return
	}
	q := rapid.SampledFrom(m.placed).Draw(m.T, "placed")
	p := pattern(page, rapid.Byte().Draw(m.T, "seed"))
	require.NoError(m, m.w.devs[0].CopyIn(m.r.Ptr()+vmm.Ptr(q.off), p))
	copy(q.p.data, p)
	m.compare()
}

// unregister ends the watch of the range, which leaves nothing registered.
func (m *model) unregister() {
	m.w.registered("")
	m.registry.stop()
	m.registry.stop()
	require.Empty(m, m.registry.have)
	require.Empty(m, m.registry.wrong)
	m.w.registries = slices.DeleteFunc(m.w.registries, func(r *registry) bool { return r == m.registry })
}

// watch replaces the watch of the range by another one.
func (m *model) watch() {
	m.unregister()
	m.registry = m.w.register(m.g)
	m.w.registered("")
}

// compare reads every placement: aliases and kept chunks show the same bytes.
func (m *model) compare() {
	m.w.registered("")
	require.Len(m, m.r.Segments(), len(m.placed))
	for _, q := range m.placed {
		b := make([]byte, q.p.c.Size())
		require.NoError(m, m.w.devs[0].CopyOut(b, m.r.Ptr()+vmm.Ptr(q.off)))
		require.True(m, bytes.Equal(q.p.data, b))
	}
}

func (m *model) finish() {
	m.end()
	m.all()
	for len(m.holds) > 0 {
		m.release()
	}
	require.NoError(m, m.g.Close())
	require.NoError(m, m.r.Close())
	for _, p := range m.chunks {
		require.NoError(m, p.c.Close())
	}
	m.w.end()
}
