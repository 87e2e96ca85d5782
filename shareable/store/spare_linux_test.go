package store

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// hasSpare reports whether the client has a connection ready for the next Get.
func hasSpare(c *Client) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spare != nil && !c.isMaking
}

// sparesFor sets how long a connection stays ready for the next Get, for clients that the test
// makes from here on. The test must not be parallel: this is for the whole process.
func sparesFor(t *testing.T, d time.Duration) {
	t.Helper()
	was := spareTime
	spareTime = d
	t.Cleanup(func() { spareTime = was })
}

// TestGetAhead: the connection that a client has ready for the next Get serves any Get, and
// one to a server that has ended costs nothing but another try.
func TestGetAhead(t *testing.T) {
	sparesFor(t, time.Hour)
	dev := vmmtest.Device(t)
	path := filepath.Join(t.TempDir(), "s.sock")
	data := bytesOf(10_000)
	start := func() *Server {
		s, err := Listen(dev, path, Options{})
		require.NoError(t, err)
		sealed(t, clientOf(t, s), "x", data)
		return s
	}
	s := start()
	c, err := Connect(t.Context(), path, dev, ClientOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.False(t, hasSpare(c), "a client that gets nothing needs none")
	get := func() {
		t.Helper()
		b, err := c.Get(within(t), "x", GetOptions{})
		require.NoError(t, err)
		require.Equal(t, data, contents(t, b))
		require.Equal(t, s.Instance(), IDOf(b).Instance)
		require.NoError(t, b.Close())
		require.Eventually(t, func() bool { return hasSpare(c) }, inTime, step)
	}
	accepted := func() uint64 { return s.Stats().Conns.Accepted }
	get()
	was := accepted()
	get()
	require.Equal(t, was+1, accepted(), "the next one's alone")

	_, err = c.Get(within(t), "none", GetOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	get()
	w := writer(t, c, "open", CreateOptions{Size: 8 << 20})
	_, err = c.Get(within(t), "open", GetOptions{})
	require.ErrorIs(t, err, shareable.ErrNotSealed)
	get()
	b, err := c.Get(within(t), "open", GetOptions{Unsafe: true, Write: true})
	require.NoError(t, err)
	require.True(t, b.Writable())
	require.NoError(t, b.Close())
	get()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Get(over, "x", GetOptions{})
	require.ErrorIs(t, err, context.Canceled)
	get()
	require.NoError(t, w.Close())

	require.NoError(t, s.Close())
	_, err = c.Get(within(t), "x", GetOptions{})
	require.ErrorIs(t, err, shareable.ErrOwnerGone)
	s = start()
	get()
	require.NoError(t, s.Close())
	s = start() // the client has a connection to the one before
	get()
	require.NoError(t, s.Close())
}

// TestGetAheadEnds: a server has a client's connection for the next Get for a moment only.
func TestGetAheadEnds(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s.sock"), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	c := clientOf(t, s)
	sealed(t, c, "x", bytesOf(1))
	require.NoError(t, got(t, c, "x", GetOptions{}).Close())
	require.Eventually(t, func() bool { return s.Stats().Clients == 1 && !hasSpare(c) }, inTime, step)
	require.NoError(t, got(t, c, "x", GetOptions{}).Close())
}

// TestGetAheadOfClose: a client that is closed while it makes the connection leaves none.
func TestGetAheadOfClose(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s.sock"), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	sealed(t, clientOf(t, s), "x", bytesOf(1))
	require.Eventually(t, func() bool { return s.Stats().Clients == 1 }, inTime, step)
	for i := range 100 {
		c, err := Connect(t.Context(), s.Path(), dev, ClientOptions{})
		require.NoError(t, err)
		b, err := c.Get(within(t), "x", GetOptions{})
		require.NoError(t, err)
		for range i {
			runtime.Gosched()
		}
		require.NoError(t, c.Close())
		require.NoError(t, b.Close())
	}
	require.Eventually(t, func() bool { return s.Stats().Clients == 1 }, inTime, step)
}
