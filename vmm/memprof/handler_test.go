package memprof_test

import (
	"net/http"
	"net/http/httptest"
	_ "net/http/pprof" //nolint:gosec // it is what the handler stands beside
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/memprof"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

func get(t *testing.T, h http.Handler, query string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/gpumem"+query, nil))
	return w
}

var mount = sync.OnceFunc(func() { http.Handle("GET /debug/pprof/gpumem", memprof.Handler()) })

// TestBesideGoProfiles: the handler is mounted as its doc comment says, beside net/http/pprof.
func TestBesideGoProfiles(t *testing.T) {
	mount()
	p, err := profile.Parse(get(t, http.DefaultServeMux, "").Body)
	require.NoError(t, err)
	require.Equal(t, "inuse_space", p.DefaultSampleType)
	require.Contains(t, p.Comments[0], "once in 536870912 bytes")
	require.Contains(t, get(t, http.DefaultServeMux, "?debug=1").Body.String(), "inuse_space/bytes")
	require.Equal(t, http.StatusBadRequest, get(t, http.DefaultServeMux, "?seconds=x").Code)
}

// TestSince: what has changed since a profile is there, and nothing else.
func TestSince(t *testing.T) {
	all(t)
	d := vmmtest.Device(t)
	before, err := d.Alloc(4 << 20)
	require.NoError(t, err)
	p := memprof.Take()
	after, err := d.Alloc(2 << 20)
	require.NoError(t, err)
	require.NoError(t, before.Close())
	p, err = memprof.Since(p)
	require.NoError(t, err)
	sums := [4]int64{}
	for _, s := range p.Sample {
		for i, v := range s.Value {
			sums[i] += v
		}
	}
	require.Equal(t, [4]int64{1, 2 << 20, 0, -2 << 20}, sums)
	require.Positive(t, p.DurationNanos)
	require.NoError(t, after.Close())
	q, err := profile.Parse(get(t, memprof.Handler(), "?seconds=1").Body)
	require.NoError(t, err)
	require.Empty(t, q.Sample)
	require.Equal(t, http.StatusBadRequest, get(t, memprof.Handler(), "?seconds=0").Code)

	gone, err := vmm.OpenDriver(host.New(host.Config{Memory: 64 << 20}), 0)
	require.NoError(t, err)
	c, err := gone.Create(2<<20, vmm.Prop{})
	require.NoError(t, err)
	p = memprof.Take()
	require.NoError(t, c.Close())
	require.NoError(t, gone.Close())
	p, err = memprof.Since(p)
	require.NoError(t, err)
	require.Len(t, p.Sample, 1)
	require.Equal(t, []int64{0, 0, -1, -2 << 20}, p.Sample[0].Value, "what was allocated is not taken back")
}

// TestRangesOwnWhatGrowsAhead: memory for which no call of the program has asked, by growth ahead and
// after a Wake, is where the range was made.
func TestRangesOwnWhatGrowsAhead(t *testing.T) {
	all(t)
	d := vmmtest.Device(t)
	made := func() *vmm.Range {
		g, err := d.NewRange(vmm.RangeOptions{Max: 256 << 20, Chunk: 2 << 20, GrowAhead: 64 << 20})
		require.NoError(t, err)
		return g
	}
	g := made()
	defer func() { require.NoError(t, g.Close()) }()
	require.NoError(t, g.Append([]byte{1}))
	require.Eventually(t, func() bool { return g.Cap() >= 64<<20 }, time.Minute, time.Millisecond)
	owned := func() (n int64) {
		p := memprof.Take()
		for _, s := range p.Sample {
			for _, l := range s.Location {
				if strings.Contains(l.Line[0].Function.Name, "TestRangesOwnWhatGrowsAhead.func") {
					n += s.Value[3]
					break
				}
			}
		}
		return n
	}
	require.GreaterOrEqual(t, owned(), int64(62<<20))
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, g))
	require.Zero(t, owned())
	require.NoError(t, vmm.Wake(g))
	require.EqualValues(t, d.Stats().Committed, owned())
}
