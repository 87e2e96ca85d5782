package metrics

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/promstats"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestEveryNumberHasAMetric, also one that is new.
func TestEveryNumberHasAMetric(t *testing.T) {
	t.Parallel()
	require.Empty(t, promstats.Mismatches[vmm.Stats](deviceRows))
	require.Empty(t, promstats.Mismatches[pool.Stats](poolRows))
}

// gathered is what a registry has as Prometheus reads it, by name and labels.
func gathered(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	var text bytes.Buffer
	for _, f := range families {
		require.Equal(t, strings.HasSuffix(f.GetName(), "_total"), f.GetType().String() == "COUNTER", f.GetName())
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	p := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := p.TextToMetricFamilies(&text)
	require.NoError(t, err)
	all := map[string]float64{}
	for name, f := range parsed {
		if base, counter := strings.CutSuffix(name, "_total"); counter {
			require.NotContains(t, parsed, base) // a counter's name in OpenMetrics
		}
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				key += fmt.Sprintf("{%s=%s}", l.GetName(), l.GetValue())
			}
			require.NotContains(t, all, key)
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// TestMetrics: two devices and three pools in one registry, what they say, and that no driver is
// asked.
func TestMetrics(t *testing.T) {
	var calls atomic.Uint64
	devs := vmmtest.Devices(t, 2, func(drivertest.Call) error {
		calls.Add(1)
		return nil
	})
	r := prometheus.NewPedanticRegistry()
	for _, dev := range devs {
		require.NoError(t, r.Register(NewDevice(dev)))
		require.Error(t, r.Register(NewDevice(dev)))
	}
	pools := map[string]*pool.Pool{} // by labels
	for i, name := range []string{"a", "b", "a"} {
		dev := devs[i/2]
		p, err := pool.New(dev, pool.Options{})
		require.NoError(t, err)
		s, err := dev.NewStream()
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, p.Close())
			require.NoError(t, s.Close())
		})
		for _, size := range []uint64{1000, 1 << 20, 3 << 20} {
			b, err := p.Alloc(s, size*uint64(i+1))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.FreeNow(b)) })
		}
		b, err := p.Alloc(s, 5<<20)
		require.NoError(t, err)
		require.NoError(t, p.Free(s, b))
		require.NoError(t, r.Register(NewPool(name, p)))
		require.Error(t, r.Register(NewPool(name, p)))
		pools[fmt.Sprintf("{device=%s}{pool=%s}", dev, name)] = p
	}
	g, err := devs[0].Alloc(3 << 20)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })

	before := calls.Load()
	got := gathered(t, r)
	require.Equal(t, before, calls.Load())
	require.Len(t, got, 2*len(deviceRows)+3*len(poolRows))
	for _, dev := range devs {
		st, of := dev.Stats(), fmt.Sprintf("{device=%s}", dev)
		for name, want := range map[string]uint64{
			"committed_bytes": st.Committed, "used_bytes": st.Used, "reserved_bytes": st.Reserved, "cached_bytes": st.Cached,
			"used_peak_bytes": st.PeakUsed, "creates_total": st.Creates, "maps_total": st.Maps, "growths_total": st.Growths,
			"address_limit_bytes": st.AddressLimit,
		} {
			require.InDelta(t, want, got["cuvmm_device_"+name+of], 0, name)
		}
	}
	require.InDelta(t, 3<<20, got["cuvmm_device_used_bytes{device="+devs[0].String()+"}"], 0)
	for of, p := range pools {
		st, err := p.Stats()
		require.NoError(t, err)
		for name, want := range map[string]uint64{
			"reserved_bytes": st.Reserved, "used_bytes": st.Used, "allocs_total": st.Allocs, "frees_total": st.Frees,
			"pending_bytes": st.Pending, "in_slabs_bytes": st.InSlabs, "created_bytes_total": st.Created,
		} {
			require.NotZero(t, want, name)
			require.InDelta(t, want, got["cuvmm_pool_"+name+of], 0, name)
		}
	}
}

// TestConcurrently gathered metrics, while what they are of changes and closes.
func TestConcurrently(t *testing.T) {
	dev := vmmtest.Device(t)
	p, err := pool.New(dev, pool.Options{})
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	r := prometheus.NewRegistry()
	r.MustRegister(NewDevice(dev), NewPool("a", p))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				families, err := r.Gather()
				if err != nil || len(families) != len(deviceRows)+len(poolRows) {
					t.Errorf("%d families, %v", len(families), err)
				}
			}
		})
	}
	for range 100 {
		b, err := p.Alloc(s, 100<<10)
		require.NoError(t, err)
		require.NoError(t, p.Free(s, b))
	}
	require.NoError(t, p.Close())
	wg.Wait()
	require.NoError(t, s.Close())
	require.NotEmpty(t, gathered(t, r))
}

// TestNil: a nil device is one without numbers, a nil pool none.
func TestNil(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewDevice(nil), NewPool("a", nil))
	require.Len(t, gathered(t, r), len(deviceRows))
}
