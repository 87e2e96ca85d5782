package shareable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// blockPool is a pool whose blocks are published, and a stream of its device. It runs on what
// VMM_TEST_DRIVER says.
type blockPool struct {
	t    *testing.T
	devs []*vmm.Device
	s    *vmm.Stream
	own  *pool.Pool
	srv  *Server
}

// newBlockPool has the pool on the first of n devices.
func newBlockPool(t *testing.T, n int, o pool.Options, hooks ...func(drivertest.Call) error) *blockPool {
	t.Helper()
	w := &blockPool{t: t}
	if withCUDA {
		w.devs = vmmtest.Drivers()[1].Devices(t, n, hooks...)
	} else {
		w.devs = vmmtest.Devices(t, n, hooks...)
	}
	var err error
	w.s, err = w.devs[0].NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.s.Close()) })
	o.Share |= vmm.ShareFD
	w.own, err = pool.New(w.devs[0], o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.own.Close()) })
	w.srv, err = Listen(w.devs[0], socketAt(t), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.srv.Close()) })
	return w
}

// publishedBlock is a block that is held and published.
type publishedBlock struct {
	pool.Block
	span    *Span
	release func()
}

// publishBlock is what a program does to share a block.
func publishBlock(srv *Server, p *pool.Pool, b pool.Block, name string, o PublishOptions) (publishedBlock, error) {
	release, err := p.HoldBlock(b)
	if err != nil {
		return publishedBlock{}, err
	}
	res := p.Reservation()
	span, err := srv.PublishSpan(name, res, uint64(b.Ptr()-res.Ptr()), b.Size(), o)
	if err != nil {
		release()
		return publishedBlock{}, err
	}
	return publishedBlock{b, span, release}, nil
}

// publish publishes a block for readers that write.
func (w *blockPool) publish(name string, b pool.Block) publishedBlock {
	w.t.Helper()
	x, err := publishBlock(w.srv, w.own, b, name, PublishOptions{Write: true})
	require.NoError(w.t, err)
	return x
}

// block allocates a block that is v everywhere.
func (w *blockPool) block(n uint64, v byte) pool.Block {
	w.t.Helper()
	b, err := w.own.Alloc(w.s, n)
	require.NoError(w.t, err)
	require.NoError(w.t, w.s.Fill(b.Ptr(), uint32(v), 1, n))
	require.NoError(w.t, w.s.Sync())
	return b
}

// attach maps all of a block.
func (w *blockPool) attach(name string, o AttachOptions) *View {
	w.t.Helper()
	v, err := Attach(w.t.Context(), w.srv.Path(), name, w.devs[0], o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, v.Close()) })
	wait(w.t, v, v.Published())
	return v
}

// free ends the publication of blocks, and frees them.
func (w *blockPool) free(blocks ...publishedBlock) {
	w.t.Helper()
	for _, x := range blocks {
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		require.NoError(w.t, x.span.CloseUnused(ctx))
		cancel()
		x.release()
		require.NoError(w.t, w.own.FreeNow(x.Block))
	}
}

// holds checks that all bytes at an address are v.
func holds(dev *vmm.Device, at vmm.Ptr, n uint64, v byte) error {
	got := make([]byte, n)
	if err := dev.CopyOut(got, at); err != nil {
		return err
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{v}, int(n))) {
		return fmt.Errorf("the %d bytes at %v are not all %d", n, at, v)
	}
	return nil
}

