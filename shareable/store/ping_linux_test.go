package store

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPingTellsWhatEnded: the context of the caller, or the time that the options give.
func TestPingTellsWhatEnded(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	s.mu.Lock() // it replies no more
	defer s.mu.Unlock()
	for _, timeout := range []time.Duration{0, time.Hour} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		require.ErrorIs(t, Ping(ctx, s.Path(), ClientOptions{Timeout: timeout}), context.DeadlineExceeded)
		cancel()
	}
	for _, timeout := range []time.Duration{1, 50 * time.Millisecond} {
		err := Ping(t.Context(), s.Path(), ClientOptions{Timeout: timeout})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
	//nolint:staticcheck // what a caller may do
	require.ErrorContains(t, Ping(nil, s.Path(), ClientOptions{}), "ping store")
}

// TestWritableOnlyWhileItFollows: a View that is closed, or whose owner is gone, is not Writable.
func TestWritableOnlyWhileItFollows(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "x", CreateOptions{Growable: true})
	require.NoError(t, w.Append([]byte{1}))
	v, err := c.Get(t.Context(), "x", GetOptions{Unsafe: true, Write: true})
	require.NoError(t, err)
	require.True(t, v.Writable())
	require.NoError(t, v.Close())
	require.False(t, v.Writable())
}

// TestPingGoesOnWithTheNextServer: a server that ends without a reply is none, and the next one is asked, until
// the context ends.
func TestPingGoesOnWithTheNextServer(t *testing.T) {
	t.Parallel()
	const lost = 5
	s := listening(t, Options{})
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socketAt(t), Net: "unixpacket"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	serves := make(chan struct{}, 1) // has an element while a server replies
	serves <- struct{}{}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for n := 1; ; n++ {
			conn, err := l.AcceptUnix()
			switch {
			case err != nil:
				return
			case n == lost+1:
				<-serves
				go s.ServeConn(conn) //nolint:errcheck // the client ends it
				continue
			case n == 2*lost:
				cancel()
			}
			_ = conn.Close()
		}
	}()
	require.NoError(t, Ping(ctx, l.Addr().String(), ClientOptions{}))
	require.Empty(t, serves)
	require.ErrorIs(t, Ping(ctx, l.Addr().String(), ClientOptions{}), context.Canceled)
	require.NoError(t, l.Close())
	<-over
}

// TestContextEndsBeforeTheSocket: a context that has ended is the error, as the context says it.
func TestContextEndsBeforeTheSocket(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, f := range map[string]func() error{
		"find the keeper": func() error { _, err := KeeperPID(ctx, s.Path(), nil); return err },
		"ping store":      func() error { return Ping(ctx, s.Path(), ClientOptions{}) },
	} {
		require.EqualError(t, f(), what+": "+ctx.Err().Error())
		require.ErrorIs(t, f(), ctx.Err())
	}
}
