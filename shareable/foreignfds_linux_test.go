package shareable

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// slowFiles are slowSockets: a signal ends the wait of one, and Go's runtime may send one, so
// there are several.
func slowFiles(t *testing.T) (fds []int, finish func()) {
	t.Helper()
	var all []func()
	for range 4 {
		fd, end := slowSocket(t)
		fds, all = append(fds, fd), append(all, end)
	}
	return fds, func() {
		for _, end := range all {
			end()
		}
	}
}

// closeAll closes descriptors that are not the last of their files.
func closeAll(t *testing.T, fds []int) {
	t.Helper()
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
}

// takingFDs has descriptors arrive at the server, as they do before Linux 6.16.
func takingFDs(o Options) Options {
	o.hooks.takeFDs = true
	return o
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// slow sends a frame with a slow file. The owner must not have seen it when slow
// returns: the test's own close would wait.
func (e *hostileClient) slow(of wire.Type, flags uint32, body []byte) (finish func()) {
	e.t.Helper()
	h := e.header(of, body)
	h.Flags, h.FDs = flags, 4
	return e.slowPacket(raw(h, body))
}

func (e *hostileClient) slowPacket(b []byte) (finish func()) {
	e.t.Helper()
	fds, finish := slowFiles(e.t)
	require.NoError(e.t, e.packet(b, fds...))
	closeAll(e.t, fds)
	return finish
}

// TestForeignDescriptors: a reader sends descriptors whose close takes as long as it
// likes. The owner's calls do not wait for that, and all of it goes back later.
func TestForeignDescriptors(t *testing.T) {
	list := wire.List{}.Append(nil)
	hello := wire.Hello{Backend: wire.BackendHost, Granularity: 4096}.Append(nil)
	for _, c := range []struct {
		name  string
		early bool // instead of HELLO
		do    func(e *hostileClient) (finish func())
	}{
		{"a request", false, func(e *hostileClient) func() { return e.slow(wire.TypeList, 0, list) }},
		{"a frame that may be skipped", false, func(e *hostileClient) func() { return e.slow(999, wire.FlagOptional, nil) }},
		{"an empty packet", false, func(e *hostileClient) func() { return e.slowPacket(nil) }},
		{"behind an empty packet", false, func(e *hostileClient) func() {
			require.NoError(e.t, e.packet(nil))
			return e.slowPacket(nil)
		}},
		{"behind a breach", false, func(e *hostileClient) func() {
			require.NoError(e.t, e.send(wire.TypeDone, nil))
			return e.slow(wire.TypeList, 0, list)
		}},
		{"HELLO", true, func(e *hostileClient) func() { return e.slow(wire.TypeHello, 0, hello) }},
		{"behind HELLO", true, func(e *hostileClient) func() {
			require.NoError(e.t, e.send(wire.TypeHello, hello))
			return e.slow(wire.TypeList, 0, list)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, p, g := stage(t, takingFDs(Options{}), PublishOptions{})
			require.NoError(t, g.Append(pattern(0, 2<<20+1000)))
			require.NoError(t, p.Flush(t.Context()))
			dev := vmmtest.Device(t)
			honest(t, s.Path(), dev, pattern(0, 2<<20+1000), AttachOptions{})
			soon(t, "the reader has gone", func() bool { return s.Stats().Conns == 0 })
			attack := func() (finish func()) {
				// With the lock held the server gets no further than the limit on connections,
				// or than this LIST.
				if c.early {
					s.mu.Lock()
					defer s.mu.Unlock()
				}
				e := rawConn(t, s.Path())
				if !c.early {
					e.hello()
					e.attach("x")
					s.mu.Lock()
					defer s.mu.Unlock()
					require.NoError(t, e.send(wire.TypeList, list))
				}
				end := c.do(e)
				return func() {
					end()
					e.close()
				}
			}

			finish := attack()
			within(t, "Retire", func() { require.NoError(t, p.Retire(t.Context(), 1<<20)) })
			soon(t, "the reader is forgotten", func() bool { return p.Readers() == 0 })
			// The connection counts against the limits for as long as it is being closed.
			soon(t, "it is connected", func() bool { return s.Stats().Conns == 1 })
			v := attached(t, s, AttachOptions{})
			wait(t, v, 1<<20)
			require.Equal(t, pattern(0, 1<<20), read(t, v, 1<<20))
			require.Equal(t, 2, s.Stats().Conns)
			require.NoError(t, v.Close())
			soon(t, "the other reader has gone", func() bool { return s.Stats().Conns == 1 })
			finish()
			waitExported(t, s, p)
			before := countResources(t, g.Device())
			attack()()
			soon(t, "the next is closed too", func() bool { return s.Stats().Accepted == 4 && s.Stats().Conns == 0 })
			waitReleased(t, g.Device(), before)

			// Close does not wait either.
			finish = attack()
			within(t, "Close", func() { require.NoError(t, s.Close()) })
			finish()
			soon(t, "the connection is closed", func() bool { return s.Stats().Conns == 0 })
		})
	}
}

// TestForeignDescriptorsOfStrangers: so it is with those of peers that may not connect,
// and of connections that nothing has accepted when the server closes.
func TestForeignDescriptorsOfStrangers(t *testing.T) {
	for name, first := range map[string]bool{"accepted": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			dev := vmmtest.Device(t)
			s, err := NewServer(dev, takingFDs(Options{UIDs: []uint32{uint32(os.Getuid()) + 1}}))
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "s")
			s.socket, err = socket.Listen(path, socket.Options{TakeFDs: true})
			require.NoError(t, err)
			before := openFDs(t)
			var finish []func()
			for range 5 {
				e := rawConn(t, path)
				finish = append(finish, e.slowPacket([]byte{1}))
				e.close()
			}
			if first {
				s.tasks.Go(s.acceptLoop)
				soon(t, "all are refused", func() bool { return s.Stats().Refused == 5 })
				e := rawConn(t, path)
				require.Equal(t, wire.CodePermission, e.last())
				e.close()
				within(t, "Close", func() { require.NoError(t, s.Close()) })
			} else {
				s.mu.Lock()
				s.closed = true
				s.mu.Unlock()
				s.tasks.Go(s.acceptLoop)
				close(s.stop)
				within(t, "Close", func() { require.NoError(t, s.socket.Close()); s.tasks.Wait() })
			}
			for _, f := range finish {
				f()
			}
			soon(t, "all are closed", func() bool { return openFDs(t) < before })
		})
	}
}

