//go:build cgo

package dlpack_test

import (
	"cmp"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/dlpack/consumer"
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/dlpack"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestExportOfAView: a reader's memory is read-only, and a retirement of the owner waits for the deleter.
func TestExportOfAView(t *testing.T) {
	d := vmmtest.Device(t)
	const chunk = 1 << 21
	g, err := d.NewRange(vmm.RangeOptions{Max: 4 * chunk, Chunk: chunk, Share: vmm.ShareFD})
	require.NoError(t, err)
	server, err := shareable.Listen(d, filepath.Join(t.TempDir(), "s"), shareable.Options{})
	require.NoError(t, err)
	layout, err := growable.LayoutOf[float32](16)
	require.NoError(t, err)
	pub, err := server.Publish("rows", g, shareable.PublishOptions{Layout: layout})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 2*chunk)))
	v, err := shareable.Attach(t.Context(), server.Path(), "rows", d, shareable.AttachOptions{})
	require.NoError(t, err)
	require.NoError(t, v.Wait(t.Context(), 2*chunk))

	_, err = dlpack.Export(v, 1, dlpack.Options{Unversioned: true})
	require.ErrorIs(t, err, vmm.ErrPermission)
	rows := 2 * chunk / 64
	p := export(t, v, rows, dlpack.Options{})
	got := consumer.Read(p, true)
	require.EqualValues(t, 1, got.Flags, "read-only")
	require.Equal(t, []int64{int64(rows), 16}, got.Shape)
	require.EqualValues(t, v.Ptr(), got.Data)
	require.Zero(t, consumer.Sum(p, true, 8))

	retired := make(chan error, 1)
	go func() { retired <- pub.Retire(t.Context(), chunk) }()
	require.Eventually(t, func() bool { return v.Len() == chunk }, 10*time.Second, time.Millisecond)
	for range 20 {
		require.Zero(t, consumer.Sum(p, true, 8), "the bytes are still there")
		require.Empty(t, retired)
	}
	remove(t, true, p)
	require.NoError(t, <-retired)
	require.NoError(t, v.Err())

	// After the owner's end the memory stays until the deleter and Close.
	p = export(t, v, rows/2, dlpack.Options{})
	require.NoError(t, pub.Close())
	require.NoError(t, server.Close())
	require.ErrorIs(t, v.Close(), vmm.ErrBusy)
	require.Zero(t, consumer.Sum(p, true, 8))
	remove(t, true, p)
	require.NoError(t, v.Close())
	require.NoError(t, g.Close())
}

// TestExportOfAMirror: its bytes are the host's, and the mirror stays open.
func TestExportOfAMirror(t *testing.T) {
	d := vmmtest.Device(t)
	g, err := d.NewRange(vmm.RangeOptions{Max: page})
	require.NoError(t, err)
	require.NoError(t, g.Append([]byte{1, 2, 3, 4, 5, 6, 7, 8}))
	for _, pinned := range []uint64{0, page} {
		m, err := d.NewMirror(g.Ptr(), 8, vmm.MirrorOptions{Init: true, MaxPinned: pinned})
		require.NoError(t, err)
		for name, test := range map[string]struct {
			n    int
			o    dlpack.Options
			want error
		}{
			"no dtype": {1, dlpack.Options{}, vmm.ErrInvalid},
			"beyond":   {9, dlpack.Options{DType: dlpack.Int8}, vmm.ErrBounds},
			"below 0":  {-1, dlpack.Options{DType: dlpack.Int8}, vmm.ErrInvalid},
			"a stream": {1, dlpack.Options{DType: dlpack.Int8, Stream: 1}, vmm.ErrInvalid},
		} {
			_, err := dlpack.ExportMirror(m, test.n, test.o)
			require.ErrorIs(t, err, test.want, name)
		}
		x, err := dlpack.ExportMirror(m, 2, dlpack.Options{DType: dlpack.Int16, Shape: []int{2}})
		require.NoError(t, err)
		p, err := x.HandOver()
		require.NoError(t, err)
		require.EqualValues(t, 36, consumer.Sum(p, true, 4))
		require.EqualValues(t, 1, consumer.Read(p, true).Type)
		require.EqualValues(t, 1, consumer.Read(p, true).Flags, "without Write it is read-only")
		for _, err := range []error{m.Close(), m.Discard()} {
			require.ErrorIs(t, err, vmm.ErrBusy)
			require.ErrorContains(t, err, "DLPack export of int16[2 2]")
		}
		require.NoError(t, m.Refresh())
		remove(t, true, p)
		require.NoError(t, m.Close())
		_, err = dlpack.ExportMirror(m, 1, dlpack.Options{DType: dlpack.Int8})
		require.ErrorIs(t, err, vmm.ErrClosed)
	}
	m, err := d.NewMirror(g.Ptr(), 8, vmm.MirrorOptions{Write: true})
	require.NoError(t, err)
	x, err := dlpack.ExportMirror(m, 8, dlpack.Options{DType: dlpack.Int8, Unversioned: true})
	require.NoError(t, err)
	require.NoError(t, x.Close())
	require.NoError(t, m.Close())
	_, err = dlpack.ExportMirror(nil, 0, dlpack.Options{DType: dlpack.Int8})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, g.Close())
}