func TestPublishedBlock(t *testing.T) {
	t.Parallel()
	w := newBlockPool(t, 1, pool.Options{})
	for _, n := range []uint64{100, 70_000, 5 * mib} { // in a slab, within a chunk, over several
		b := w.block(n, 5)
		x := w.publish("b", b)
		_, err := publishBlock(w.srv, w.own, b, "b", PublishOptions{})
		require.ErrorIs(t, err, vmm.ErrBusy, "the name is taken")
		require.Zero(t, x.span.Readers())

		v := w.attach("b", AttachOptions{Write: true})
		require.Equal(t, n, v.Len())
		require.NotEqual(t, b.Ptr(), v.Ptr())
		require.NoError(t, holds(w.devs[0], v.Ptr(), n, 5))
		_, err = v.ReadAt(make([]byte, 1), int64(n))
		require.Error(t, err, "what else lies in the chunk is not the block's")
		var arg vmm.MemoryArg
		v.MemoryArg(&arg)
		require.Equal(t, vmm.Span{Addr: v.Ptr(), Size: n, Access: vmm.AccessReadWrite}, arg.Span)
		require.NoError(t, w.s.Fill(v.Ptr(), 6, 1, n))
		require.NoError(t, w.s.Sync())
		require.NoError(t, holds(w.devs[0], b.Ptr(), n, 6))
		require.NoError(t, v.Err())

		// As long as it is attached it stays.
		require.Equal(t, 1, x.span.Readers())
		stays := func() {
			t.Helper()
			require.ErrorIs(t, w.own.Free(w.s, b), vmm.ErrBusy)
			require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
			_, err := w.own.Resize(w.s, b, n/2)
			require.ErrorIs(t, err, vmm.ErrBusy)
			require.ErrorIs(t, w.own.Close(), vmm.ErrBusy)
		}
		stays()
		require.ErrorIs(t, x.span.CloseUnused(noWait(t)), vmm.ErrBusy)
		require.NoError(t, v.Close())
		stays()
		require.NoError(t, x.span.CloseUnused(t.Context()))
		_, err = Attach(t.Context(), w.srv.Path(), "b", w.devs[0], AttachOptions{})
		require.ErrorIs(t, err, ErrNotFound)
		stays()
		x.release()
		require.NoError(t, w.own.FreeNow(b))
		_, err = publishBlock(w.srv, w.own, b, "b", PublishOptions{})
		require.ErrorIs(t, err, pool.ErrDoubleFree)
	}
	require.Zero(t, w.srv.Stats().KeptFDs)
}

// A block under two names, each with two readers, is free when both have ended.
func TestBlockUnderTwoNames(t *testing.T) {
	t.Parallel()
	w := newBlockPool(t, 1, pool.Options{})
	b := w.block(mib, 7)
	x, y := w.publish("x", b), w.publish("y", b)
	var views []*View
	for _, name := range []string{"x", "x", "y", "y"} {
		views = append(views, w.attach(name, AttachOptions{Write: true}))
	}
	require.Equal(t, 2, x.span.Readers())
	require.Equal(t, 2, y.span.Readers())
	require.NoError(t, w.s.Fill(views[0].Ptr(), 8, 1, mib))
	require.NoError(t, w.s.Sync())
	for _, v := range views {
		require.NoError(t, holds(w.devs[0], v.Ptr(), mib, 8))
	}
	require.NoError(t, views[0].Close())
	require.NoError(t, views[1].Close())
	require.NoError(t, x.span.CloseUnused(t.Context()))
	x.release()
	require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
	require.NoError(t, views[2].Close())
	require.ErrorIs(t, y.span.CloseUnused(noWait(t)), vmm.ErrBusy)
	require.NoError(t, holds(w.devs[0], views[3].Ptr(), mib, 8))
	require.NoError(t, views[3].Close())
	w.free(y)
}

// A value of before Resize made the block longer is a part of it, and shows no more.
func TestBlockPublishedBeforeResize(t *testing.T) {
	t.Parallel()
	w := newBlockPool(t, 1, pool.Options{})
	b := w.block(mib, 1)
	longer, err := w.own.Resize(w.s, b, 3*mib)
	require.NoError(t, err)
	part, whole := w.publish("part", b), w.publish("whole", longer)
	require.EqualValues(t, mib, part.span.Len())
	require.EqualValues(t, 3*mib, whole.span.Len())
	require.NoError(t, part.span.CloseUnused(t.Context()))
	part.release()
	w.free(whole)
}

func TestBlockAccess(t *testing.T) {
	t.Parallel()
	w := newBlockPool(t, 2, pool.Options{})
	require.NoError(t, w.own.Grant(vmm.AccessReadWrite, w.devs[1]))
	x := w.publish("b", w.block(mib, 1))
	v := w.attach("b", AttachOptions{Write: true})
	require.Equal(t, vmm.AccessReadWrite, v.Access(w.devs[0]))
	require.Equal(t, vmm.AccessNone, v.Access(w.devs[1]), "none is inherited")
	require.NoError(t, v.Grant(vmm.AccessRead, w.devs[1]))
	require.Equal(t, vmm.AccessRead, v.Access(w.devs[1]))
	require.NoError(t, v.Revoke(w.devs[1]))
	require.Equal(t, vmm.AccessNone, v.Access(w.devs[1]))
	require.NoError(t, v.Close())

	v = w.attach("b", AttachOptions{})
	require.Equal(t, vmm.AccessRead, v.Access(w.devs[0]))
	require.Error(t, w.s.Fill(v.Ptr(), 2, 1, mib))
	require.Error(t, v.Grant(vmm.AccessReadWrite, w.devs[1]))
	require.NoError(t, v.Close())
	w.free(x)
}

