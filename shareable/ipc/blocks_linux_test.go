package ipc_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// blockWorld is a pool of ours that is exported, and an importer in this process.
type blockWorld struct {
	t    *testing.T
	devs []*vmm.Device
	s    *vmm.Stream
	srv  *shareable.Server
	own  *pool.Pool
	ex   *ipc.Exporter
	in   *ipc.Importer
}

func newBlockWorld(t *testing.T, o pool.Options, hooks ...func(drivertest.Call) error) *blockWorld {
	t.Helper()
	return newBlockWorldOn(t, testDriver.Devices(t, 1, hooks...), o)
}

// newBlockWorldOn has the pool on the first of the devices.
func newBlockWorldOn(t *testing.T, devs []*vmm.Device, o pool.Options) *blockWorld {
	t.Helper()
	w := &blockWorld{t: t, devs: devs}
	var err error
	w.s, err = w.devs[0].NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.s.Close()) })
	o.Share |= vmm.ShareFD
	w.own, err = pool.New(w.devs[0], o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.own.Close()) })
	w.srv, err = shareable.Listen(w.devs[0], filepath.Join(t.TempDir(), "s"), shareable.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.srv.Close()) })
	w.ex, err = ipc.NewExporter(w.srv, w.own)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.ex.Close()) })
	w.in = w.importer(shareable.AttachOptions{Write: true})
	return w
}

func (w *blockWorld) importer(o shareable.AttachOptions) *ipc.Importer {
	w.t.Helper()
	in, err := ipc.NewImporter(w.devs[0], w.srv.Path(), o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, in.Close()) })
	return in
}

// block allocates a block that is v everywhere, and exports it.
func (w *blockWorld) block(n uint64, v byte) (pool.Block, ipc.BlockToken) {
	w.t.Helper()
	b, err := w.own.Alloc(w.s, n)
	require.NoError(w.t, err)
	require.NoError(w.t, w.s.Fill(b.Ptr(), uint32(v), 1, n))
	require.NoError(w.t, w.s.Sync())
	token, err := w.ex.Export(b)
	require.NoError(w.t, err)
	return b, token
}

func (w *blockWorld) imports(token ipc.BlockToken) *ipc.ImportedBlock {
	w.t.Helper()
	b, err := w.in.Import(w.t.Context(), token)
	require.NoError(w.t, err)
	return b
}

// free unexports blocks and frees them.
func (w *blockWorld) free(blocks ...pool.Block) {
	w.t.Helper()
	for _, b := range blocks {
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		require.NoError(w.t, w.ex.Unexport(ctx, b))
		cancel()
		require.NoError(w.t, w.own.FreeNow(b))
	}
}

// holds checks that all bytes at an address are v.
func holds(t *testing.T, dev *vmm.Device, at vmm.Ptr, n uint64, v byte) {
	t.Helper()
	b := make([]byte, n)
	require.NoError(t, dev.CopyOut(b, at))
	require.Equal(t, bytes.Repeat([]byte{v}, int(n)), b)
}

// ended is a context that does not let a call wait.
func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

const tick = time.Millisecond

var errInjected = errors.New("of the test")

// gate makes later work of a stream wait until open is called.
func gate(t *testing.T, s *vmm.Stream) (open func()) {
	t.Helper()
	raw, err := s.Device().Raw()
	require.NoError(t, err)
	words, ops := raw.(driver.HostAllocator), raw.(driver.StreamMemOps)
	word, _, err := words.AllocHost(8)
	require.NoError(t, err)
	other, err := raw.NewStream()
	require.NoError(t, err)
	write := func(v uint64) {
		require.NoError(t, ops.WriteValue(other, word, v, 8))
		require.NoError(t, raw.SyncStream(other))
	}
	write(0) // the memory may have been another gate's
	require.NoError(t, ops.WaitValue(s.Raw(), word, 1, 8))
	open = sync.OnceFunc(func() { write(1) })
	t.Cleanup(func() {
		open()
		if t.Failed() {
			return // the stream may wait for another process for ever, and a free for the stream
		}
		require.NoError(t, raw.FreeStream(other))
		require.NoError(t, words.FreeHost(word))
	})
	return open
}

