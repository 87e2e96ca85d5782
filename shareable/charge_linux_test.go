package shareable

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// hoarder is a reader that acknowledges everything, and keeps a descriptor of all that it
// was sent.
type hoarder struct {
	t       *testing.T
	c       *wire.Conn
	arrived atomic.Uint64 // the end of what came in this generation
	ended   chan uint32   // the code of the ERROR at its end

	// Of its goroutine, while that runs.
	kept  []int
	bytes uint64
	seen  map[uint64]bool // inodes
}

// attach attaches to "x" and starts to read.
func (h *hoarder) attach(s *Server) {
	h.t.Helper()
	h.c = greeted(h.t, s.Path())
	require.NoError(h.t, h.c.Write(wire.TypeAttach, 1, 0, wire.Attach{Access: wire.AccessRead, Name: "x"}.Append(nil)))
	f, err := h.c.Read()
	require.NoError(h.t, err)
	require.Equal(h.t, wire.TypeObject, f.Type)
	o, err := wire.DecodeObject(f.Payload)
	require.NoError(h.t, err)
	require.NoError(h.t, f.Close())
	h.arrived.Store(0)
	h.ended = make(chan uint32, 1)
	go func() { h.ended <- h.read(o) }()
}

func (h *hoarder) read(o wire.Object) (code uint32) {
	ack := wire.Ack{Object: o.ID, Generation: o.Generation}
	for {
		f, err := h.c.Read()
		if err != nil {
			return code
		}
		switch f.Type {
		case wire.TypeError:
			e, err := wire.DecodeError(f.Payload)
			assert.NoError(h.t, err)
			code = e.Code
		case wire.TypeRetire:
			m, err := wire.DecodeRetire(f.Payload)
			assert.NoError(h.t, err)
			ack.Generation = m.Generation
			h.arrived.Store(m.Capacity)
		case wire.TypeChunks:
			m, err := wire.DecodeChunks(f.Payload)
			assert.NoError(h.t, err)
			for i, r := range m.Records {
				h.keep(f.FDs[i])
				ack.Chunk = r.ID
				h.arrived.Store(r.Offset + r.Size)
			}
		}
		_ = f.Close()
		_ = h.c.Write(wire.TypeAck, 0, 0, ack.Append(nil)) // if the connection has ended, an ERROR follows
	}
}

func (h *hoarder) keep(f *wire.FD) {
	var st unix.Stat_t
	assert.NoError(h.t, unix.Fstat(f.Int(), &st))
	if !h.seen[st.Ino] {
		h.seen[st.Ino] = true
		h.bytes += uint64(st.Size)
		h.kept = append(h.kept, f.Take())
	}
}

// leave disconnects, unless the owner has done so, and returns the code of the ERROR.
func (h *hoarder) leave() uint32 {
	_ = h.c.Close()
	code := <-h.ended
	h.ended <- code
	return code
}

func (h *hoarder) release() {
	for _, fd := range h.kept {
		require.NoError(h.t, unix.Close(fd))
	}
	h.kept, h.seen, h.bytes = nil, map[uint64]bool{}, 0
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
	t.Parallel()
	const size, limit, most = 2 * mib, 6 * mib, 20
	data := pattern(0, size)
	for name, stays := range map[string]bool{"one connection": true, "one each time": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p, g := smallOwner(t, Options{MaxBytesPerUID: limit, AckTimeout: time.Second}, mib/2, 8*mib)
			require.NoError(t, g.Append(data))
			require.NoError(t, p.Flush(t.Context()))
			h := &hoarder{t: t, seen: map[uint64]bool{}}
			h.attach(s)
			code := uint32(0)
			for i := 0; code == 0 && i < most; i++ {
				soon(t, "all of it came, or it is cut off", func() bool { return h.arrived.Load() == size || len(h.ended) > 0 })
				if len(h.ended) > 0 || !stays {
					code = h.leave()
					soon(t, "it is gone", func() bool { return s.Stats().Conns == 0 })
				}
				if code == 0 {
					replace(t, p, g, data)
				}
				if code == 0 && !stays {
					h.attach(s)
				}
			}
			require.Equal(t, wire.CodeLimit, code, "it keeps %d MiB, at a limit of %d", h.bytes/mib, limit/mib)
			require.Equal(t, uint64(limit), h.bytes)

			// The user can have as much again once it is free.
			h.release()
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
	t.Parallel()
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
