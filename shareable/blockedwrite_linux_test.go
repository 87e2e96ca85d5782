package shareable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// blockWrite makes the owner wait in the write of a PUBLISH: its reader has mapped all
// there is, and reads no more.
func blockWrite(t *testing.T, s *Server, p *Publication, g *vmm.Range) {
	t.Helper()
	e := rawConn(t, s.Path())
	e.hello()
	require.NoError(t, e.send(wire.TypeAttach, wire.Attach{Access: wire.AccessRead, Flags: wire.AttachPublish, Name: "x"}.Append(nil)))
	o, err := wire.DecodeObject(e.next().Payload)
	require.NoError(t, err)
	f, _ := e.read()
	require.Equal(t, wire.TypeChunks, f.Type)
	require.NoError(t, e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: 4}.Append(nil)))
	late := 0 // looks in a row, a millisecond apart, at which the last length was not sent
	for late < 50 {
		if late == 0 && g.Len() < g.Cap() {
			require.NoError(t, g.Append([]byte{1}))
			require.NoError(t, p.Flush(t.Context()))
		}
		if late > 0 {
			<-time.After(time.Millisecond)
		}
		p.mu.Lock()
		late++
		for a := range p.attachments {
			if a.sentLen == p.published {
				late = 0
			}
		}
		p.mu.Unlock()
	}
}

// roomyOwner has four chunks for readers, and length to publish in them.
func roomyOwner(t *testing.T, o Options) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	s, p, g := smallOwner(t, o, smallChunk, 4<<20)
	require.NoError(t, g.Grow(4*smallChunk))
	require.NoError(t, g.Append(make([]byte, 3*smallChunk)))
	require.NoError(t, p.Flush(t.Context()))
	return s, p, g
}

// TestCloseBesideABlockedWrite: Server.Close waits for no reader that does not read.
func TestCloseBesideABlockedWrite(t *testing.T) {
	t.Parallel()
	s, p, g := roomyOwner(t, Options{RequestTimeout: time.Hour, AckTimeout: time.Hour})
	blockWrite(t, s, p, g)
	within(t, "Close", func() { require.NoError(t, s.Close()) })
}

// TestRetireBesideABlockedWrite: AckTimeout counts for a frame that is not taken as for
// one that is not acknowledged.
func TestRetireBesideABlockedWrite(t *testing.T) {
	t.Parallel()
	s, p, g := roomyOwner(t, Options{RequestTimeout: time.Hour, AckTimeout: 300 * time.Millisecond})
	blockWrite(t, s, p, g)
	within(t, "Retire", func() { require.NoError(t, p.Retire(t.Context(), smallChunk)) })
	soon(t, "the reader is cut off", func() bool { return s.Stats().TimedOut == 1 })
}
