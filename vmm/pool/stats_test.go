package pool_test

import (
	"bytes"
	"log/slog"
	"reflect"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
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

// TestStatsVar: a Var is read anew each time, and says why that fails.
func TestStatsVar(t *testing.T) {
	d := vmmtest.Device(t)
	p, err := pool.New(d, pool.Options{})
	require.NoError(t, err)
	x := p.Var()
	require.Contains(t, x.String(), `"allocs":0,`)
	s, err := d.NewStream()
	require.NoError(t, err)
	b, err := p.Alloc(s, 1000)
	require.NoError(t, err)
	require.Contains(t, x.String(), `"allocs":1,`)
	require.NoError(t, p.FreeNow(b))
	require.NoError(t, s.Close())
	require.NoError(t, p.Close())
	for _, none := range []interface{ String() string }{(*pool.Pool)(nil).Var(), (&pool.Pool{}).Var(), (*pool.DriverPool)(nil).Var(), (&pool.DriverPool{}).Var()} {
		require.Contains(t, none.String(), `{"error":"`)
	}
}
