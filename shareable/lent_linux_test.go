package shareable

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// A reader that the server cuts off may map what lies in its socket, so it counts until it has
// closed that.
func TestCutOffReaderIsAttached(t *testing.T) {
	t.Parallel()
	for name, misbehave := range map[string]func(e *hostileClient, o wire.Object){
		"acknowledges nothing": func(*hostileClient, wire.Object) {},
		"too many requests": func(e *hostileClient, _ wire.Object) {
			for range 150 {
				_ = e.send(wire.TypeStat, wire.Stat{Name: "x"}.Append(nil))
			}
		},
		"breaks the protocol": func(e *hostileClient, o wire.Object) {
			require.NoError(e.t, e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: 99}.Append(nil)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpans(t, Options{AckTimeout: 100 * time.Millisecond, Rate: 100})
			p := w.publish(PublishOptions{Write: true})
			e := rawConn(t, w.s.Path())
			e.hello()
			o := e.attach("x")
			f, ok := e.read()
			require.True(t, ok)
			require.Equal(t, wire.TypeChunks, f.Type)
			misbehave(e, o)
			for ok { // until the server has ended the connection
				_, ok = e.read()
			}
			require.ErrorIs(t, p.CloseUnused(noWait(t)), vmm.ErrBusy)
			require.Equal(t, 1, p.Readers())
			e.close()
			require.NoError(t, p.CloseUnused(t.Context()))
			soon(t, "the connection counts no more", func() bool { return w.s.Stats().Conns == 0 })
		})
	}
}

// A reader that has been cut off keeps neither Close of the span nor that of the server waiting.
func TestCutOffReaderEndsWithTheSpan(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Server, *Span) io.Closer{
		"span":   func(_ *Server, p *Span) io.Closer { return p },
		"server": func(s *Server, _ *Span) io.Closer { return s },
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpans(t, Options{AckTimeout: 100 * time.Millisecond})
			p := w.publish(PublishOptions{Write: true})
			e := rawConn(t, w.s.Path())
			e.hello()
			e.attach("x")
			soon(t, "it is cut off", func() bool { return w.s.Stats().TimedOut == 1 })
			require.Equal(t, 1, p.Readers())
			require.NoError(t, end(w.s, p).Close())
			soon(t, "the connection counts no more", func() bool { return w.s.Stats().Conns == 0 })
		})
	}
}

// The same by a View, that learns of it while it maps: it counts until its Close.
func TestCutOffViewIsAttached(t *testing.T) {
	t.Parallel()
	open := make(chan struct{})
	w := newSpans(t, Options{AckTimeout: 100 * time.Millisecond})
	p := w.publish(PublishOptions{Write: true})
	reader := pageDevice(t, func(c drivertest.Call) error {
		if c.Name == "Import" {
			<-open
		}
		return nil
	})
	v, err := Attach(t.Context(), w.s.Path(), "x", reader, AttachOptions{Write: true})
	require.NoError(t, err)
	soon(t, "it is cut off", func() bool { return w.s.Stats().TimedOut == 1 })
	close(open)
	soon(t, "it knows", func() bool { return errors.Is(v.Err(), ErrTooSlow) })
	require.EqualValues(t, spanLen, v.Len(), "what was sent before is mapped")
	require.ErrorIs(t, p.CloseUnused(noWait(t)), vmm.ErrBusy)
	require.NoError(t, v.Close())
	require.NoError(t, p.CloseUnused(t.Context()))
}

