package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// takeOverFrom takes over from a server of this process.
func takeOverFrom(t *testing.T, s *Server, ctx context.Context, dev *vmm.Device, o Options) (*Server, error) { //nolint:revive // the test first
	t.Helper()
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	require.NoError(t, err)
	defer closeFD(self)
	theirs, own, err := socketPair()
	require.NoError(t, err)
	over := make(chan error, 1)
	go func() { over <- s.HandOver(theirs) }()
	next, err := TakeOver(ctx, dev, own, self, o)
	if handed := <-over; err == nil {
		require.NoError(t, handed)
	} else {
		require.Error(t, handed)
	}
	return next, err
}

// takeOverAt takes over from a server of another process, which lets any client do that.
func takeOverAt(ctx context.Context, dev *vmm.Device, path string, o Options) (*Server, error) {
	first, err := shareable.Dial(ctx, path, dev, shareable.AttachOptions{}, unasked)
	if err != nil {
		return nil, err
	}
	other, err := unix.PidfdOpen(int(first.Hello().PID), 0)
	first.Close()
	if errors.Is(err, unix.EMFILE) {
		err = fmt.Errorf("%w: %w", vmm.ErrLimit, err)
	}
	if err != nil {
		return nil, err
	}
	defer closeFD(other)
	return takeOver(ctx, dev, func(with shareable.AttachOptions, event func(wire.Frame) error) (serve.Client, error) {
		return shareable.Dial(ctx, path, dev, with, event)
	}, other, o, nil)
}

// TestNoClientTakesOver: what is not the successor that a store was told of cannot take it over, whoever it
// is, and holds up nothing. Without that guard it could.
func TestNoClientTakesOver(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{true, false} {
		o := Options{}
		o.hooks.anyTakesOver = !guarded
		s := listening(t, o)
		sealed(t, clientOf(t, s), "x", bytesOf(1000))
		thief := connected(t, s)
		err := thief.ask(wire.TypeTakeOver, nil)
		if !guarded {
			require.NoError(t, err)
			require.NoError(t, thief.ask(wire.TypeTaken, nil))
			require.True(t, s.Wait())
			continue
		}
		require.ErrorIs(t, err, vmm.ErrPermission)
		require.Error(t, thief.ask(wire.TypeTaken, nil))
		require.Equal(t, bytesOf(1000), contents(t, got(t, clientOf(t, s), "x", GetOptions{})))
		require.Zero(t, s.Stats().Taken)
	}
	one, other, err := socketPair()
	require.NoError(t, err)
	require.Error(t, (*Server)(nil).HandOver(one))
	require.NoError(t, other.Close())
	_, err = TakeOver(t.Context(), vmmtest.Device(t), nil, -1, Options{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// TestTakeOverWithOtherUsers: clients of users whom the successor does not admit are disconnected, and their leases
// end; the objects stay.
func TestTakeOverWithOtherUsers(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	sealed(t, c, "x", bytesOf(1000))
	w := writer(t, c, "w", CreateOptions{Size: 1 << 20, Growable: true, Durable: true})
	next, err := takeOverFrom(t, s, t.Context(), vmmtest.Device(t), Options{UIDs: []uint32{uint32(os.Getuid()) + 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, next.Close()) })
	require.Eventually(t, func() bool { return w.Err() != nil }, inTime, step)
	require.ErrorIs(t, w.Err(), shareable.ErrOwnerGone)
	_, err = c.List(t.Context(), ListOptions{})
	require.ErrorIs(t, err, vmm.ErrPermission)
	require.Eventually(t, func() bool { x := next.Stats(); return x.Clients == 0 && x.Leases == 0 }, inTime, step)
	require.Equal(t, 2, next.Stats().Objects)
}

// TestStateWhileItTells: the state of a handover, which is taken with the server's lock, does not wait for what
// the keeper is being told, which waits for that lock.
func TestStateWhileItTells(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	near, far, err := socketPair()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(near.Close(), far.Close())) })
	s.startRecording(near)
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	got := make(chan uint64, 1)
	go func() { got <- s.recorder.highest() }()
	select {
	case <-got:
	case <-time.After(inTime):
		require.Fail(t, "it waits")
	}
}
