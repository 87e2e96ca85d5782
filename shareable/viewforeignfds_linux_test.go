package shareable

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/silentfs"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// slowSocket is a TCP socket whose last close waits until its peer, which does not read,
// has all bytes: until release is called, and at most until the test ends.
func slowSocket(t *testing.T) (fd int, release func()) {
	t.Helper()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(l) //nolint:errcheck // in a test
	require.NoError(t, unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_RCVBUF, 2048))
	require.NoError(t, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	require.NoError(t, err)
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Connect(fd, at))
	peer, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	require.NoError(t, err)
	release = sync.OnceFunc(func() { _ = unix.Shutdown(peer, unix.SHUT_RDWR); _ = unix.Close(peer) })
	t.Cleanup(release)
	require.NoError(t, unix.SetNonblock(fd, true))
	for b := make([]byte, 64<<10); ; {
		if _, err := unix.Write(fd, b); err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			break
		}
	}
	require.NoError(t, unix.SetNonblock(fd, false))
	const wait = 13 // the option of socket(7) for that; its value is two integers: on, and 600 seconds
	require.NoError(t, unix.SetsockoptString(fd, unix.SOL_SOCKET, wait, "\x01\x00\x00\x00\x58\x02\x00\x00"))
	return fd, release
}

// TestSlowSocket is the control: the last close of such a socket waits, and so do the close of
// another socket in which it lies unread and a read there that takes no descriptors. A signal
// ends the wait, also one of the runtime's, so it may take more than one try.
//
// It is not parallel: the more the process does, the more signals there are.
func TestSlowSocket(t *testing.T) {
	for name, c := range map[string]struct {
		unread bool // it lies unread in a socket
		do     func(fd int)
	}{
		"close":           {do: func(int) {}},
		"close unread":    {unread: true, do: func(int) {}},
		"read without it": {unread: true, do: func(fd int) { _, _, _, _, _ = unix.Recvmsg(fd, make([]byte, 10), nil, 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			soon(t, "it waits", func() bool {
				fd, release := slowSocket(t)
				if c.unread {
					ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
					require.NoError(t, err)
					defer unix.Close(ends[0]) //nolint:errcheck // in a test
					require.NoError(t, sendRaw(ends[0], []byte{1}, unix.UnixRights(fd)))
					require.NoError(t, unix.Close(fd))
					fd = ends[1]
				}
				closed := make(chan struct{})
				go func() {
					c.do(fd)
					_ = unix.Close(fd)
					close(closed)
				}()
				select {
				case <-closed:
					return false
				case <-time.After(50 * time.Millisecond):
				}
				release()
				<-closed
				return true
			})
		})
	}
}

// within runs f, which must return in time.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(inTime):
		t.Fatalf("%s has not returned after %v", what, inTime)
	}
}

// speaksFirst sends all that an owner sends until two chunks can be read, before there
// is a reader.
func (k *hostileOwner) speaksFirst() {
	k.t.Helper()
	k.saysHello()
	k.send(wire.TypeObject, attachRequest, k.o.Append(nil), k.fd, k.wake.reader)
	k.chunks(0, 2)
	k.done(2 * piecesize)
}

// left is how many goroutines of connections no call waits for any more.
func left() int {
	leftBehind.mu.Lock()
	defer leftBehind.mu.Unlock()
	return leftBehind.n
}

// settled waits until every connection of this process that has ended is closed. A parallel test
// might never see that.
func settled(t *testing.T) {
	t.Helper()
	soon(t, "connections that have ended are closed", func() bool { return left() == 0 })
}

// saysHello sends HELLO, and waits for none.
func (k *hostileOwner) saysHello() {
	k.t.Helper()
	k.send(wire.TypeHello, 0, wire.Hello{Backend: wire.BackendHost, Instance: k.o.Instance, Granularity: piecesize}.Append(nil))
}

