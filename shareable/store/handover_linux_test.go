package store

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestTakeOver: a writer, a reader that is attached, requests that wait and events go on in
// another server, on the same connections.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	w, r := connected(t, s), connected(t, s)
	dev := vmmtest.Device(t)
	data := bytesOf(100_000)
	m, err := w.leaseWith(wire.TypeCreate, wire.Create{Name: "g", Size: 16 << 20, Flags: wire.StoreGrowable | wire.StoreDurable}.Append(nil))
	require.NoError(t, err)
	require.NoError(t, w.grow(&m, 100_000))
	w.fill(m, data)
	m.chunks = nil
	m.page.Publish(60_000)
	v, err := shareable.Attach(t.Context(), s.Path(), "g", dev, shareable.AttachOptions{Unsealed: true})
	require.NoError(t, err)
	require.NoError(t, v.Wait(t.Context(), 60_000))
	waited := make(chan error, 1)
	go func() {
		waited <- r.Call(t.Context(), wire.TypeWait, wire.Wait{Name: "g"}.Append(nil), wire.TypeObject, func(wire.Frame) error { return nil })
	}()
	require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)

	for range 10 {
		next, err := takeOverFrom(t, s, t.Context(), vmmtest.Device(t), Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, next.Close()) })
		require.True(t, s.Wait())
		require.NoError(t, s.Close())
		require.True(t, s.Wait(), "after Close, too")
		require.Equal(t, 1, next.Stats().Objects)
		require.Equal(t, 1, next.Stats().Leases)
		s = next
	}
	require.Equal(t, uint64(10), s.Stats().Taken)
	require.NoError(t, v.Err())

	m.page.Publish(100_000)
	require.NoError(t, w.Send(wire.TypeWrote, wire.Wrote{Object: m.ID}.Append(nil)))
	require.NoError(t, v.Wait(t.Context(), 100_000))
	require.NoError(t, w.grow(&m, 3<<20))
	require.Len(t, m.chunks, 1)
	require.NoError(t, m.chunks[0].Close())
	require.NoError(t, w.ask(wire.TypeSeal, wire.Seal{Object: m.ID, Length: 150_000}.Append(nil)))
	require.NoError(t, <-waited)
	require.NoError(t, v.Wait(t.Context(), 150_000))
	got := make([]byte, len(data))
	_, err = v.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, data, got)
	require.NoError(t, v.Close())
	require.NoError(t, w.ask(wire.TypeDelete, wire.Delete{Name: "g"}.Append(nil)))
	require.Eventually(t, func() bool { return s.Stats().Objects == 0 && s.Stats().Bytes == 0 }, inTime, step)
}

// TestTakeOverByAnotherDevice: a successor that has other memory changes nothing.
func TestTakeOverByAnotherDevice(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	sealed(t, c, "a", bytesOf(1000))
	others := map[string]*vmm.Device{}
	for name, where := range map[string]string{"device": "host:1", "pages": "host:0?page=64K"} {
		dev, err := vmm.Open(where)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		others[name] = dev
	}
	for name, dev := range others {
		_, err := takeOverFrom(t, s, t.Context(), dev, Options{})
		require.ErrorIs(t, err, vmm.ErrNotSupported, name)
	}
	require.Equal(t, bytesOf(1000), contents(t, got(t, c, "a", GetOptions{})))
	require.Zero(t, s.Stats().Taken)
}

// TestWatchAfterFailedTakeOver: events go on after a takeover that has failed.
func TestWatchAfterFailedTakeOver(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	events, err := c.Watch(within(t), "")
	require.NoError(t, err)
	next, stop := iter.Pull2(events)
	defer stop()
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		o := Options{}
		o.hooks.beforeTaken = cancel
		_, err = takeOverFrom(t, s, ctx, vmmtest.Device(t), o)
		require.ErrorIs(t, err, context.Canceled)
		name := fmt.Sprint(i)
		sealed(t, c, name, []byte("x"))
		for _, want := range []EventKind{EventCreated, EventSealed} {
			e, err, _ := next()
			require.NoError(t, err)
			require.Equal(t, want, e.Kind)
			require.Equal(t, name, e.Name)
		}
	}
}

// TestHandoverNeedsFewDescriptors: a store that is near its limit on open files can be taken
// over, so the descriptors of its memory are sent as they are.
func TestHandoverNeedsFewDescriptors(t *testing.T) {
	s := listening(t, Options{})
	c := clientOf(t, s)
	const n = 100
	for i := range n {
		sealed(t, c, fmt.Sprintf("x/%d", i), []byte("x"))
	}
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return s.Stats().Clients == 0 }, inTime, step)
	_, err := connected(t, s).leaseWith(wire.TypeCreate, wire.Create{Name: "w", Size: 1}.Append(nil))
	require.NoError(t, err)
	but := s.byName["w"].lease
	require.NoError(t, s.objects.Park(inTime, but))
	defer s.objects.Decide(false)
	before := processFDs(t)
	_, fds, release, err := s.state(but)
	require.NoError(t, err)
	defer release()
	require.Greater(t, len(fds), n)
	require.Less(t, processFDs(t)-before, n/10)
	// An object that goes meanwhile takes none of them away.
	s.drop(s.order[0])
	for _, fd := range fds {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
	}
}
