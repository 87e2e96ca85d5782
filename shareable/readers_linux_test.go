package shareable

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// TestReaders: a reader that maps all is not behind, and one that acknowledges nothing is.
func TestReaders(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.Empty(t, s.Readers())
	require.NoError(t, g.Append(pattern(0, 1000)))
	v := attached(t, s, AttachOptions{})
	wait(t, v, 1000)
	caughtUp := func(r ReaderStats) bool { return r.BytesBehind == 0 && r.BehindSince.IsZero() && r.Sent > 0 }
	require.Eventually(t, func() bool { return len(s.Readers()) == 1 && caughtUp(s.Readers()[0]) }, inTime, time.Millisecond)
	first := s.Readers()[0]
	require.Equal(t, ReaderStats{
		Object: 1, Name: "x", Addr: uint64(g.Ptr()), Bytes: v.Cap(), UID: uint32(os.Getuid()), PID: os.Getpid(), Sent: v.Stats().Chunks, Acknowledged: v.Stats().Chunks,
	}, first)
	b, err := json.Marshal(first)
	require.NoError(t, err)
	require.Contains(t, string(b), `"bytes_behind":0}`)

	attachPlain(t, s.Path(), "x")
	require.Eventually(t, func() bool { return len(s.Readers()) == 2 && s.Readers()[0].Sent > 0 && s.Readers()[1].Sent > 0 }, inTime, time.Millisecond)
	all := s.Readers()
	require.Zero(t, all[0].Acknowledged)
	require.Equal(t, all[1].Sent, all[1].Acknowledged)
	require.Equal(t, v.Cap(), all[0].BytesBehind)
	require.False(t, all[0].BehindSince.IsZero())
	require.True(t, caughtUp(all[1]))
	b, err = json.Marshal(all[0])
	require.NoError(t, err)
	require.Contains(t, string(b), `"behind_since":`)

	require.NoError(t, v.Close())
	require.NoError(t, p.Close())
	require.Eventually(t, func() bool { return len(s.Readers()) == 0 }, inTime, time.Millisecond)
	require.Empty(t, (&Server{}).Readers())
	require.Empty(t, (*Server)(nil).Readers())
}

// TestReadersLackAGeneration: who was told to unmap memory, and has not, is behind.
func TestReadersLackAGeneration(t *testing.T) {
	t.Parallel()
	s, p, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 1000)))
	attachPlain(t, s.Path(), "x")
	require.Eventually(t, func() bool { r := s.Readers(); return len(r) == 1 && r[0].Sent > 0 }, inTime, time.Millisecond)
	before := s.Readers()[0].BehindSince
	ctx := boundedContext(t)
	done := make(chan error, 1)
	go func() { done <- p.Retire(ctx, 0) }()
	require.Eventually(t, func() bool { return s.Readers()[0].Sent == 0 }, inTime, time.Millisecond)
	r := s.Readers()[0]
	require.Zero(t, r.BytesBehind)
	require.Equal(t, before, r.BehindSince, "the older of the two")
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-done, vmm.ErrClosed)
}

// TestStatsText: a Server's Stats as JSON and for slog.
func TestStatsText(t *testing.T) {
	t.Parallel()
	s, _, _ := stage(t, Options{}, PublishOptions{})
	require.Contains(t, s.Stats().String(), `"accepted":0`)
	attached(t, s, AttachOptions{})
	require.Contains(t, s.Stats().String(), `"accepted":1`)
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("server", "stats", s.Stats())
	require.Contains(t, b.String(), "stats.published=1")
	require.Contains(t, (*Server)(nil).Stats().String(), `"conns":0`)
}
