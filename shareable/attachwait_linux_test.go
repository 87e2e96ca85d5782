package shareable

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// attachResult is what an Attach in another goroutine has returned.
type attachResult struct {
	v   *View
	err error
}

// attachLater attaches to "x" in another goroutine. The View is closed with the test.
func attachLater(ctx context.Context, t *testing.T, path string, o AttachOptions) <-chan attachResult {
	t.Helper()
	dev := vmmtest.Device(t)
	result := make(chan attachResult, 1)
	go func() {
		v, err := Attach(ctx, path, "x", dev, o)
		t.Cleanup(func() { _ = v.Close() })
		result <- attachResult{v, err}
	}()
	return result
}

// stillWaits: an Attach that waits has not ended after several of its pauses.
func stillWaits(t *testing.T, result <-chan attachResult) {
	t.Helper()
	select {
	case r := <-result:
		require.Fail(t, "it has not waited", "%v", r.err)
	case <-time.After(50 * time.Millisecond): // that it goes on is no event
	}
}

// TestAttachWaits: the owner begins later, and publishes later still.
func TestAttachWaits(t *testing.T) {
	t.Parallel()
	path := socketAt(t)
	result := attachLater(t.Context(), t, path, AttachOptions{Wait: true})
	stillWaits(t, result)

	dev := vmmtest.Device(t)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 20, Share: vmm.ShareFD})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	require.NoError(t, g.Append(pattern(0, 100)))
	s, err := Listen(dev, path, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	stillWaits(t, result)

	_, err = s.Publish("x", g, PublishOptions{})
	require.NoError(t, err)
	r := <-result
	require.NoError(t, r.err)
	wait(t, r.v, 100)
	require.Equal(t, pattern(0, 100), read(t, r.v, 100))
}

// ownerThatLeaves listens, and closes each connection once it has said so.
func ownerThatLeaves(t *testing.T) (path string, connected <-chan struct{}) {
	t.Helper()
	path = socketAt(t)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	connections := make(chan struct{})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case connections <- struct{}{}:
			case <-t.Context().Done():
			}
			_ = conn.Close()
		}
	}()
	return path, connections
}

// TestAttachWaitEnds: a context that ends, and what does not pass.
func TestAttachWaitEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s, _, _ := stage(t, Options{Token: []byte("secret")}, PublishOptions{})
	path, connected := ownerThatLeaves(t)
	nowhere := attachLater(ctx, t, path, AttachOptions{Wait: true})
	noName := make(chan error, 1)
	dev := vmmtest.Device(t)
	go func() {
		_, err := Attach(ctx, s.Path(), "y", dev, AttachOptions{Wait: true, Token: []byte("secret")})
		noName <- err
	}()
	for range firstTries + 1 { // the last one is of another try: the first has failed
		<-connected
	}
	cancel()
	r := <-nowhere
	require.ErrorIs(t, r.err, context.Canceled)
	require.ErrorIs(t, r.err, ErrOwnerGone, "what it has waited for")
	err := <-noName
	require.ErrorIs(t, err, context.Canceled)

	_, err = Attach(t.Context(), s.Path(), "x", dev, AttachOptions{Wait: true, Token: []byte("other")})
	require.ErrorIs(t, err, vmm.ErrPermission)
	_, err = Attach(t.Context(), s.Path(), "x", dev, AttachOptions{Wait: true, Token: []byte("secret"), UIDs: []uint32{1 << 30}})
	require.ErrorIs(t, err, vmm.ErrPermission)
	_, err = Attach(t.Context(), s.Path(), "a..b", dev, AttachOptions{Wait: true})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = Attach(t.Context(), s.Path(), wire.IDName(1<<40), dev, AttachOptions{Wait: true, Token: []byte("secret")})
	require.ErrorIs(t, err, ErrNotFound, "no object gets that ID")
}

// TestReattachWaits: Reattach has the options of the old View.
func TestReattachWaits(t *testing.T) {
	t.Parallel()
	path := socketAt(t)
	dev := vmmtest.Device(t)
	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 20, Share: vmm.ShareFD})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	begin := func() *Server {
		s, err := Listen(dev, path, Options{})
		require.NoError(t, err)
		_, err = s.Publish("x", g, PublishOptions{})
		require.NoError(t, err)
		return s
	}
	s := begin()
	old := joined(t, path, vmmtest.Device(t), AttachOptions{Wait: true})
	require.NoError(t, s.Close())
	orphaned(t, old)
	result := make(chan attachResult, 1)
	go func() {
		v, fresh, err := Reattach(t.Context(), old)
		if err == nil && !fresh {
			t.Error("the view is the old one")
		}
		result <- attachResult{v, err}
	}()
	stillWaits(t, result)
	s = begin()
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r := <-result
	require.NoError(t, r.err)
	require.Equal(t, s.Instance(), r.v.Instance())
	require.NoError(t, r.v.Close())
}