func TestImportedBlock(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	for _, n := range []uint64{100, 70_000, 5 * mib} { // in a slab, within a chunk, over several
		b, token := w.block(n, 5)
		require.Equal(t, n, token.Size())
		again, err := w.ex.Export(b)
		require.NoError(t, err)
		require.Equal(t, token, again)
		require.Zero(t, w.ex.Importers(b))

		i := w.imports(token)
		require.Equal(t, n, i.Size())
		require.NotEqual(t, b.Ptr(), i.Ptr())
		holds(t, w.devs[0], i.Ptr(), n, 5)
		var arg vmm.MemoryArg
		i.MemoryArg(&arg)
		require.Equal(t, vmm.Span{Addr: i.Ptr(), Size: n, Access: vmm.AccessReadWrite}, arg.Span)
		require.NoError(t, w.s.Fill(i.Ptr(), 6, 1, n))
		require.NoError(t, w.s.Sync())
		holds(t, w.devs[0], b.Ptr(), n, 6)
		require.NoError(t, i.Err())

		// As long as it is imported it stays.
		require.Equal(t, 1, w.ex.Importers(b))
		require.ErrorIs(t, w.own.Free(w.s, b), vmm.ErrBusy)
		require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
		_, err = w.own.Resize(w.s, b, n/2)
		require.ErrorIs(t, err, vmm.ErrBusy)
		err = w.ex.Unexport(ended(t), b)
		require.ErrorIs(t, err, vmm.ErrBusy)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, w.ex.Close(), vmm.ErrBusy)
		require.ErrorIs(t, w.in.Close(), vmm.ErrBusy)
		require.ErrorIs(t, w.own.Close(), vmm.ErrBusy)

		require.NoError(t, i.FreeNow())
		require.ErrorIs(t, i.FreeNow(), ipc.ErrFreed)
		require.ErrorIs(t, i.Free(w.s), ipc.ErrFreed)
		require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy, "it is exported still")
		w.free(b)
		_, err = w.in.Import(t.Context(), token)
		require.ErrorIs(t, err, ipc.ErrNotExported)
		require.ErrorIs(t, w.ex.Unexport(t.Context(), b), pool.ErrDoubleFree)
		_, err = w.ex.Export(b)
		require.ErrorIs(t, err, pool.ErrDoubleFree)
	}
}

func TestBlockImportedTwice(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	b, token := w.block(mib, 1)
	i, j := w.imports(token), w.imports(token)
	require.Equal(t, i.Ptr(), j.Ptr())
	require.Equal(t, 1, w.ex.Importers(b))
	require.NoError(t, i.Free(w.s))
	require.NoError(t, w.s.Sync())
	holds(t, w.devs[0], j.Ptr(), mib, 1)
	require.NoError(t, j.FreeNow())
	w.free(b)

	// One that stays does not gather what was freed beside it.
	b, token = w.block(mib, 2)
	i = w.imports(token)
	for range 200 {
		require.NoError(t, w.imports(token).Free(w.s))
	}
	require.NoError(t, w.s.Sync())
	require.NoError(t, w.imports(token).Free(w.s))
	require.LessOrEqual(t, ipc.EventsOf(i), 2)
	require.NoError(t, i.FreeNow())
	w.free(b)
}

// The exporter does not see a block as free before the work that the importer has queued on it
// has ended.
func TestBlockFreedInOrder(t *testing.T) {
	for n := range 2 {
		t.Run(fmt.Sprint("stream of device ", n), func(t *testing.T) { blockFreedInOrder(t, testDriver.Devices(t, n+1)) })
	}
}

// blockFreedInOrder has a stream of the last device use and free a block of the first.
func blockFreedInOrder(t *testing.T, devs []*vmm.Device) {
	t.Helper()
	w, dev := newBlockWorldOn(t, devs, pool.Options{}), devs[len(devs)-1]
	b, token := w.block(mib, 1)
	i, j := w.imports(token), w.imports(token)
	other, err := dev.NewStream()
	require.NoError(t, err)
	if dev != devs[0] {
		require.NoError(t, i.Grant(vmm.AccessReadWrite, dev))
	}
	open := gate(t, other)
	require.NoError(t, other.Fill(i.Ptr(), 9, 1, mib))
	require.NoError(t, i.Free(other))
	require.NoError(t, j.Free(w.s))
	require.NoError(t, w.s.Sync())
	ctx, cancel := context.WithTimeout(t.Context(), 50*tick)
	require.ErrorIs(t, w.ex.Unexport(ctx, b), vmm.ErrBusy, "the fill has not run")
	cancel()
	open()
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.ex.Unexport(ctx, b))
	holds(t, w.devs[0], b.Ptr(), mib, 9)
	require.NoError(t, w.own.FreeNow(b))
	require.NoError(t, w.in.Close())
	require.NoError(t, other.Close())
}

