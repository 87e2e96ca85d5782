package shareable

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
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