// TestExportOfABlock: the pool keeps a block, large or small, until the deleter.
func TestExportOfABlock(t *testing.T) {
	d := vmmtest.Device(t)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	for _, size := range []uint64{64, 1 << 20} {
		b, err := p.Alloc(s, size)
		require.NoError(t, err)
		require.NoError(t, s.Fill(b.Ptr(), 1, 1, size))
		require.NoError(t, s.Sync())
		x := export(t, b, int(size/8), dlpack.Options{DType: dlpack.Int64})
		require.EqualValues(t, size, consumer.Sum(x, true, 4))
		require.ErrorIs(t, p.Free(s, b), vmm.ErrBusy)
		require.ErrorIs(t, p.Close(), vmm.ErrBusy)
		remove(t, true, x)
		require.NoError(t, p.Free(s, b))
		_, err = dlpack.Export(b, 1, dlpack.Options{DType: dlpack.Int64})
		require.ErrorIs(t, err, vmm.ErrInvalid, "it was freed")
	}
	_, err = dlpack.Export(pool.Block{}, 1, dlpack.Options{DType: dlpack.Int64})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, s.Close())
	require.NoError(t, p.Close())
}

// blockedStream is a stream whose work ends with open.
func blockedStream(t *testing.T, d *vmm.Device) (s *vmm.Stream, open func()) {
	t.Helper()
	gate := make(chan struct{})
	m, _, err := d.LoadModule(vmm.Code{Host: map[string]vmm.HostKernel{"k": {Run: func(*vmm.Launch) error { <-gate; return nil }}}})
	require.NoError(t, err)
	f, err := m.Function("k")
	require.NoError(t, err)
	s, err = d.NewStream()
	require.NoError(t, err)
	require.NoError(t, f.Launch(s, &vmm.Launch{}, nil))
	return s, func() {
		close(gate)
		require.NoError(t, s.Close())
		require.NoError(t, m.Close())
	}
}

// TestTheConsumersStreamWaits: work on the consumer's stream comes after that of the others, and the host
// does not wait.
func TestTheConsumersStreamWaits(t *testing.T) {
	d := vmmtest.Device(t)
	s, open := blockedStream(t, d)
	to, err := d.NewStream()
	require.NoError(t, err)
	handle := int64(to.Raw())
	require.NoError(t, dlpack.Wait(d, -1, s))
	done, err := to.Done()
	require.NoError(t, err)
	require.True(t, done, "-1 waits for nothing")
	require.NoError(t, dlpack.Wait(d, int64(s.Raw()), s), "a stream waits for itself anyway")
	require.NoError(t, dlpack.Wait(d, handle, s))
	done, err = to.Done()
	require.NoError(t, err)
	require.False(t, done)
	require.Zero(t, s.Finished(), "what waits says nothing of work that has ended")
	open()
	require.NoError(t, to.Sync())
	require.NoError(t, dlpack.Wait(d, handle, s), "a stream that is closed has no work")
	require.ErrorIs(t, dlpack.Wait(d, -2, to), vmm.ErrInvalid)
	require.NoError(t, to.Close())
}

// TestTheHostWaits: a consumer on the host has no stream, so Export waits, unless it is told not to.
func TestTheHostWaits(t *testing.T) {
	waits := make(chan struct{})
	var watched, opened atomic.Bool
	d := vmmtest.Device(t, func(c drivertest.Call) error {
		if strings.HasPrefix(c.Name, "Sync") && watched.Swap(false) {
			close(waits)
		}
		return nil
	})
	v, err := growable.New[float32](d, growable.Options{Range: vmm.RangeOptions{Max: page}})
	require.NoError(t, err)
	require.NoError(t, v.Append(1, 2, 3))
	s, open := blockedStream(t, d)
	require.NoError(t, v.Range().UsedBy(s))
	require.Equal(t, []*vmm.Stream{s}, dlpack.Users(v))
	p := export(t, v, 3, dlpack.Options{Stream: -1})
	remove(t, true, p)
	watched.Store(true)
	exported := make(chan error, 1)
	go func() {
		x, err := dlpack.Export(v, 3, dlpack.Options{})
		if !opened.Load() {
			err = errors.New("it has not waited")
		}
		exported <- cmp.Or(err, x.Close())
	}()
	<-waits
	require.ErrorIs(t, v.SetLen(2), vmm.ErrBusy, "it holds what it exports, and then waits")
	opened.Store(true)
	open()
	require.NoError(t, <-exported)
	nothingOpen(t)
	require.NoError(t, v.Close())
}

