package loglimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/loglimit"
)

// TestLimit: of one message a few lines are logged at once, then one in each period with the number of those
// between. Other levels and other messages are logged.
func TestLimit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := loglimit.New(slog.New(slog.NewTextHandler(&out, nil)))
	require.Same(t, l, loglimit.New(l))
	now := time.Unix(1e9, 0)
	logs := func(level slog.Level, text string) int {
		out.Reset()
		require.NoError(t, l.With("a", 1).WithGroup("g").Handler().Handle(context.Background(), slog.NewRecord(now, level, text, 0)))
		return strings.Count(out.String(), text)
	}
	sum := 0
	for range 1000 {
		sum += logs(slog.LevelWarn, "refused")
		require.Equal(t, 1, logs(slog.LevelError, "broken"))
		require.Equal(t, 1, logs(slog.LevelInfo, "evicted"))
	}
	require.Equal(t, loglimit.Burst, sum)
	require.Equal(t, 1, logs(slog.LevelWarn, "another"))
	now = now.Add(loglimit.Period)
	require.Equal(t, 1, logs(slog.LevelWarn, "refused"))
	require.Contains(t, out.String(), "dropped=990")
	require.Zero(t, logs(slog.LevelWarn, "refused"))
	now = now.Add(loglimit.Period)
	require.Equal(t, 1, logs(slog.LevelWarn, "refused"))
	require.Contains(t, out.String(), "dropped=1")
	now = now.Add(-time.Hour) // a clock that was set
	require.Equal(t, 1, logs(slog.LevelWarn, "refused"))
	loglimit.New(nil).Warn("nothing")
}
