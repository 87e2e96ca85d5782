package shareable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

const (
	spanPage = 4096
	spanOff  = 2*spanPage + 100 // in the second chunk, which begins at 1 page
	spanLen  = 3*spanPage + 7   // up to the fourth
)

// spans is a reservation with chunks of 1, 2, 1 and 3 pages, from the start on, and a server.
type spans struct {
	t   *testing.T
	dev *vmm.Device
	res *vmm.Reservation
	s   *Server
}

func newSpans(t *testing.T, o Options, hooks ...func(drivertest.Call) error) *spans {
	t.Helper()
	w := &spans{t: t, dev: pageDevice(t, hooks...)}
	var err error
	w.res, err = w.dev.Reserve(16*spanPage, vmm.ReserveOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.res.Close()) })
	at := uint64(0)
	for _, pages := range []uint64{1, 2, 1, 3} {
		w.mapChunk(at, pages*spanPage, vmm.ShareFD)
		at += pages * spanPage
	}
	all := make([]byte, at)
	for i := range all {
		all[i] = byte(i/spanPage*31 + i)
	}
	require.NoError(t, w.dev.CopyIn(w.res.Ptr(), all))
	w.s, err = Listen(w.dev, filepath.Join(t.TempDir(), "s"), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.s.Close()) })
	return w
}

func (w *spans) mapChunk(off, size uint64, share vmm.Share) {
	w.t.Helper()
	c, err := w.dev.Create(size, vmm.Prop{Share: share})
	require.NoError(w.t, err)
	require.NoError(w.t, w.res.Map(off, c))
	require.NoError(w.t, c.Close())
}

// publish publishes the span as "x".
func (w *spans) publish(o PublishOptions) *Span {
	w.t.Helper()
	p, err := w.s.PublishSpan("x", w.res, spanOff, spanLen, o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, p.Close()) })
	return p
}

// bytes is what the span shows.
func (w *spans) bytes() []byte {
	w.t.Helper()
	b := make([]byte, spanLen)
	require.NoError(w.t, w.dev.CopyOut(b, w.res.Ptr()+spanOff))
	return b
}

// view attaches to "x".
func (w *spans) view(o AttachOptions) *View {
	w.t.Helper()
	v, err := Attach(w.t.Context(), w.s.Path(), "x", pageDevice(w.t), o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, v.Close()) })
	return v
}

// noWait is a context that does not let a call wait.
func noWait(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestSpan(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{})
	p := w.publish(PublishOptions{Write: true, Meta: []byte("m")})
	require.Equal(t, "x", p.Name())
	require.EqualValues(t, spanLen, p.Len())
	v := w.view(AttachOptions{Write: true})
	wait(t, v, spanLen)
	require.EqualValues(t, spanLen, v.Len())
	require.EqualValues(t, 6*spanPage-(spanOff-spanPage), v.Max())
	require.Equal(t, v.Max(), v.Cap())
	require.False(t, v.Sealed(), "its bytes may change")
	require.Equal(t, []byte("m"), v.Meta())
	require.Len(t, v.Segments(), 3)
	require.Equal(t, v.Segments()[0].Addr+spanOff-spanPage, v.Ptr())

	// Each way to the bytes leads to the same ones.
	require.Equal(t, w.bytes(), read(t, v, spanLen))
	b, err := v.Host()
	require.NoError(t, err)
	require.Equal(t, w.bytes(), b)
	s := v.Snapshot()
	require.Equal(t, Snapshot{Ptr: v.Ptr(), Len: spanLen}, s)
	require.True(t, v.Valid(s))
	var arg vmm.MemoryArg
	v.MemoryArg(&arg)
	require.Equal(t, vmm.Span{Addr: v.Ptr(), Size: spanLen, Access: vmm.AccessReadWrite}, arg.Span)
	require.NoError(t, v.Device().CopyIn(v.Ptr()+spanLen-1, []byte{200}))
	require.Equal(t, byte(200), w.bytes()[spanLen-1])

	_, err = v.ReadAt(make([]byte, 1), spanLen)
	require.Error(t, err)
	require.ErrorIs(t, v.Wait(t.Context(), v.Max()+1), vmm.ErrBounds)
	require.NoError(t, v.Err())
}