// TestForeignDescriptorsAtAttach: an owner passes files whose close waits, in place of
// the pages or with frames that are skipped. Attach returns all the same, and when they
// can be closed they are.
func TestForeignDescriptorsAtAttach(t *testing.T) {
	socket := func(t *testing.T) (int, func(), func()) {
		fd, release := slowSocket(t)
		return fd, func() { require.NoError(t, unix.Close(fd)) }, release
	}
	silent := func(t *testing.T) (int, func(), func()) { // each close of it waits, not only the last
		fd, end := silentfs.File(t, true)
		return fd, func() {}, end
	}
	for name, make := range map[string]func(*testing.T) (fd int, sent, release func()){"socket": socket, "silent": silent} {
		for stage, c := range map[string]struct {
			do   func(k *hostileOwner, fd int)
			want error
		}{
			"control page": {func(k *hostileOwner, fd int) {
				k.saysHello()
				k.send(wire.TypeObject, attachRequest, k.o.Append(nil), fd, k.wake.reader)
			}, ErrProtocol},
			"wake socket": {func(k *hostileOwner, fd int) {
				k.saysHello()
				k.send(wire.TypeObject, attachRequest, k.o.Append(nil), k.fd, fd)
			}, ErrProtocol},
			"in place of HELLO": {func(k *hostileOwner, fd int) {
				k.send(wire.TypeObject, attachRequest, k.o.Append(nil), fd, k.wake.reader)
			}, ErrProtocol},
			"in an empty packet": {func(k *hostileOwner, fd int) { k.packet(nil, fd) }, ErrProtocol},
			"skipped": {func(k *hostileOwner, fd int) {
				require.NoError(k.t, k.c.Write(999, 0, wire.FlagOptional, nil, fd))
				k.saysHello()
			}, os.ErrDeadlineExceeded},
			"not read": {func(k *hostileOwner, fd int) {
				k.send(wire.TypeDone, 0, nil)
				k.packet(nil) // looks like the end
				k.packet([]byte("noise"), fd)
			}, ErrProtocol},
		} {
			t.Run(name+"/"+stage, func(t *testing.T) {
				dev := vmmtest.Device(t)
				before := countResources(t, dev)
				t.Run("victim", func(t *testing.T) {
					k, far := newHostileOwner(t)
					fd, sent, release := make(t)
					c.do(k, fd)
					sent()
					got := begins(t, far, dev, AttachOptions{Timeout: 100 * time.Millisecond})
					within(t, "Attach", func() { require.ErrorIs(t, (<-got).err, c.want) })
					if name == "silent" && stage != "not read" { // the kernel's own close asks no daemon
						require.Equal(t, 1, left())
					}
					release()
				})
				waitReleased(t, dev, before)
			})
		}
	}
}

// TestForeignDescriptorsOfViews: nor does anything of a View wait for such a file.
func TestForeignDescriptorsOfViews(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(k *hostileOwner, fd int)
		want error // nil: the View goes on, without frames
	}{
		"a chunk": {func(k *hostileOwner, fd int) {
			k.send(wire.TypeChunks, 0, k.records(2, 1).Append(nil), fd)
		}, vmm.ErrInvalid},
		"behind a good chunk": {func(k *hostileOwner, fd int) {
			k.send(wire.TypeChunks, 0, k.records(2, 2).Append(nil), memory(k.t, piecesize, firm), fd)
		}, vmm.ErrInvalid},
		"a chunk that is mapped already": {func(k *hostileOwner, fd int) {
			k.send(wire.TypeChunks, 0, k.records(1, 1).Append(nil), fd)
		}, nil},
		"skipped": {func(k *hostileOwner, fd int) {
			require.NoError(k.t, k.c.Write(999, 0, wire.FlagOptional, nil, fd))
		}, nil},
		"with a breach": {func(k *hostileOwner, fd int) {
			c := k.records(2, 1)
			c.Records[0].Offset++
			k.send(wire.TypeChunks, 0, c.Append(nil), fd)
		}, ErrProtocol},
		"behind CLOSING": {func(k *hostileOwner, fd int) {
			k.send(wire.TypeClosing, 0, wire.Closing{Reason: "x"}.Append(nil))
			k.packet([]byte("noise"), fd)
		}, ErrOwnerGone},
	} {
		t.Run(name, func(t *testing.T) {
			dev := vmmtest.Device(t)
			before := countResources(t, dev)
			t.Run("victim", func(t *testing.T) {
				k, far := newHostileOwner(t)
				k.speaksFirst()
				fd, release := slowSocket(t)
				c.do(k, fd)
				require.NoError(t, unix.Close(fd))
				v, err := AttachConn(t.Context(), far, "x", dev, AttachOptions{Timeout: 100 * time.Millisecond})
				require.NoError(t, err)
				waiting := make(chan error, 1)
				go func() { waiting <- v.Wait(t.Context(), v.Max()) }()
				wait(t, v, 2*piecesize)
				if c.want != nil {
					within(t, "Wait", func() { require.ErrorIs(t, <-waiting, c.want) })
					require.Equal(t, make([]byte, 10), read(t, v, 10))
				}
				within(t, "Close", func() { require.NoError(t, v.Close()) })
				if c.want == nil {
					within(t, "Wait", func() { require.ErrorIs(t, <-waiting, vmm.ErrClosed) })
				}
				release()
			})
			waitReleased(t, dev, before)
		})
	}
}

