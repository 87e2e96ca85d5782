package store

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

const (
	pieceSize = 2 << 20 // the host's granularity
	noResize  = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
)

// hostileServer is a store that replies to CREATE, MAPPED and GROW as a test tells it.
type hostileServer struct {
	t           *testing.T
	object      wire.Object
	page        int // a descriptor
	mapped      wire.Type
	granularity uint64
	chunks      []wire.Chunk
	fds         []int // of chunks
}

func newHostileServer(t *testing.T) *hostileServer {
	h := &hostileServer{t: t, mapped: wire.TypeDone, granularity: pieceSize}
	h.object = wire.Object{ID: 7, Max: 4 * pieceSize, State: wire.StateLive, Access: wire.AccessReadWrite, Instance: [16]byte{1}, Name: "x"}
	h.page = h.controlPage(noResize, 4096, h.object.ID)
	h.chunks, h.fds = []wire.Chunk{{ID: 1, Size: pieceSize}}, []int{h.file(noResize, pieceSize)}
	return h
}

// file is a memory file that is closed when the test ends.
func (h *hostileServer) file(seals int, size int64) int {
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { closeFD(fd) })
	require.NoError(h.t, unix.Ftruncate(fd, size))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(h.t, err)
	return fd
}

func (h *hostileServer) controlPage(seals int, size int64, object uint64) int {
	fd := h.file(0, size)
	b := binary.LittleEndian.AppendUint32(nil, 0x50565543)
	b = binary.LittleEndian.AppendUint32(b, 1)
	b = append(b, h.object.Instance[:]...)
	b = binary.LittleEndian.AppendUint64(b, object)
	_, err := unix.Pwrite(fd, b, 0)
	require.NoError(h.t, err)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(h.t, err)
	return fd
}

// dial connects a client.
func (h *hostileServer) dial(context.Context) (*net.UnixConn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	c, err := wire.NewOwnerConn(far)
	if err != nil {
		return nil, err
	}
	hello := wire.Hello{Instance: h.object.Instance, Backend: wire.BackendHost, Granularity: h.granularity}
	if err := c.Write(wire.TypeHello, 0, 0, hello.Append(nil)); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	h.t.Cleanup(func() { _ = c.Shutdown(); <-ended })
	go func() {
		defer close(ended)
		defer c.Close() //nolint:errcheck // the client has gone
		for f, err := c.Read(); err == nil; f, err = c.Read() {
			h.reply(c, f)
		}
	}()
	return near, nil
}

func (h *hostileServer) reply(c *wire.Conn, f wire.Frame) {
	var err error
	switch f.Type {
	case wire.TypeHello, wire.TypeWrote:
	case wire.TypeCreate:
		err = c.Write(wire.TypeObject, f.Request, 0, h.object.Append(nil), h.page)
	case wire.TypeMapped:
		if h.mapped != 0 {
			err = c.Write(h.mapped, f.Request, 0, nil)
		}
	case wire.TypeGrow:
		err = c.Write(wire.TypeChunks, f.Request, 0, wire.Chunks{Object: h.object.ID, Records: h.chunks}.Append(nil), h.fds...)
	case wire.TypeCount:
		err = c.Write(wire.TypeCounters, f.Request, 0, wire.Counters{}.Append(nil))
	default:
		err = c.Write(wire.TypeDone, f.Request, 0, nil)
	}
	if err != nil {
		_ = c.Shutdown() // the client has gone
	}
}