func TestBlockAccess(t *testing.T) {
	w := newBlockWorldOn(t, testDriver.Devices(t, 2), pool.Options{})
	require.NoError(t, w.own.Grant(vmm.AccessReadWrite, w.devs[1]))
	b, token := w.block(mib, 1)
	i := w.imports(token)
	require.Equal(t, vmm.AccessReadWrite, i.Access(w.devs[0]))
	require.Equal(t, vmm.AccessNone, i.Access(w.devs[1]), "none is inherited")
	require.NoError(t, i.Grant(vmm.AccessRead, w.devs[1]))
	require.Equal(t, vmm.AccessRead, i.Access(w.devs[1]))
	require.NoError(t, i.Revoke(w.devs[1]))
	require.Equal(t, vmm.AccessNone, i.Access(w.devs[1]))
	require.NoError(t, i.FreeNow())

	reader := w.importer(shareable.AttachOptions{})
	i, err := reader.Import(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, vmm.AccessRead, i.Access(w.devs[0]))
	require.Error(t, w.s.Fill(i.Ptr(), 2, 1, mib))
	require.Error(t, i.Grant(vmm.AccessReadWrite, w.devs[1]))
	require.NoError(t, i.FreeNow())
	require.NoError(t, reader.Close())
	w.free(b)
}

func TestExporterOfReadOnlyPool(t *testing.T) {
	devs := testDriver.Devices(t, 1)
	if err := devs[0].Supports(vmm.FeatureShareReadOnly); err != nil {
		t.Skip(err)
	}
	w := newBlockWorldOn(t, devs, pool.Options{Share: vmm.ShareReadOnly})
	b, token := w.block(100, 3)
	_, err := w.in.Import(t.Context(), token)
	require.ErrorIs(t, err, vmm.ErrPermission)
	in := w.importer(shareable.AttachOptions{})
	i, err := in.Import(t.Context(), token)
	require.NoError(t, err)
	holds(t, w.devs[0], i.Ptr(), 100, 3)
	require.NoError(t, i.FreeNow())
	require.NoError(t, in.Close())
	w.free(b)
}

// Memory that lies beside an exported block moves and goes as ever; the block does not. Without
// the hold another block takes the importer's memory.
func TestExportedBlockStays(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			w := newBlockWorld(t, pool.Options{Max: 32 * mib, ChunkSize: 2 * mib})
			if !held {
				ipc.NoHold(w.ex)
			}
			b, token := w.block(5*mib, 1)
			i := w.imports(token)
			err := w.own.FreeNow(b)
			require.Equal(t, !held, err == nil)
			whole := true
			for n := uint64(mib); n <= 25*mib && whole; n += 4 * mib {
				c, err := w.own.Alloc(w.s, n)
				require.NoError(t, err)
				require.NoError(t, w.s.Fill(c.Ptr(), 2, 1, n))
				require.NoError(t, w.s.Sync())
				whole = first(t, w.devs[0], i.Ptr()) == 1
				require.NoError(t, w.own.Free(w.s, c))
				_, err = w.own.TrimTo(0)
				require.True(t, err == nil || !held, "%v", err)
			}
			require.Equal(t, held, whole)
			require.NoError(t, i.FreeNow())
			if held {
				w.free(b)
			} else {
				ipc.Forget(w.ex)
			}
		})
	}
}

// resized is a token of another size, with the sum that belongs to it.
func resized(token ipc.BlockToken, n uint64) ipc.BlockToken {
	binary.LittleEndian.PutUint64(token.Raw[40:], n)
	sum := sha256.Sum256(token.Raw[:48])
	copy(token.Raw[48:], sum[:])
	return token
}