// TestForeignDescriptorsWithoutRoom: the kernel itself closes a file for which this
// process has no descriptor, during the call that receives it.
func TestForeignDescriptorsWithoutRoom(t *testing.T) {
	s, far := newScriptedOwner(t, 2)
	v := viewed(t, s, far, AttachOptions{})
	fd, release := slowSocket(t)
	c := wire.Chunks{Object: 7, Generation: 1, Records: []wire.Chunk{{ID: 1, Size: s.gran}}}
	restore := leaveFDs(t, 0)
	// The View holds a frame that it cannot handle, so it reads no other, and the test's
	// close is not the last.
	require.NoError(t, v.conn.work(func() error {
		s.write(wire.TypeSealed, 0, wire.Sealed{Object: 7}.Append(nil))
		soon(t, "the frame is read", func() bool { return unread(t, s.raw) == 0 })
		s.write(wire.TypeChunks, 0, c.Append(nil), fd)
		return unix.Close(fd)
	}))
	soon(t, "the View reads on", func() bool { return unread(t, s.raw) == 0 })
	within(t, "Close", func() { require.NoError(t, v.Close()) })
	restore()
	release()
	settled(t)
}

// TestForeignDescriptorsReceived: Receive returns, and after it the caller's own close of
// the connection does not wait.
func TestForeignDescriptorsReceived(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(k *hostileOwner, fd int)
		want error
	}{
		"a chunk": {func(k *hostileOwner, fd int) {
			k.send(wire.TypeChunks, 0, k.records(0, 1).Append(nil), fd)
		}, vmm.ErrInvalid},
		"skipped": {func(k *hostileOwner, fd int) {
			require.NoError(k.t, k.c.Write(999, 0, wire.FlagOptional, nil, fd))
		}, os.ErrDeadlineExceeded},
		"not read": {func(k *hostileOwner, fd int) {
			k.send(wire.TypeClosing, 0, wire.Closing{}.Append(nil))
			k.packet(nil)
			k.packet([]byte("noise"), fd)
		}, ErrOwnerGone},
	} {
		t.Run(name, func(t *testing.T) {
			dev := vmmtest.Device(t)
			before := countResources(t, dev)
			t.Run("victim", func(t *testing.T) {
				k, far := newHostileOwner(t)
				k.o.State, k.o.Length = wire.StateSealed, piecesize
				k.saysHello()
				k.send(wire.TypeObject, 0, k.o.Append(nil))
				fd, release := slowSocket(t)
				c.do(k, fd)
				require.NoError(t, unix.Close(fd))
				within(t, "Receive", func() {
					_, err := Receive(t.Context(), far, dev, AttachOptions{Timeout: 100 * time.Millisecond})
					require.ErrorIs(t, err, c.want)
				})
				within(t, "Close", func() { require.NoError(t, far.Close()) })
				release()
			})
			waitReleased(t, dev, before)
		})
	}
}