func TestBlockOfReadOnlyPool(t *testing.T) {
	t.Parallel()
	if err := crashDevice(t).Supports(vmm.FeatureShareReadOnly); err != nil {
		t.Skip(err)
	}
	w := newBlockPool(t, 1, pool.Options{Share: vmm.ShareReadOnly})
	b := w.block(100, 3)
	_, err := publishBlock(w.srv, w.own, b, "b", PublishOptions{Write: true})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	x, err := publishBlock(w.srv, w.own, b, "b", PublishOptions{})
	require.NoError(t, err)
	_, err = Attach(t.Context(), w.srv.Path(), "b", w.devs[0], AttachOptions{Write: true})
	require.ErrorIs(t, err, vmm.ErrPermission)
	v := w.attach("b", AttachOptions{})
	require.NoError(t, holds(w.devs[0], v.Ptr(), 100, 3))
	require.NoError(t, v.Close())
	w.free(x)
}

// Memory that lies beside a published block moves and goes as ever; the block does not. Without
// the hold another block takes the readers' memory.
func TestPublishedBlockStays(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held=%v", held), func(t *testing.T) {
			w := newBlockPool(t, 1, pool.Options{Max: 32 * mib, ChunkSize: 2 * mib})
			b := w.block(5*mib, 1)
			x := w.publish("b", b)
			v := w.attach("b", AttachOptions{})
			if !held {
				x.release()
			}
			require.Equal(t, !held, w.own.FreeNow(b) == nil)
			whole, trimmed := true, uint64(0)
			for n := uint64(mib); n <= 25*mib && whole; n += 4 * mib {
				c, err := w.own.Alloc(w.s, n)
				require.NoError(t, err)
				require.NoError(t, w.s.Fill(c.Ptr(), 2, 1, n))
				require.NoError(t, w.s.Sync())
				whole = holds(w.devs[0], v.Ptr(), 5*mib, 1) == nil
				require.NoError(t, w.own.Free(w.s, c))
				freed, err := w.own.TrimTo(0)
				require.True(t, err == nil || !held, "%v", err)
				trimmed += freed
			}
			require.Equal(t, held, whole)
			require.NoError(t, v.Close())
			if !held {
				require.NoError(t, x.span.Close())
				return
			}
			require.NotZero(t, trimmed, "what lies beside it is given back")
			st, err := w.own.Stats()
			require.NoError(t, err)
			require.GreaterOrEqual(t, st.Reserved, uint64(5*mib))
			w.free(x)
			freed, err := w.own.TrimTo(0)
			require.NoError(t, err)
			require.GreaterOrEqual(t, freed, uint64(5*mib))
		})
	}
}

// Close of the server is the way out where a reader never closes its View. The hold is the
// program's own.
func TestServerCloseEndsBlocks(t *testing.T) {
	t.Parallel()
	w := newBlockPool(t, 1, pool.Options{})
	b := w.block(mib, 4)
	x := w.publish("b", b)
	v := w.attach("b", AttachOptions{})
	require.ErrorIs(t, x.span.CloseUnused(noWait(t)), vmm.ErrBusy)
	require.NoError(t, w.srv.Close())
	soon(t, "the reader knows", func() bool { return errors.Is(v.Err(), ErrOwnerGone) })
	require.NoError(t, holds(w.devs[0], v.Ptr(), mib, 4))
	require.ErrorIs(t, x.span.CloseUnused(t.Context()), vmm.ErrClosed, "the reader has it")
	require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
	x.release()
	require.NoError(t, w.own.FreeNow(b))
	require.NoError(t, v.Close())
}

