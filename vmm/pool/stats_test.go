package pool_test

import (
	"bytes"
	"log/slog"
	"reflect"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestStatsHaveNames: JSON and slog have one name for each number, in snake case.
func TestStatsHaveNames(t *testing.T) {
	x := pool.Stats{Reserved: 1, LargestFree: 2, InSlabs: 3}
	for f := range reflect.TypeFor[pool.Stats]().Fields() {
		require.Regexp(t, regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`), f.Tag.Get("json"), f.Name)
	}
	require.Contains(t, x.String(), `{"reserved":1,"reserved_peak":0,`)
	require.Contains(t, x.String(), `"in_slabs":3,"largest_free":2,`)
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("pool", "stats", x)
	require.Contains(t, b.String(), "stats.largest_free=2")
}
