package store

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestServerThatEndsServed: a process that has said that it serves, and has ended by the time that
// its keeper looks, has served.
func TestServerThatEndsServed(t *testing.T) {
	t.Parallel()
	cause := errors.New("killed")
	for range 100 { // of two cases of a select that are ready either may be taken
		p := &keptProcess{serving: make(chan struct{}), ended: make(chan struct{}), err: cause}
		close(p.ended)
		require.ErrorIs(t, p.reaches(t.Context(), p.serving, nil), cause)
		close(p.serving)
		require.NoError(t, p.reaches(t.Context(), p.serving, nil))
	}
}

// TestServesIsSaidFirst: no client is served before the keeper can know that the server serves, and
// none if it cannot.
func TestServesIsSaidFirst(t *testing.T) {
	t.Parallel()
	kept, err := socket.Keep(socketAt(t), socket.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kept.Close()) })
	s, err := newServer(vmmtest.Device(t), Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	reply := make(chan error, 1)
	go func() { reply <- Ping(ctx, kept.Path, ClientOptions{}) }()
	gone := errors.New("the keeper has gone")
	listener, err := unix.Dup(int(kept.Files[0].Fd()))
	require.NoError(t, err)
	require.ErrorIs(t, s.objects.Adopt(kept.Path, listener, -1, func() error {
		select {
		case err := <-reply:
			t.Errorf("a reply before: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		return gone
	}), gone)
	require.NoError(t, s.Close())
	require.Zero(t, s.conns.Stats().Accepted)
	cancel()
	require.ErrorIs(t, <-reply, context.Canceled)
}

// TestKeeperThatDoesNotBegin: Run returns why no server has begun, and asks no
// server how it is then: that may be another one's.
func TestKeeperThatDoesNotBegin(t *testing.T) {
	t.Parallel()
	var states []KeeperState
	k, err := NewKeeper(KeeperOptions{
		Path: socketAt(t), Command: func() *exec.Cmd { return exec.Command("false") }, HealthTime: time.Millisecond,
		Changed: func(s KeeperState) { states = append(states, s) }, // by Run alone, as the race detector sees
	})
	require.NoError(t, err)
	require.ErrorContains(t, k.Run(t.Context()), "exit status 1")
	require.NoError(t, k.Close())
	other, err := Listen(vmmtest.Device(t), k.Path(), Options{})
	require.NoError(t, err)
	<-time.After(20 * time.Millisecond) // many times HealthTime
	require.Zero(t, other.conns.Stats().Accepted)
	require.NoError(t, other.Close())
	require.Equal(t, []KeeperState{KeeperEnds}, states)
}