func TestSpanStays(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{})
	p := w.publish(PublishOptions{})
	for _, page := range []uint64{1, 3, 4} {
		require.ErrorIs(t, w.res.UnmapNow(page*spanPage, []uint64{0, 2, 0, 1, 3}[page]*spanPage), vmm.ErrBusy)
	}
	require.NoError(t, w.res.UnmapNow(0, spanPage), "it is beside the span")
	v, again := w.view(AttachOptions{}), w.view(AttachOptions{})
	wait(t, v, spanLen)
	require.Equal(t, 2, p.Readers())
	require.ErrorIs(t, p.CloseUnused(noWait(t)), vmm.ErrBusy)
	require.NoError(t, v.Close())
	soon(t, "a reader has gone", func() bool { return p.Readers() == 1 })
	err := p.CloseUnused(noWait(t))
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, p.CloseUnused(nil), vmm.ErrInvalid) //nolint:staticcheck // what a caller can get wrong
	closed := make(chan error, 1)
	go func() { closed <- p.CloseUnused(t.Context()) }()
	require.NoError(t, again.Close())
	require.NoError(t, <-closed)
	_, err = Attach(t.Context(), w.s.Path(), "x", w.dev, AttachOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, p.CloseUnused(noWait(t)))
	require.NoError(t, w.res.UnmapNow(spanPage, 2*spanPage))
	require.Zero(t, w.s.Stats().KeptFDs)
	require.Zero(t, w.s.Stats().Published)
}

func TestSpanEnds(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{})
	p := w.publish(PublishOptions{})
	v := w.view(AttachOptions{})
	wait(t, v, spanLen)
	want := w.bytes()
	require.NoError(t, p.Close())
	require.NoError(t, w.res.UnmapNow(spanPage, 6*spanPage))
	soon(t, "the reader knows", func() bool { return errors.Is(v.Err(), ErrOwnerGone) })
	require.Equal(t, want, read(t, v, spanLen), "what is mapped stays")
	_, err := w.s.PublishSpan("x", w.res, spanOff, spanLen, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)

	w.mapChunk(spanPage, 6*spanPage, vmm.ShareFD)
	p = w.publish(PublishOptions{})
	require.NoError(t, w.s.Close())
	require.NoError(t, w.res.UnmapNow(spanPage, 6*spanPage), "the server's end is the span's")
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.CloseUnused(t.Context()), vmm.ErrClosed, "a reader may have had it")
	_, err = w.s.PublishSpan("y", w.res, 0, 1, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.NoError(t, w.res.UnmapNow(0, spanPage), "and nothing is held after an error")
}

func TestSpanRefused(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{MaxObjects: 2})
	w.mapChunk(8*spanPage, spanPage, vmm.ShareFD)
	w.mapChunk(9*spanPage, spanPage, 0)
	w.publish(PublishOptions{})
	g, err := w.dev.NewRange(vmm.RangeOptions{Max: spanPage, Share: vmm.ShareFD})
	require.NoError(t, err)
	other, err := pageDevice(t).Reserve(spanPage, vmm.ReserveOptions{})
	require.NoError(t, err)
	for _, test := range []struct {
		why    string
		name   string
		res    *vmm.Reservation
		off, n uint64
		o      PublishOptions
		want   error
	}{
		{"no reservation", "y", nil, 0, 1, PublishOptions{}, vmm.ErrInvalid},
		{"a zero reservation", "y", &vmm.Reservation{}, 0, 1, PublishOptions{}, vmm.ErrInvalid},
		{"another driver's", "y", other, 0, 1, PublishOptions{}, vmm.ErrInvalid},
		{"no bytes", "y", w.res, 5, 0, PublishOptions{}, vmm.ErrInvalid},
		{"a gap behind", "y", w.res, 6 * spanPage, 2 * spanPage, PublishOptions{}, vmm.ErrInvalid},
		{"a gap in front", "y", w.res, 7 * spanPage, 2 * spanPage, PublishOptions{}, vmm.ErrInvalid},
		{"a gap between", "y", w.res, 6 * spanPage, 3 * spanPage, PublishOptions{}, vmm.ErrInvalid},
		{"nothing", "y", w.res, 12 * spanPage, spanPage, PublishOptions{}, vmm.ErrInvalid},
		{"memory that is not shared", "y", w.res, 9*spanPage - 1, 2, PublishOptions{}, vmm.ErrInvalid},
		{"beyond the end", "y", w.res, 15 * spanPage, 2 * spanPage, PublishOptions{}, vmm.ErrBounds},
		{"around the end of all addresses", "y", w.res, 15 * spanPage, math.MaxUint64, PublishOptions{}, vmm.ErrBounds},
		{"a name that is taken", "x", w.res, 0, 1, PublishOptions{}, vmm.ErrBusy},
		{"a bad name", "..", w.res, 0, 1, PublishOptions{}, vmm.ErrInvalid},
		{"too much metadata", "y", w.res, 0, 1, PublishOptions{Meta: make([]byte, wire.MaxMeta+1)}, vmm.ErrInvalid},
		{"a bad layout", "y", w.res, 0, 1, PublishOptions{Layout: vmm.Layout{Size: 4, Pitch: 1}}, vmm.ErrInvalid},
	} {
		_, err := w.s.PublishSpan(test.name, test.res, test.off, test.n, test.o)
		require.ErrorIs(t, err, test.want, test.why)
		require.ErrorContains(t, err, fmt.Sprintf("publish %q: ", test.name))
	}
	_, err = (*Server)(nil).PublishSpan("y", w.res, 0, 1, PublishOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.Equal(t, 1, w.s.Stats().Published)
	require.NoError(t, w.res.UnmapNow(8*spanPage, 2*spanPage), "nothing is held")
	require.NoError(t, g.Close())
	require.NoError(t, other.Close())
}