// TestForeignDescriptorsLeftUnread: after a failed Receive nothing lies in the socket that
// the caller closes, whenever that is.
func TestForeignDescriptorsLeftUnread(t *testing.T) {
	dev := vmmtest.Device(t)
	k, far := newHostileOwner(t)
	k.send(wire.TypeClosing, 0, wire.Closing{}.Append(nil))
	k.packet(nil)
	k.packet(nil, nulls(t, 3)...)
	_, err := Receive(t.Context(), far, dev, AttachOptions{})
	require.ErrorIs(t, err, ErrOwnerGone)
	settled(t)
	require.Zero(t, unread(t, k.raw))
	require.NoError(t, far.Close())
}

// unread is how much the other end of c has not read.
func unread(t *testing.T, c *net.UnixConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
	require.NoError(t, err)
	return n
}

// TestForeignDescriptorsOfLists: nor does List wait.
func TestForeignDescriptorsOfLists(t *testing.T) {
	dev := vmmtest.Device(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // in a test
	got := make(chan error, 1)
	go func() {
		_, err := List(t.Context(), path, dev, AttachOptions{})
		got <- err
	}()
	k, _ := newHostileOwner(t)
	k.raw, err = l.AcceptUnix()
	require.NoError(t, err)
	defer k.raw.Close() //nolint:errcheck // in a test
	k.c, err = wire.NewConn(k.raw)
	require.NoError(t, err)
	k.hello()
	f := k.expect(wire.TypeList)
	// Should the reader be so fast that the close here is the last, this one waits.
	fd, release := slowSocket(t)
	go func() {
		_ = k.c.Write(wire.TypeObject, f.Request, 0, k.o.Append(nil), k.fd, fd)
		_ = unix.Close(fd)
	}()
	within(t, "List", func() { require.ErrorIs(t, <-got, ErrProtocol) })
	release()
	settled(t)
}

// TestLeftBehind: with as many connections that cannot be closed as there may be, no new
// one is made. With one fewer there is.
func TestLeftBehind(t *testing.T) {
	s, _, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	dev := vmmtest.Device(t)
	settled(t)
	for range maxLeftBehind {
		leftBehind.add()
	}
	near, far := pair(t)
	for what, try := range map[string]func(o AttachOptions) error{
		"Attach":     func(o AttachOptions) error { _, err := Attach(t.Context(), s.Path(), "x", dev, o); return err },
		"AttachConn": func(o AttachOptions) error { _, err := AttachConn(t.Context(), near, "x", dev, o); return err },
		"Receive":    func(o AttachOptions) error { _, err := Receive(t.Context(), far, dev, o); return err },
		"List":       func(o AttachOptions) error { _, err := List(t.Context(), s.Path(), dev, o); return err },
	} {
		err := try(AttachOptions{Timeout: time.Millisecond})
		require.ErrorIs(t, err, vmm.ErrLimit, what)
		require.ErrorContains(t, err, "connections have ended and cannot be closed")
	}
	require.Equal(t, uint64(0), s.Stats().Accepted)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Attach(ctx, s.Path(), "x", dev, AttachOptions{})
	require.ErrorIs(t, err, context.Canceled)

	// A place that becomes free is taken by who waits for it.
	got := make(chan error, 1)
	go func() {
		v, err := Attach(t.Context(), s.Path(), "x", dev, AttachOptions{Timeout: inTime})
		got <- errors.Join(err, v.Close())
	}()
	soon(t, "Attach waits", func() bool {
		leftBehind.mu.Lock()
		defer leftBehind.mu.Unlock()
		return leftBehind.less != nil
	})
	leftBehind.remove()
	require.NoError(t, <-got)
	for range maxLeftBehind - 1 {
		leftBehind.remove()
	}
	settled(t)
}

// TestAttachLeavesWork: an Attach that is given up returns once the driver's calls have,
// and leaves nothing of the device open.
func TestAttachLeavesWork(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	dev := pageDevice(t, func(c drivertest.Call) error {
		if c.Name == "Reserve" {
			close(begun)
			<-goOn
		}
		return nil
	})
	s, far := newScriptedOwner(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := AttachConn(ctx, far, scriptName, dev, AttachOptions{})
		got <- err
	}()
	s.accept()
	<-begun
	cancel()
	s.gone()
	require.Empty(t, got)
	close(goOn)
	require.ErrorIs(t, <-got, context.Canceled)
	require.NoError(t, dev.Close())
}