func TestBadTokens(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	b, token := w.block(100, 1)
	for _, at := range []int{0, 8, 24, 40, 48, 63} {
		bad := token
		bad.Raw[at]++
		_, err := w.in.Import(t.Context(), bad)
		require.ErrorIs(t, err, ipc.ErrHandle, "byte %d", at)
	}
	_, err := w.in.Import(t.Context(), ipc.BlockToken{})
	require.ErrorIs(t, err, ipc.ErrHandle)
	_, err = w.in.Import(nil, token) //nolint:staticcheck // what a caller can get wrong
	require.ErrorIs(t, err, vmm.ErrInvalid)

	// A sum proves nothing: who changes the size can compute it, too.
	for _, n := range []uint64{1, 99, 101, 64 * mib, 1 << 63, ^uint64(0)} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := w.in.Import(ctx, resized(token, n))
		require.ErrorIs(t, err, ipc.ErrHandle, "%d bytes", n)
		cancel()
	}

	// Of an exporter that was started anew, and of one that is gone.
	other := newBlockWorld(t, pool.Options{})
	ob, otherToken := other.block(100, 1)
	_, err = w.in.Import(t.Context(), otherToken)
	require.ErrorIs(t, err, ipc.ErrExporterGone)
	other.free(ob)
	w.free(b)
	_, err = w.in.Import(t.Context(), token)
	require.ErrorIs(t, err, ipc.ErrNotExported)
	require.NoError(t, w.srv.Close())
	_, err = w.in.Import(t.Context(), token)
	require.ErrorIs(t, err, ipc.ErrExporterGone)
	require.ErrorIs(t, err, shareable.ErrOwnerGone)
	typed(t, err)
	_, err = w.ex.Export(pool.Block{})
	require.ErrorIs(t, err, pool.ErrForeignBlock)
}

func TestBlockTokenText(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	b, token := w.block(100, 1)
	text, err := token.MarshalText()
	require.NoError(t, err)
	require.Contains(t, string(text), "kind pool-block\nsize 100\nend\n")
	line, _, _ := bytes.Cut(text, []byte("\n"))
	for _, form := range [][]byte{text, line, token.Raw[:]} {
		var got ipc.BlockToken
		require.NoError(t, got.UnmarshalText(form))
		require.Equal(t, token, got)
	}
	driver, err := ipc.Token{Raw: token.Raw, Size: 100}.MarshalText()
	require.NoError(t, err)
	got := token
	for _, bad := range [][]byte{
		nil, text[:len(text)-4], line[:40], token.Raw[:63], make([]byte, 64), driver,
		bytes.Replace(text, []byte("size 100"), []byte("size 101"), 1),
	} {
		require.ErrorIs(t, got.UnmarshalText(bad), ipc.ErrHandle, "%q", bad)
		require.Equal(t, token, got)
	}
	require.ErrorIs(t, (*ipc.BlockToken)(nil).UnmarshalText(text), ipc.ErrHandle)
	require.ErrorIs(t, new(ipc.Token).UnmarshalText(text), ipc.ErrHandle)
	w.free(b)
}

func TestExporterRefused(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	private, err := pool.New(w.devs[0], pool.Options{})
	require.NoError(t, err)
	for _, test := range []struct {
		s    *shareable.Server
		p    *pool.Pool
		want error
	}{
		{nil, w.own, vmm.ErrInvalid},
		{&shareable.Server{}, w.own, vmm.ErrInvalid},
		{w.srv, nil, vmm.ErrInvalid},
		{w.srv, &pool.Pool{}, vmm.ErrInvalid},
		{w.srv, private, ipc.ErrNotShared},
	} {
		_, err := ipc.NewExporter(test.s, test.p)
		require.ErrorIs(t, err, test.want)
	}
	require.NoError(t, private.Close())

	_, err = w.ex.Export(pool.Block{})
	require.ErrorIs(t, err, pool.ErrForeignBlock)
	none, err := w.own.Alloc(w.s, 0)
	require.NoError(t, err)
	_, err = w.ex.Export(none)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	b, err := w.own.Alloc(w.s, 100)
	require.NoError(t, err)
	require.ErrorIs(t, w.ex.Unexport(t.Context(), b), ipc.ErrNotExported)
	require.ErrorIs(t, w.ex.Unexport(nil, b), vmm.ErrInvalid) //nolint:staticcheck // what a caller can get wrong
	require.Zero(t, w.ex.Importers(b))
	require.NoError(t, w.ex.Close())
	require.NoError(t, w.ex.Close())
	_, err = w.ex.Export(b)
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.NoError(t, w.own.FreeNow(b), "nothing holds it")

	_, err = ipc.NewImporter(nil, "x", shareable.AttachOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, w.in.Close())
	require.NoError(t, w.in.Close())
	_, err = w.in.Import(t.Context(), ipc.BlockToken{})
	require.ErrorIs(t, err, ipc.ErrHandle)
}

