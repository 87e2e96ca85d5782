package metrics

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestServers: two servers and a store in one registry, asked by several goroutines, also while
// they close.
func TestServers(t *testing.T) {
	dev := vmmtest.Device(t)
	r := prometheus.NewPedanticRegistry()
	var servers []*shareable.Server
	for _, name := range []string{"a", "b"} {
		s, err := shareable.Listen(dev, filepath.Join(t.TempDir(), name), shareable.Options{})
		require.NoError(t, err)
		require.NoError(t, r.Register(NewServer(s)))
		require.Error(t, r.Register(NewServer(s)))
		servers = append(servers, s)
	}
	st, err := store.NewServer(dev, store.Options{})
	require.NoError(t, err)
	require.NoError(t, r.Register(NewStore(st, "v1")))
	g, err := dev.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 2 << 20})
	require.NoError(t, err)
	require.NoError(t, g.Append(make([]byte, 1000)))
	_, err = servers[0].Publish("rows", g, shareable.PublishOptions{})
	require.NoError(t, err)
	v, err := shareable.Attach(t.Context(), servers[0].Path(), "rows", dev, shareable.AttachOptions{})
	require.NoError(t, err)

	before := servers[0].Stats()
	require.Eventually(t, func() bool { // what Attach has sent is counted when it has been sent
		was := before
		before = servers[0].Stats()
		return before.Frames > 0 && before == was
	}, time.Minute, 10*time.Millisecond)
	got, stats := gathered(t, r), servers[0].Stats()
	of := "{socket=" + servers[0].Path() + "}"
	for name, n := range map[string]uint64{
		"clients": uint64(stats.Conns), "publications": uint64(stats.Published), "connections_total": stats.Accepted, "frames_total": stats.Frames,
	} {
		require.NotZero(t, n, name)
		require.InDelta(t, n, got["cuvmm_server_"+name+of], 0, name)
	}
	require.Zero(t, got["cuvmm_server_clients{socket="+servers[1].Path()+"}"])
	require.Contains(t, got, "cuvmm_store_objects")

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if _, err := r.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	require.NoError(t, v.Close())
	for _, s := range servers {
		require.NoError(t, s.Close())
	}
	require.NoError(t, st.Close())
	require.NoError(t, g.Close())
	wg.Wait()
	require.NotEmpty(t, gathered(t, r))
}
