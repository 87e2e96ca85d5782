package shareable

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// served is a session of s that nothing runs, and the reader's end of it.
func served(t *testing.T, s *Server) (*session, *wire.Conn) {
	t.Helper()
	near, far := pair(t)
	a, err := wire.NewConn(near)
	require.NoError(t, err)
	b, err := wire.NewConn(far)
	require.NoError(t, err)
	cred, err := a.Cred()
	require.NoError(t, err)
	return newSession(s, a, cred), b
}

// TestDescribeAfterClose: a STAT has found the object, and then it is closed.
func TestDescribeAfterClose(t *testing.T) {
	_, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	require.NoError(t, p.Close())
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotPanics(t, func() {
		o := p.describe(wire.AccessRead)
		require.Equal(t, wire.StateClosed, o.State)
		require.Equal(t, uint64(100), o.Length)
	})
}

// TestSendsAfterClose: chunks are about to be sent, and then the object is closed.
func TestSendsAfterClose(t *testing.T) {
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 100)))
	require.NoError(t, p.Flush(t.Context()))
	ses, _ := served(t, s)
	require.NoError(t, ses.push(p, 1, wire.AccessRead, false))
	a := ses.find(p.id)
	f, ok := a.derive()
	require.True(t, ok)
	require.Len(t, f.pieces, 1)
	require.NoError(t, p.Close())
	require.Zero(t, s.Stats().KeptFDs)
	require.NoError(t, a.sendChunks(f))
	require.Zero(t, s.Stats().KeptFDs)
	a.leave()
}