// TestForeignDescriptorsByHand: ServeConn and Send do not wait either.
func TestForeignDescriptorsByHand(t *testing.T) {
	t.Run("ServeConn", func(t *testing.T) {
		s, _, _ := stage(t, Options{}, PublishOptions{})
		near, far := pair(t)
		finish := slowPacket(t, far)
		within(t, "ServeConn", func() { require.Error(t, s.ServeConn(near)) })
		finish()
		soon(t, "the connection is closed", func() bool { return s.Stats().Conns == 0 })
	})
	t.Run("Send", func(t *testing.T) {
		_, _, g := stage(t, Options{}, PublishOptions{})
		near, far := pair(t)
		finish := slowPacket(t, far)
		within(t, "Send", func() { require.Error(t, Send(t.Context(), near, g)) })
		finish()
	})
	t.Run("Send without an end", func(t *testing.T) {
		_, _, g := stage(t, Options{}, PublishOptions{})
		near, far := pair(t)
		ctx, cancel := context.WithCancel(t.Context())
		finish := slowPacket(t, far)
		cancel()
		within(t, "Send", func() { require.Error(t, Send(ctx, near, g)) })
		finish()
	})
}

// TestDescriptorsAreRefused: where the kernel can, it refuses them to their sender, who
// keeps the connection.
func TestDescriptorsAreRefused(t *testing.T) {
	t.Parallel()
	list := wire.List{}.Append(nil)
	frame := func(e *hostileClient) []byte {
		h := e.header(wire.TypeList, list)
		h.FDs = 1
		return raw(h, list)
	}
	control, _, _ := stage(t, takingFDs(Options{}), PublishOptions{})
	e := rawConn(t, control.Path())
	e.hello()
	require.NoError(t, e.packet(frame(e), nulls(t, 1)...))

	s, _, _ := stage(t, Options{}, PublishOptions{})
	e = rawConn(t, s.Path())
	e.hello()
	err := e.packet(frame(e), nulls(t, 1)...)
	if err == nil {
		t.Skip("needs Linux 6.16")
	}
	require.ErrorIs(t, err, unix.EPERM)
	e.n--
	e.works()

	near, far := pair(t)
	served := make(chan error, 1)
	go func() { served <- s.ServeConn(near) }()
	soon(t, "it is served", func() bool { return s.Stats().Conns == 2 })
	_, _, err = far.WriteMsgUnix([]byte{1}, unix.UnixRights(nulls(t, 1)...), nil)
	require.ErrorIs(t, err, unix.EPERM)
	require.NoError(t, far.Close())
	require.NoError(t, <-served)
}

// slowPacket sends a packet with a slow file.
func slowPacket(t *testing.T, c *net.UnixConn) (finish func()) {
	t.Helper()
	fds, finish := slowFiles(t)
	_, _, err := c.WriteMsgUnix([]byte{1}, unix.UnixRights(fds...), nil)
	require.NoError(t, err)
	closeAll(t, fds)
	return finish
}

// TestLocksStay: a lock of this process on a file is not lost when another process
// passes a descriptor of that file, which a close in this process would do.
func TestLocksStay(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "database")
	require.NoError(t, os.WriteFile(name, []byte("x"), 0o600))
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close() //nolint:errcheck // in a test
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock))

	s, _, _ := stage(t, takingFDs(Options{}), PublishOptions{})
	c := spawn(t, "passer", s.Path(), name)
	require.Equal(t, "held", c.expect("lock")) // once it was cut off
	soon(t, "that is counted", func() bool { return s.Stats().Violations == 1 })
}
