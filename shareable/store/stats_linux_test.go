package store

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStatsText: the server's and a client's Stats agree, as JSON too.
func TestStatsText(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	for n := range 2 {
		var x Stats
		require.NoError(t, json.Unmarshal([]byte(s.Stats().String()), &x))
		require.EqualValues(t, n, x.Created)
		require.NotZero(t, x.Conns.Accepted)
		var y Stats
		client, err := c.Stats(t.Context())
		require.NoError(t, err)
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
	_, err := c.Stats(t.Context())
	require.EqualError(t, err, "stats of store: already closed: client")
	require.Contains(t, (*Server)(nil).Stats().String(), `"objects":0`)
}