// TestWaitsThatFail: the error comes back, and nothing stays open.
func TestWaitsThatFail(t *testing.T) {
	for _, call := range []string{"Record", "Wait"} {
		d := vmmtest.Device(t, drivertest.FailNth(call, 1, vmm.ErrOutOfMemory))
		from, err := d.NewStream()
		require.NoError(t, err)
		to, err := d.NewStream()
		require.NoError(t, err)
		require.ErrorIs(t, dlpack.Wait(d, int64(to.Raw()), from), vmm.ErrOutOfMemory, call)
		require.NoError(t, dlpack.Wait(d, int64(to.Raw()), from))
		require.NoError(t, from.Close())
		require.NoError(t, to.Close())
	}
}

// argument is memory of which only MemoryArg is known.
type argument func(*vmm.MemoryArg)

func (a argument) MemoryArg(m *vmm.MemoryArg) { a(m) }

// TestMemoryThatCannotBeExported: a pool's memory of which no block is known, memory that is not mapped, and elements
// that are not aligned.
func TestMemoryThatCannotBeExported(t *testing.T) {
	d := vmmtest.Device(t)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	b, err := p.Alloc(s, 64)
	require.NoError(t, err)
	_, err = dlpack.Export(&b, 1, dlpack.Options{DType: dlpack.Int64})
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	require.NoError(t, p.Free(s, b))
	require.NoError(t, s.Close())
	require.NoError(t, p.Close())

	r, err := d.Reserve(1<<21, vmm.ReserveOptions{})
	require.NoError(t, err)
	_, err = dlpack.Export(argument(func(m *vmm.MemoryArg) { r.MemoryArg(m, 0, 1000) }), 1000, dlpack.Options{DType: dlpack.Uint8})
	require.ErrorIs(t, err, vmm.ErrBounds)
	require.NoError(t, r.Close())

	g, err := d.NewRange(vmm.RangeOptions{Max: 1 << 21})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 1000)))
	odd := argument(func(m *vmm.MemoryArg) {
		g.MemoryArg(m)
		m.Addr, m.Size = m.Addr+1, m.Size-1
	})
	_, err = dlpack.Export(odd, 2, dlpack.Options{DType: dlpack.Float64})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, g.Close())
}

// TestDeletersInAStream: a stream's own work calls deleters while the vector grows, clips and closes.
func TestDeletersInAStream(t *testing.T) {
	d, err := vmm.Open("host") // whose kernels are functions of Go
	require.NoError(t, err)
	const each = 200
	tensors := make([]consumer.Pointer, each)
	mod, err := kernel.Load(d, kernel.Code{Host: kernel.Host{"remove": func(i uint32) {
		if err := consumer.Delete(tensors[i:i+1], true, 1, 1); err != nil {
			t.Errorf("delete: %v", err)
		}
	}}})
	require.NoError(t, err)
	f, err := mod.Func("remove")
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	for range testgate.Effort(2, 10, 10) {
		v, err := growable.New[uint8](d, growable.Options{Range: vmm.RangeOptions{Max: 256 * page}})
		require.NoError(t, err)
		require.NoError(t, v.Append(make([]uint8, page)...))
		allowed := func(err error) {
			if err != nil && !errors.Is(err, vmm.ErrBusy) {
				t.Errorf("meanwhile: %v", err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for range each {
				allowed(v.Append(make([]uint8, page)...))
				allowed(v.SetLen(page))
				allowed(v.Clip())
			}
		})
		for i := range uint32(each) {
			tensors[i] = export(t, v, page, dlpack.Options{Stream: -1})
			require.NoError(t, f.Launch(s, kernel.Over(1, 1), i))
		}
		wg.Wait()
		require.NoError(t, s.Sync())
		nothingOpen(t)
		require.NoError(t, v.Close())
	}
	require.NoError(t, s.Close())
	require.NoError(t, mod.Close())
	require.NoError(t, d.Close())
}
