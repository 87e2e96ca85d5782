package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// connPair is a socket pair.
func connPair(t *testing.T) (pair [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		require.NoError(t, f.Close())
		require.NoError(t, err)
		pair[i] = c.(*net.UnixConn) //nolint:forcetypeassert // it is
	}
	return pair
}

// takeOverFrom takes over from a server of this process.
func takeOverFrom(t *testing.T, s *Server, ctx context.Context, dev *vmm.Device, o Options) (*Server, error) { //nolint:revive // the test first
	t.Helper()
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	require.NoError(t, err)
	defer closeFD(self)
	conns := connPair(t)
	over := make(chan error, 1)
	go func() { over <- s.HandOver(conns[0]) }()
	next, err := TakeOver(ctx, dev, conns[1], self, o)
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
	}, other, o)
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
	require.Error(t, (*Server)(nil).HandOver(connPair(t)[0]))
	_, err := TakeOver(t.Context(), vmmtest.Device(t), nil, -1, Options{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
}