// The owner does not see a block as unused before the work that a reader has queued on it has
// ended, though the reader has called Close.
func TestBlockReaderFinishesFirst(t *testing.T) {
	t.Parallel()
	for n := range 2 {
		t.Run(fmt.Sprint("stream of device ", n), func(t *testing.T) {
			w := newBlockPool(t, n+1, pool.Options{})
			x := w.publish("b", w.block(mib, 1))
			v := w.attach("b", AttachOptions{Write: true})
			if n > 0 {
				require.NoError(t, v.Grant(vmm.AccessReadWrite, w.devs[n]))
			}
			s, open := gate(t, w.devs[n])
			defer open()
			require.NoError(t, v.UsedBy(s))
			require.NoError(t, s.Fill(v.Ptr(), 9, 1, mib))
			ctx, cancel := contextIn(t, 10*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, v.CloseContext(ctx), ctx.Err())
			require.Equal(t, 1, x.span.Readers())
			ctx, cancel = contextIn(t, 50*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, x.span.CloseUnused(ctx), vmm.ErrBusy, "the fill has not run")
			open()
			require.NoError(t, x.span.CloseUnused(t.Context()))
			require.NoError(t, holds(w.devs[0], x.Ptr(), mib, 9))
			require.NoError(t, v.Close())
			w.free(x)
		})
	}
}

// A Close that fails leaves the reader attached, as long as its work may write.
func TestBlockReaderClosesDuringCapture(t *testing.T) {
	w := newBlockPool(t, 1, pool.Options{})
	x := w.publish("b", w.block(mib, 4))
	v := w.attach("b", AttachOptions{Write: true})
	s, err := w.devs[0].NewStream()
	require.NoError(t, err)
	require.NoError(t, s.BeginCapture())
	if err := v.Close(); err != nil {
		require.ErrorIs(t, err, vmm.ErrCapturing)
		require.Equal(t, 1, x.span.Readers())
	}
	g, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, v.Close())
	require.NoError(t, s.Close())
	w.free(x)
}

// Any call of the driver may fail, and nothing is lost.
func TestBlockFaults(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Export", "Properties", "Import", "Reserve", "Map", "SetAccess", "SyncEvent", "Unmap", "Release", "Free"} {
		t.Run(name, func(t *testing.T) {
			var fails atomic.Bool
			w := newBlockPool(t, 1, pool.Options{}, func(c drivertest.Call) error {
				if c.Name == name && fails.CompareAndSwap(true, false) {
					return errTest
				}
				return nil
			})
			b := w.block(3*mib, 1)
			fails.Store(true)
			x, err := publishBlock(w.srv, w.own, b, "b", PublishOptions{Write: true})
			if err != nil {
				require.ErrorIs(t, err, errTest)
				x = w.publish("b", b)
			}
			v, err := Attach(t.Context(), w.srv.Path(), "b", w.devs[0], AttachOptions{Write: true})
			if err == nil {
				if err = v.Wait(t.Context(), b.Size()); err != nil {
					require.NoError(t, v.Close())
				}
			}
			if err != nil {
				require.ErrorIs(t, err, errTest)
				v = w.attach("b", AttachOptions{Write: true})
			}
			require.NoError(t, v.UsedBy(w.s))
			require.NoError(t, w.s.Fill(v.Ptr(), 2, 1, v.Len()))
			if err := v.Close(); err != nil {
				require.ErrorIs(t, err, errTest)
				require.NoError(t, v.Close())
			}
			require.NoError(t, holds(w.devs[0], b.Ptr(), b.Size(), 2))
			fails.Store(false)
			w.free(x)
		})
	}
}

// Many goroutines attach to the same blocks while others try to free them.
func TestBlocksConcurrently(t *testing.T) {
	t.Parallel()
	w := newBlockPool(t, 1, pool.Options{})
	var all []publishedBlock
	for v := range 4 {
		all = append(all, w.publish(fmt.Sprint(v), w.block(uint64(v)*mib+300, byte(v+1))))
	}
	var tasks sync.WaitGroup
	for g := range 6 {
		tasks.Go(func() {
			for round := range 20 {
				k := (g + round) % len(all)
				v, err := Attach(t.Context(), w.srv.Path(), fmt.Sprint(k), w.devs[0], AttachOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(v.Wait(t.Context(), all[k].Size()), holds(w.devs[0], v.Ptr(), 300, byte(k+1))); err != nil {
					t.Error(err)
				}
				if err := all[k].span.CloseUnused(noWait(t)); !errors.Is(err, vmm.ErrBusy) {
					t.Errorf("a span with a reader was closed: %v", err)
				}
				if err := w.own.FreeNow(all[k].Block); !errors.Is(err, vmm.ErrBusy) {
					t.Errorf("a published block was freed: %v", err)
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	tasks.Wait()
	w.free(all...)
}