// TestHostileServer: what a server sends to a Writer is checked, and nothing of it is left.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lie    func(h *hostileServer)
		create error // of Create, else of Append
		append error
	}{
		"none":             {lie: func(*hostileServer) {}},
		"huge":             {lie: func(h *hostileServer) { h.object.Max = 1 << 46 }, create: shareable.ErrProtocol},
		"small":            {lie: func(h *hostileServer) { h.object.Max = pieceSize }, create: shareable.ErrProtocol},
		"not empty":        {lie: func(h *hostileServer) { h.object.Length, h.object.Capacity = 5, pieceSize }, create: shareable.ErrProtocol},
		"too few bytes":    {lie: func(h *hostileServer) { h.object.Capacity = 3 * pieceSize }, create: shareable.ErrProtocol},
		"sealed":           {lie: func(h *hostileServer) { h.object.State = wire.StateSealed }, create: shareable.ErrProtocol},
		"page can shrink":  {lie: func(h *hostileServer) { h.page = h.controlPage(0, 4096, 7) }, create: shareable.ErrProtocol},
		"page is short":    {lie: func(h *hostileServer) { h.page = h.controlPage(noResize, 100, 7) }, create: shareable.ErrProtocol},
		"other page":       {lie: func(h *hostileServer) { h.page = h.controlPage(noResize, 4096, 8) }, create: shareable.ErrProtocol},
		"page is fixed":    {lie: func(h *hostileServer) { h.page = h.controlPage(noResize|unix.F_SEAL_WRITE, 4096, 7) }, create: shareable.ErrProtocol},
		"other reply":      {lie: func(h *hostileServer) { h.mapped = wire.TypeCount }, create: shareable.ErrProtocol},
		"chunk can shrink": {lie: func(h *hostileServer) { h.fds[0] = h.file(0, pieceSize) }, append: vmm.ErrInvalid},
		"chunk is short":   {lie: func(h *hostileServer) { h.fds[0] = h.file(noResize, 4096) }, append: vmm.ErrInvalid},
		"chunk at the end": {lie: func(h *hostileServer) { h.chunks[0].Offset = pieceSize }, append: shareable.ErrProtocol},
		"chunk is too big": {lie: func(h *hostileServer) { h.chunks[0].Size = 5 * pieceSize }, append: shareable.ErrProtocol},
		"no order": {lie: func(h *hostileServer) {
			h.chunks = append(h.chunks, wire.Chunk{ID: 1, Offset: pieceSize, Size: pieceSize})
			h.fds = append(h.fds, h.fds[0])
		}, append: shareable.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostileServer(t)
			c.lie(h)
			client, err := newClient(t.Context(), "", h.dial, vmmtest.Device(t), ClientOptions{MaxBytes: 4 * pieceSize, Timeout: inTime})
			require.NoError(t, err)
			w, err := client.Create(within(t), "x", CreateOptions{Size: 4 * pieceSize, Growable: true})
			t.Cleanup(func() { require.NoError(t, w.Close()) })
			if c.create != nil {
				require.ErrorIs(t, err, c.create)
				require.NoError(t, client.Close())
				return
			}
			require.NoError(t, err)
			for range 2 { // the second finds what the first has left
				require.ErrorIs(t, w.Append([]byte("bytes")), c.append)
			}
			require.NoError(t, w.Close())
			require.NoError(t, client.Close())
		})
	}
}

// TestSilentServer: each wait has an end.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	h := newHostileServer(t)
	h.mapped = 0
	client, err := newClient(t.Context(), "", h.dial, vmmtest.Device(t), ClientOptions{Timeout: 300 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), inTime)
	defer cancel()
	_, err = client.Create(ctx, "x", CreateOptions{Size: 4 * pieceSize, Growable: true})
	require.Error(t, err)
	require.NoError(t, ctx.Err())
	require.NoError(t, client.Close())
}

// TestNoGranularity: a server that says 0 is refused, or its objects are.
func TestNoGranularity(t *testing.T) {
	t.Parallel()
	h := newHostileServer(t)
	h.granularity = 0
	client, err := newClient(t.Context(), "", h.dial, vmmtest.Device(t), ClientOptions{})
	if err != nil {
		require.ErrorIs(t, err, shareable.ErrProtocol)
		return
	}
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	_, err = client.Create(t.Context(), "x", CreateOptions{Growable: true})
	require.ErrorIs(t, err, shareable.ErrProtocol)
}