// Close of the server is the way out where an importer never frees.
func TestServerEndsImports(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	b, token := w.block(mib, 4)
	i := w.imports(token)
	require.ErrorIs(t, w.ex.Unexport(ended(t), b), vmm.ErrBusy)
	require.NoError(t, w.srv.Close())
	require.Eventually(t, func() bool { return errors.Is(i.Err(), ipc.ErrExporterGone) }, patience, tick)
	holds(t, w.devs[0], i.Ptr(), mib, 4)
	require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
	require.NoError(t, w.ex.Unexport(t.Context(), b))
	require.NoError(t, w.own.FreeNow(b))
	require.NoError(t, i.FreeNow())
	b, err := w.own.Alloc(w.s, 100)
	require.NoError(t, err)
	_, err = w.ex.Export(b)
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.NoError(t, w.own.FreeNow(b))
}

func TestBlockDuringCapture(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	b, token := w.block(mib, 4)
	i, j := w.imports(token), w.imports(token)
	s, err := w.devs[0].NewStream()
	require.NoError(t, err)
	require.NoError(t, s.BeginCapture())
	require.ErrorIs(t, i.Free(s), vmm.ErrCapturing)
	require.NoError(t, i.Free(w.s))
	require.NoError(t, j.FreeNow())
	err = w.in.Close()
	if err != nil {
		require.ErrorIs(t, err, vmm.ErrCapturing)
	}
	g, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, w.in.Close())
	require.NoError(t, s.Close())
	w.free(b)
}

// Any call of the driver may fail, and nothing is lost.
func TestBlockFaults(t *testing.T) {
	for _, name := range []string{"Export", "Import", "Reserve", "Map", "SetAccess", "NewEvent", "Record", "SyncEvent", "FreeEvent", "Unmap", "Release", "Free"} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			fails := false
			w := newBlockWorld(t, pool.Options{}, func(c drivertest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if fails && c.Name == name {
					fails = false
					return errInjected
				}
				return nil
			})
			b, err := w.own.Alloc(w.s, 3*mib)
			require.NoError(t, err)
			mu.Lock()
			fails = true
			mu.Unlock()
			token, err := w.ex.Export(b)
			if err != nil {
				require.ErrorIs(t, err, errInjected)
				token, err = w.ex.Export(b)
				require.NoError(t, err)
			}
			i, err := w.in.Import(t.Context(), token)
			if err != nil {
				require.ErrorIs(t, err, errInjected)
				i = w.imports(token)
			}
			j := w.imports(token)
			if err := i.Free(w.s); err != nil {
				require.ErrorIs(t, err, errInjected)
				require.NoError(t, i.Free(w.s))
			}
			if err := j.FreeNow(); err != nil {
				require.ErrorIs(t, err, errInjected)
				require.ErrorIs(t, j.FreeNow(), ipc.ErrFreed)
			}
			require.NoError(t, w.in.Close())
			mu.Lock()
			fails = false
			mu.Unlock()
			w.free(b)
		})
	}
}

// Many goroutines import, free, export and unexport the same blocks.
func TestBlocksConcurrently(t *testing.T) {
	w := newBlockWorld(t, pool.Options{})
	var blocks []pool.Block
	var tokens []ipc.BlockToken
	for v := range 4 {
		b, token := w.block(uint64(v)*mib+300, byte(v+1))
		blocks, tokens = append(blocks, b), append(tokens, token)
	}
	var tasks sync.WaitGroup
	for g := range 6 {
		tasks.Go(func() {
			for round := range 20 {
				k := (g + round) % len(blocks)
				i, err := w.in.Import(t.Context(), tokens[k])
				if err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, 1)
				if err := w.devs[0].CopyOut(got, i.Ptr()); err != nil || got[0] != byte(k+1) {
					t.Errorf("%d in block %d: %v", got[0], k, err)
				}
				if again, err := w.ex.Export(blocks[k]); err != nil || again != tokens[k] {
					t.Errorf("another token: %v", err)
				}
				if err := w.own.FreeNow(blocks[k]); !errors.Is(err, vmm.ErrBusy) {
					t.Errorf("an exported block was freed: %v", err)
				}
				if round%2 == 0 {
					err = i.Free(w.s)
				} else {
					err = i.FreeNow()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	tasks.Wait()
	w.free(blocks...)
}