// Retire waits for the work of a View that writes, also while that is closed.
func TestRetireBesideCloseOfAWriter(t *testing.T) {
	t.Parallel()
	const chunk = 2 << 20
	s, p, g := stage(t, Options{}, PublishOptions{Write: true})
	dev := g.Device()
	require.NoError(t, g.Append(make([]byte, 4*chunk)))
	require.NoError(t, p.Flush(t.Context()))
	v, err := Attach(t.Context(), s.Path(), "x", dev, AttachOptions{Write: true})
	require.NoError(t, err)
	wait(t, v, 4*chunk)
	stream, open := gate(t, dev)
	defer open()
	require.NoError(t, v.UsedBy(stream))
	require.NoError(t, stream.Fill(v.Ptr()+2*chunk, 9, 1, chunk))
	retired := make(chan error, 1)
	go func() { retired <- p.Retire(t.Context(), chunk) }()
	soon(t, "it is told", func() bool { return v.Generation() > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, v.CloseContext(ctx), context.DeadlineExceeded)
	select {
	case err := <-retired:
		require.Fail(t, "the fill has not run", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	open()
	require.NoError(t, <-retired)
	require.NoError(t, v.Close())
}

// A peer that goes on sending is not waited for.
func TestCutOffReaderThatSends(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{AckTimeout: 100 * time.Millisecond})
	p := w.publish(PublishOptions{Write: true})
	e := rawConn(t, w.s.Path())
	e.hello()
	e.attach("x")
	soon(t, "it is cut off", func() bool { return w.s.Stats().TimedOut == 1 })
	require.Equal(t, 1, p.Readers())
	for e.packet([]byte{1}) == nil { // until the connection is closed there
	}
	require.NoError(t, p.CloseUnused(t.Context()))
}

// Nor is one whose end lies in the server's own, where no process can close it.
func TestCutOffReaderInItsOwnSocket(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{})
	p := w.publish(PublishOptions{Write: true})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(pair[0]), "owner")
	conn, err := net.FileConn(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	e := &hostileClient{t: t, fd: pair[1]}
	t.Cleanup(e.close)
	require.NoError(t, e.send(wire.TypeHello, wire.Hello{Backend: wire.BackendHost, Granularity: 4096}.Append(nil)))
	require.NoError(t, e.send(wire.TypeAttach, wire.Attach{Access: wire.AccessReadWrite, Name: "x"}.Append(nil)))
	for range 60 { // meanwhile it is sent chunks
		require.NoError(t, e.send(wire.TypeStat, wire.Stat{Name: "x"}.Append(nil)))
	}
	require.NoError(t, e.packet([]byte{1}, e.fd)) // queued before the server refuses descriptors
	served := make(chan error, 1)
	go func() { served <- w.s.ServeConn(conn.(*net.UnixConn)) }()
	for ok := true; ok; {
		_, ok = e.read()
	}
	e.close()
	require.Error(t, <-served)
	require.NoError(t, p.CloseUnused(t.Context()))
}

// A View whose device is lost disconnects once its work has ended.
func TestLostViewFinishesFirst(t *testing.T) {
	t.Parallel()
	w := newSpans(t, Options{})
	p := w.publish(PublishOptions{Write: true})
	reader, err := vmm.OpenDriver(host.New(host.Config{Granularity: spanPage}), 0)
	require.NoError(t, err)
	v, err := Attach(t.Context(), w.s.Path(), "x", reader, AttachOptions{Write: true})
	require.NoError(t, err)
	wait(t, v, spanLen)
	runs, goOn := make(chan struct{}), make(chan struct{})
	m, err := kernel.Load(reader, kernel.Code{Host: kernel.Host{
		"works": func(x []byte) { close(runs); <-goOn; x[0] = 9 },
		"dies":  func([]byte) { panic("the device is lost") },
	}})
	require.NoError(t, err)
	for _, name := range []string{"works", "dies"} {
		f, err := m.Func(name)
		require.NoError(t, err)
		s, err := reader.NewStream()
		require.NoError(t, err)
		require.NoError(t, v.UsedBy(s))
		require.NoError(t, f.Launch(s, kernel.Over(1, 1), kernel.Pointer(v), uint64(spanLen)))
		<-runs
	}
	soon(t, "it is lost", func() bool { _, _, err := reader.MemInfo(); return errors.Is(err, vmm.ErrDeviceLost) })
	closed := make(chan error, 1)
	go func() { closed <- v.Close() }()
	soon(t, "it closes", func() bool { return errors.Is(v.Err(), vmm.ErrClosed) })
	ctx, cancel := contextIn(t, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.CloseUnused(ctx), vmm.ErrBusy, "the kernel writes yet")
	close(goOn)
	require.NoError(t, p.CloseUnused(t.Context()))
	if err := <-closed; err != nil {
		require.ErrorIs(t, err, vmm.ErrDeviceLost)
	}
	require.EqualValues(t, 9, w.bytes()[0])
}

// Once a CloseUnused has returned, also one beside another, the reservation is free.
func TestCloseUnusedTwiceAtOnce(t *testing.T) {
	t.Parallel()
	for range testgate.Effort(50, 500, 5000) {
		w := newSpans(t, Options{})
		p := w.publish(PublishOptions{})
		var calls sync.WaitGroup
		for range 2 {
			calls.Go(func() {
				if err := p.CloseUnused(t.Context()); err != nil {
					t.Error(err)
				}
				if err := w.res.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
	}
}
