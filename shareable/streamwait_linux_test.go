package shareable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// copyBehind is a stream of the view's device with a copy behind a WaitOn for n: the
// first byte of chunk from, as it is when the stream comes to it.
func copyBehind(t *testing.T, v *View, n, from uint64) (s *vmm.Stream, out *vmm.Range) {
	t.Helper()
	s, err := v.Device().NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	out, err = v.Device().Alloc(uint64(1))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, out.Close()) })
	require.NoError(t, v.WaitOn(s, n))
	require.NoError(t, s.Copy(out.Ptr(), v.Ptr()+vmm.Ptr(from), 1))
	return s, out
}

func resting(t *testing.T, s *vmm.Stream) bool {
	t.Helper()
	e, err := s.Record()
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	done, err := e.Done()
	require.NoError(t, err)
	return done
}

func first(t *testing.T, g *vmm.Range) byte {
	t.Helper()
	b, err := g.Host()
	require.NoError(t, err)
	return b[0]
}

func TestWaitOn(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	near, a := copyBehind(t, v, s.gran, 0)
	late, b := copyBehind(t, v, 2*s.gran, s.gran)
	s.done(s.gran)
	require.NoError(t, near.Sync())
	require.Equal(t, byte(1), first(t, a))
	require.False(t, resting(t, late))
	s.done(2 * s.gran)
	require.NoError(t, late.Sync())
	require.Equal(t, byte(2), first(t, b))

	require.NoError(t, v.WaitOn(late, 2*s.gran)) // nothing to wait for
	require.NoError(t, late.Sync())
	require.ErrorIs(t, v.WaitOn(late, v.Max()+1), vmm.ErrBounds)
}

func TestWaitOnUsesItsWordsAgain(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 1)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(1)
	s.chunks(0, 1)
	s.ack()
	stream, err := v.Device().NewStream()
	require.NoError(t, err)
	for n := uint64(1); n <= 3*pinnedBytes/waitBytes; n++ {
		require.NoError(t, v.WaitOn(stream, n))
		s.done(n)
		require.NoError(t, stream.Sync())
	}
	require.Len(t, v.waits.pages, 1)
	require.NoError(t, stream.Close())
}

func TestWaitOnOwnerGone(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	stream, err := v.Device().NewStream()
	require.NoError(t, err)
	require.NoError(t, v.WaitOn(stream, 1))
	require.False(t, resting(t, stream))
	require.NoError(t, s.c.Close())
	require.NoError(t, stream.Sync())
	require.ErrorIs(t, v.Err(), ErrOwnerGone)
	require.ErrorIs(t, v.WaitOn(stream, 1), ErrOwnerGone)
	require.NoError(t, stream.Close())
}

func TestWaitOnSealed(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	stream, err := v.Device().NewStream()
	require.NoError(t, err)
	require.NoError(t, v.WaitOn(stream, 1))
	s.write(wire.TypeSealed, 0, wire.Sealed{Object: 7}.Append(nil))
	require.NoError(t, stream.Sync())
	require.NoError(t, v.Err())
	require.True(t, v.Sealed())
	require.ErrorIs(t, v.WaitOn(stream, 1), ErrSealed)
	require.NoError(t, stream.Close())
}

func TestWaitOnClose(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	stream, err := v.Device().NewStream()
	require.NoError(t, err)
	require.NoError(t, v.WaitOn(stream, 1))
	require.NoError(t, v.Close())
	require.NoError(t, stream.Sync())
	require.ErrorIs(t, v.WaitOn(stream, 1), vmm.ErrClosed)
	require.NoError(t, stream.Close())
	require.ErrorIs(t, v.WaitOn(stream, 1), vmm.ErrClosed)
}

