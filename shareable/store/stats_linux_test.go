package store

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStatsVar: the server's and a client's Stats agree, and are read anew each time.
func TestStatsVar(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	server, client := s.Var(), c.Var()
	for n := range 2 {
		var x Stats
		require.NoError(t, json.Unmarshal([]byte(server.String()), &x))
		require.EqualValues(t, n, x.Created)
		require.NotZero(t, x.Conns.Accepted)
		var y Stats
		require.NoError(t, json.Unmarshal([]byte(client.String()), &y))
		require.Equal(t, x.Objects, y.Objects)
		require.EqualValues(t, n, y.Created)
		writer(t, c, string(rune('a'+n)), CreateOptions{Size: 1000})
	}
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("store", "stats", s.Stats())
	require.Contains(t, b.String(), "stats.objects=2 ")
	require.Contains(t, b.String(), "stats.conns.published=")

	require.NoError(t, c.Close())
	require.JSONEq(t, `{"error":"stats of store: already closed: client"}`, client.String())
	require.Contains(t, (*Client)(nil).Var().String(), "error")
	require.Contains(t, (*Server)(nil).Var().String(), `"objects":0`)
	require.Contains(t, (&Client{}).Var().String(), "error")
}