func TestSpanZeroValues(t *testing.T) {
	t.Parallel()
	for _, p := range []*Span{nil, {}} {
		require.Zero(t, p.Name())
		require.Zero(t, p.Len())
		require.Zero(t, p.Readers())
		require.NoError(t, p.CloseUnused(t.Context()))
		require.NoError(t, p.Close())
	}
}

func TestSpanExportFails(t *testing.T) {
	t.Parallel()
	fails := 0
	w := newSpans(t, Options{}, func(c drivertest.Call) error {
		if c.Name != "Export" {
			return nil
		}
		if fails--; fails == 0 {
			return errTest
		}
		return nil
	})
	for k := 1; k <= 3; k++ {
		fails = k
		_, err := w.s.PublishSpan("x", w.res, spanOff, spanLen, PublishOptions{})
		require.ErrorIs(t, err, errTest)
		require.Zero(t, w.s.Stats().KeptFDs)
		require.Zero(t, w.s.Stats().Published)
	}
	p := w.publish(PublishOptions{})
	require.NoError(t, p.Close())
	require.NoError(t, w.res.UnmapNow(spanPage, 6*spanPage))
}

// A reader that may map less than the object has gets no byte in front of it.
func TestSpanBeyondAQuota(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{})
	w.publish(PublishOptions{})
	v := w.view(AttachOptions{MaxBytes: spanPage})
	soon(t, "it ends", func() bool { return v.Err() != nil })
	require.ErrorIs(t, v.Err(), vmm.ErrLimit)
	require.Zero(t, v.Len())
	require.Zero(t, v.Max())
	_, err := v.ReadAt(make([]byte, 1), 0)
	require.Error(t, err)
}

func TestPythonReadsSpan(t *testing.T) {
	t.Parallel()
	python(t, "")
	w := newSpans(t, Options{})
	row := []byte{0, 0, 128, 63} // 1.0
	require.NoError(t, w.dev.CopyIn(w.res.Ptr()+spanPage, bytes.Repeat(row, 6*spanPage/4)))
	require.NoError(t, w.dev.CopyIn(w.res.Ptr()+spanOff, bytes.Repeat([]byte{0, 0, 0, 64}, 8)))
	p, err := w.s.PublishSpan("rows", w.res, spanOff, 3*spanPage, PublishOptions{Layout: tableRow})
	require.NoError(t, err)
	f := startPython(t, `exec "$@"`, w.s.Path(), "rows")
	f.says(fmt.Sprintf("length %d sum %d.0", 3*spanPage/32, 3*spanPage/4+8))
	require.NoError(t, p.Close())
	f.says(fmt.Sprintf("deleted at %d", 3*spanPage/32))
	f.exits(0)
}

// retiresASpan is a reader of an object that begins in the middle of its first chunk, and whose owner takes the
// second chunk back.
const retiresASpan = `
import ctypes, struct
import cuvmm_reader as c
class Nothing:
    def __getattr__(self, name): return lambda *args: None
r = c.Reader.__new__(c.Reader)
page = ctypes.create_string_buffer(4096)
r.id, r.max, r.base, r.pitch, r.generation, r.sealed, r.gone = 1, 8192, 1000, 1, 0, None, None
r.chunks, r.end, r.last_length, r.last_id, r.page = [(1, 0, 4096), (2, 4096, 4096)], 8192, 7000, 2, ctypes.addressof(page)
r.exports, r.timeout, r.memory, r._send, seen = [], 1, Nothing(), lambda *args: None, []
r.on_retire = seen.append
r._retire(c.Payload(struct.pack("<QQQ", 1, 5, 4096)))
print(r.length(), seen)
`

func TestPythonRetiresSpan(t *testing.T) {
	t.Parallel()
	python(t, "")
	c := exec.CommandContext(t.Context(), "python3", "-c", retiresASpan)
	c.Env = append(os.Environ(), "PYTHONPATH=../examples/python")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "3096 [3096]\n", string(out))
}
