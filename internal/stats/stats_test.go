package stats_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/stats"
)

type inner struct {
	Calls uint64 `json:"calls"`
}

func (i inner) LogValue() slog.Value { return stats.Group(i) }

type outer struct {
	inner
	Bytes uint64    `json:"bytes"`
	Since time.Time `json:"since,omitzero"`
	Part  inner     `json:"part"`
}

// TestStats: expvar and slog have the same names.
func TestStats(t *testing.T) {
	x := outer{inner{3}, 7, time.Time{}, inner{4}}
	require.JSONEq(t, `{"calls":3,"bytes":7,"part":{"calls":4}}`, stats.Text(x))
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "s", stats.Group(x))
	require.Contains(t, b.String(), "s.calls=3 s.bytes=7 s.since=0001-01-01T00:00:00.000Z s.part.calls=4")
}
