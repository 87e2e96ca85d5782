package store

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// listening makes a store with a socket.
func listening(t *testing.T, o Options) *Server {
	t.Helper()
	return listeningOn(t, vmmtest.Device(t), o)
}

// listeningOn is listening on a device of the caller's.
func listeningOn(t *testing.T, dev *vmm.Device, o Options) *Server {
	t.Helper()
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s.sock"), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// plainClient is a connection on which a test sends frames itself.
type plainClient struct {
	t   *testing.T
	dev *vmm.Device
	serve.Client
}

func connected(t *testing.T, s *Server) plainClient {
	t.Helper()
	dev := vmmtest.Device(t)
	c, err := sharing.Dial(t.Context(), s.Path(), dev, shareable.AttachOptions{}, serve.Notified{Event: func(wire.Frame) error { return nil }})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return plainClient{t, dev, c}
}

// made is what a client has of an object that it writes to.
type made struct {
	wire.Object
	page   serve.WriterPage
	chunks []*vmm.Chunk
	last   uint64
}

// leaseWith sends CREATE or LEASE, and MAPPED.
func (c plainClient) leaseWith(t wire.Type, payload []byte) (m made, err error) {
	err = c.Call(c.t.Context(), t, payload, wire.TypeObject, func(f wire.Frame) error {
		if m.Object, err = wire.DecodeObject(f.Payload); err != nil {
			return err
		}
		m.page, err = sharing.OpenWriterPage(f.FDs[0].Int(), c.Hello().Instance, m.ID)
		return err
	})
	if err != nil {
		return m, err
	}
	c.t.Cleanup(func() { require.NoError(c.t, m.page.Close()) })
	return m, c.ask(wire.TypeMapped, wire.Mapped{Object: m.ID}.Append(nil))
}

// ask sends a request whose reply is DONE.
func (c plainClient) ask(t wire.Type, payload []byte) error {
	return c.Call(c.t.Context(), t, payload, wire.TypeDone, func(wire.Frame) error { return nil })
}

// grow gets memory up to a capacity and imports it.
func (c plainClient) grow(m *made, capacity uint64) error {
	q := wire.Grow{Object: m.ID, After: m.last, Capacity: capacity}
	return c.Call(c.t.Context(), wire.TypeGrow, q.Append(nil), wire.TypeChunks, func(f wire.Frame) error {
		got, err := wire.DecodeChunks(f.Payload)
		if err != nil {
			return err
		}
		for i, r := range got.Records {
			chunk, err := c.dev.Import(f.FDs[i].Int(), r.Size, vmm.Prop{})
			if err != nil {
				return err
			}
			m.chunks, m.last = append(m.chunks, chunk), r.ID
		}
		return nil
	})
}

// fill maps the chunks, writes to them, and unmaps them.
func (c plainClient) fill(m made, data []byte) {
	c.t.Helper()
	res, err := c.dev.Reserve(m.Max, vmm.ReserveOptions{})
	require.NoError(c.t, err)
	require.NoError(c.t, res.Map(0, m.chunks...))
	require.NoError(c.t, c.dev.CopyIn(res.Ptr(), data))
	for _, chunk := range m.chunks {
		require.NoError(c.t, chunk.Close())
	}
	require.NoError(c.t, res.Close())
}

func bytesOf(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// TestRequests: the requests of an object's whole life, each by its frame.
func TestRequests(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	w := connected(t, s)
	data := bytesOf(100_000)
	m, err := w.leaseWith(wire.TypeCreate, wire.Create{Name: "a/b", Size: 100_000, Meta: []byte("m")}.Append(nil))
	require.NoError(t, err)
	require.NoError(t, w.grow(&m, 0))
	w.fill(m, data)

	dev := vmmtest.Device(t)
	_, err = shareable.Attach(t.Context(), s.Path(), "a/b", dev, shareable.AttachOptions{})
	require.ErrorIs(t, err, shareable.ErrNotSealed)
	early, err := shareable.Attach(t.Context(), s.Path(), "a/b", dev, shareable.AttachOptions{Unsealed: true})
	require.NoError(t, err)
	m.page.Publish(50_000)
	require.NoError(t, w.Send(wire.TypeWrote, wire.Wrote{Object: m.ID}.Append(nil)))
	require.NoError(t, early.Wait(t.Context(), 50_000))

	require.NoError(t, w.ask(wire.TypeSeal, wire.Seal{Object: m.ID, Length: 100_000}.Append(nil)))
	require.NoError(t, w.Call(t.Context(), wire.TypeWait, wire.Wait{Name: "a/b"}.Append(nil), wire.TypeObject, ignore), "it is sealed")
	v, err := shareable.Attach(t.Context(), s.Path(), "a/b", dev, shareable.AttachOptions{})
	require.NoError(t, err)
	require.NoError(t, v.Wait(t.Context(), 100_000))
	require.NoError(t, early.Wait(t.Context(), 100_000))
	for _, v := range []*shareable.View{v, early} {
		got := make([]byte, len(data))
		_, err := v.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, data, got)
	}
	require.Equal(t, 1, s.Stats().Objects)

	require.NoError(t, w.ask(wire.TypeDelete, wire.Delete{Name: "a/b"}.Append(nil)))
	_, err = shareable.Attach(t.Context(), s.Path(), "a/b", dev, shareable.AttachOptions{})
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.NoError(t, v.Close())
	require.NoError(t, early.Close())
	require.Eventually(t, func() bool { return s.Stats().Objects == 0 && s.Stats().Bytes == 0 }, inTime, step)
}
