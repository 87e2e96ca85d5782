package shareable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// hoarder attaches, acknowledges everything, and keeps a descriptor of all that it was
// sent.
type hoarder struct {
	t     *testing.T
	kept  []int
	bytes uint64
	seen  map[uint64]bool // inodes
}

func (h *hoarder) close() {
	for _, fd := range h.kept {
		require.NoError(h.t, unix.Close(fd))
	}
	h.kept, h.bytes, h.seen = nil, 0, nil
}

// follow reads until n bytes have come since it attached, or the owner ends the
// connection, for which it returns the code of the ERROR.
func (h *hoarder) follow(c *wire.Conn, last, generation *uint64, n uint64) (code uint32) {
	h.t.Helper()
	for end := uint64(0); end < n; {
		f, err := c.Read()
		require.NoError(h.t, err)
		ack := wire.Ack{Object: 1}
		switch f.Type {
		case wire.TypeError:
			e, err := wire.DecodeError(f.Payload)
			require.NoError(h.t, err)
			return e.Code
		case wire.TypeRetire:
			m, err := wire.DecodeRetire(f.Payload)
			require.NoError(h.t, err)
			*generation, end = m.Generation, 0
		case wire.TypeChunks:
			m, err := wire.DecodeChunks(f.Payload)
			require.NoError(h.t, err)
			for i, r := range m.Records {
				h.keep(f.FDs[i])
				*last, end = r.ID, r.Offset+r.Size
			}
		}
		require.NoError(h.t, f.Close())
		ack.Chunk, ack.Generation = *last, *generation
		if f.Type == wire.TypeRetire || f.Type == wire.TypeChunks {
			_ = c.Write(wire.TypeAck, 0, 0, ack.Append(nil)) // if the connection has ended, an ERROR follows
		}
	}
	return 0
}

func (h *hoarder) keep(f *wire.FD) {
	h.t.Helper()
	var st unix.Stat_t
	require.NoError(h.t, unix.Fstat(f.Int(), &st))
	if !h.seen[st.Ino] {
		if h.seen == nil {
			h.seen = map[uint64]bool{}
		}
		h.seen[st.Ino] = true
		h.bytes += uint64(st.Size)
		h.kept = append(h.kept, f.Take())
	}
}

// attachTo attaches and returns the connection.
func (h *hoarder) attachTo(s *Server) *wire.Conn {
	h.t.Helper()
	c := greeted(h.t, s.Path())
	require.NoError(h.t, c.Write(wire.TypeAttach, 1, 0, wire.Attach{Access: wire.AccessRead, Name: "x"}.Append(nil)))
	f, err := c.Read()
	require.NoError(h.t, err)
	require.Equal(h.t, wire.TypeObject, f.Type)
	require.NoError(h.t, f.Close())
	return c
}

// replace takes all memory back and publishes as much again.
func replace(t *testing.T, p *Publication, g *vmm.Range, data []byte) {
	t.Helper()
	require.NoError(t, p.Retire(t.Context(), 0))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Append(data))
	require.NoError(t, p.Flush(t.Context()))
}

// TestReplacedMemoryCounts: what a reader keeps of memory that was taken back counts
// against the limit of its user, also after it has disconnected, until it is free.
func TestReplacedMemoryCounts(t *testing.T) {
	const size, limit, most = 2 * mib, 6 * mib, 20
	data := pattern(0, size)
	for name, stays := range map[string]bool{"one connection": true, "one each time": false} {
		t.Run(name, func(t *testing.T) {
			s, p, g := smallOwner(t, Options{MaxBytesPerUID: limit, AckTimeout: 3 * time.Second}, mib/2, 8*mib)
			require.NoError(t, g.Append(data))
			require.NoError(t, p.Flush(t.Context()))
			h := &hoarder{t: t}
			defer h.close()
			var last, generation uint64
			c := h.attachTo(s)
			code := h.follow(c, &last, &generation, size)
			for i := 0; code == 0; i++ {
				require.Less(t, i, most, "it keeps %d MiB, at a limit of %d", h.bytes/mib, limit/mib)
				replaced := make(chan struct{})
				if stays {
					go func() { defer close(replaced); replace(t, p, g, data) }()
				} else {
					require.NoError(t, c.Close())
					soon(t, "it is gone", func() bool { return s.Stats().Conns == 0 })
					replace(t, p, g, data)
					close(replaced)
					last, generation = 0, p.Generation()
					c = h.attachTo(s)
				}
				code = h.follow(c, &last, &generation, size)
				<-replaced
			}
			require.Equal(t, wire.CodeLimit, code)
			require.Equal(t, uint64(limit), h.bytes)
			soon(t, "it is cut off", func() bool { return s.Stats().Conns == 0 })

			// The user can have as much again once it is free.
			h.close()
			v, err := Attach(t.Context(), s.Path(), "x", pageDevice(t), AttachOptions{})
			require.NoError(t, err)
			wait(t, v, size)
			require.NoError(t, v.Close())
		})
	}
}

// TestReplacedMemoryIsGivenUp: a reader that gives memory up when it is told is never cut
// off, however often all of it is replaced, at a limit that is just enough.
func TestReplacedMemoryIsGivenUp(t *testing.T) {
	const size, cycles = 2 * mib, 100
	data := pattern(0, size)
	s, p, g := smallOwner(t, Options{MaxBytesPerUID: size}, mib/2, 8*mib)
	require.NoError(t, g.Append(data))
	v, err := Attach(t.Context(), s.Path(), "x", pageDevice(t), AttachOptions{})
	require.NoError(t, err)
	for range cycles {
		wait(t, v, size)
		replace(t, p, g, data)
	}
	wait(t, v, size)
	require.Equal(t, data, read(t, v, size))
	require.NoError(t, v.Close())
	soon(t, "it is gone", func() bool { return s.Stats().Conns == 0 })

	// So it is with memory that is published again without a Clip, and with readers that
	// come and go.
	for range 10 {
		v, err := Attach(t.Context(), s.Path(), "x", pageDevice(t), AttachOptions{})
		require.NoError(t, err)
		wait(t, v, size)
		require.NoError(t, p.Retire(t.Context(), 0))
		require.NoError(t, g.Append(data))
		wait(t, v, size)
		require.NoError(t, v.Close())
		soon(t, "it is gone", func() bool { return s.Stats().Conns == 0 })
	}
	require.NoError(t, p.Close())
	require.NoError(t, g.Close())
	soon(t, "all is free", func() bool { s.forgetFreed(uint32(unix.Getuid())); return len(s.taken) == 0 })
	require.Empty(t, s.takenByUID)
	require.Empty(t, s.bytesByUID)
}
