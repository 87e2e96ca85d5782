package store

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cuvmm/cuvmm/internal/stats"
)

// String is the statistics as JSON, which makes them an expvar.Var. The JSON names stay.
func (x Stats) String() string { return stats.Text(x) }

// LogValue is the statistics as a group of numbers.
func (x Stats) LogValue() slog.Value { return stats.Group(x) }

// Var is the store's Stats as a variable for expvar.Publish: its String reads them anew each
// time, as JSON. Safe for concurrent use.
func (s *Server) Var() fmt.Stringer { return stats.Var(func() any { return s.Stats() }) }

// Var is the server's Stats, without Conns, as a variable for expvar.Publish: its String asks the
// server each time, for up to ClientOptions.Timeout, and is JSON. If that fails, as it does after
// Close, it is {"error": the text}. Safe for concurrent use.
func (c *Client) Var() fmt.Stringer {
	return stats.Try(func() (Stats, error) { return c.Stats(context.Background()) })
}