// TestWaitOnRetire: unmapping waits for the stream, which waits for bytes that
// come only after the unmapping.
func TestWaitOnRetire(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{Timeout: time.Minute})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	stream, err := v.Device().NewStream()
	require.NoError(t, err)
	require.NoError(t, v.WaitOn(stream, 2*s.gran))
	s.generation(2)
	s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: s.gran}.Append(nil))
	require.NoError(t, stream.Sync())
	require.ErrorIs(t, v.Err(), ErrRetired)
	require.NoError(t, stream.Close())
}

// TestWaitOnRetireBehind: what the stream waits for stays, so it may still come.
func TestWaitOnRetireBehind(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{Timeout: time.Minute})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	stream, err := v.Device().NewStream()
	require.NoError(t, err)
	require.NoError(t, v.WaitOn(stream, s.gran))
	s.generation(2)
	s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: s.gran}.Append(nil))
	require.Eventually(t, func() bool { return v.Cap() == s.gran }, inTime, time.Millisecond)
	s.done(s.gran)
	require.Equal(t, uint64(2), s.ack().Generation)
	require.NoError(t, stream.Sync())
	require.NoError(t, v.Err())
	require.NoError(t, stream.Close())
}

// TestViewRetireUnderWork: work that does not end costs the owner, not this side.
func TestViewRetireUnderWork(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{Timeout: 300 * time.Millisecond})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	stream, open := gate(t, v.Device())
	s.generation(2)
	s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: s.gran}.Append(nil))
	s.gone()
	require.ErrorIs(t, ended(t, v), ErrRetired)
	open()
	require.NoError(t, stream.Sync())
}

// TestViewRetireInCapture: it is unmapped when the capture is over.
func TestViewRetireInCapture(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{Timeout: time.Minute})
	s.grow(2)
	s.chunks(0, 2)
	s.ack()
	stream, err := v.Device().NewStream()
	require.NoError(t, err)
	raw, err := v.Device().Raw()
	require.NoError(t, err)
	capturer := raw.(driver.Grapher)
	require.NoError(t, capturer.BeginCapture(stream.Raw(), driver.CaptureRelaxed))
	require.ErrorIs(t, v.WaitOn(stream, 1), vmm.ErrCapturing)
	s.generation(2)
	s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: s.gran}.Append(nil))
	require.Eventually(t, func() bool { return v.Generation() == 2 }, inTime, time.Millisecond)
	require.NoError(t, endCapture(capturer, stream.Raw()))
	require.Equal(t, uint64(2), s.ack().Generation)
	require.NoError(t, stream.Close())
}

// gate is a stream of dev that runs nothing until open is called.
func gate(t *testing.T, dev *vmm.Device) (s *vmm.Stream, open func()) {
	t.Helper()
	s, err := dev.NewStream()
	require.NoError(t, err)
	raw, err := dev.Raw()
	require.NoError(t, err)
	p, b, err := raw.(driver.HostAllocator).AllocHost(8)
	require.NoError(t, err)
	storeWord(b, 0, 0)
	require.NoError(t, raw.(driver.StreamMemOps).WaitValue(s.Raw(), p, 1, 8))
	t.Cleanup(func() {
		storeWord(b, 0, 1) // a test that fails has not opened it
		require.NoError(t, s.Close())
		require.NoError(t, raw.(driver.HostAllocator).FreeHost(p))
	})
	return s, func() { storeWord(b, 0, 1) }
}

func TestViewCloseContext(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 4)
	v := viewed(t, s, far, AttachOptions{})
	s.grow(1)
	s.chunks(0, 1)
	s.ack()
	_, open := gate(t, v.Device())
	ctx, cancel := contextIn(t, 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, v.CloseContext(ctx), ctx.Err())
	require.ErrorIs(t, v.Err(), vmm.ErrClosed)
	open()
	require.NoError(t, v.Close())
}

// endCapture ends a capture and drops the graph.
func endCapture(d driver.Grapher, s driver.Stream) error {
	g, err := d.EndCapture(s)
	if err == nil {
		err = d.FreeGraph(g)
	}
	return err
}
