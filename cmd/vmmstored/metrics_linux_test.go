package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// freePort is an address at which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // in a test
	return l.Addr().String()
}

func metricsAt(t *testing.T, address string) map[string]float64 {
	t.Helper()
	r, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close() //nolint:errcheck // in a test
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(b)))
	require.NoError(t, err, string(b))
	problems, err := promlint.New(bytes.NewReader(b)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	all := map[string]float64{}
	for name, f := range families {
		require.NotEmpty(t, f.GetHelp(), name)
		for _, m := range f.GetMetric() {
			key := name
			for _, l := range m.GetLabel() {
				if name != "cuvmm_store_info" {
					key += fmt.Sprintf("{%s=%s}", l.GetName(), l.GetValue())
				}
			}
			all[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// TestMetrics: the metrics are Prometheus's text, go on after a reload, and say under load and
// after it what stats and list say.
func TestMetrics(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	address := freePort(t)
	started(t, "--socket="+path, "--metrics="+address, "--max-bytes=64MiB")
	c := clientAt(t, path)
	var stop atomic.Bool
	over := make(chan error, 1)
	go func() {
		var err error
		for i := 0; !stop.Load() && err == nil; i++ {
			var w *store.Writer
			if w, err = c.Create(t.Context(), fmt.Sprint("o", i), store.CreateOptions{Size: 1000}); err == nil {
				err = w.Close()
			}
		}
		over <- err
	}()
	for range 5 {
		m := metricsAt(t, address)
		require.LessOrEqual(t, m["cuvmm_store_bytes"], float64(64<<20))
		require.GreaterOrEqual(t, m["cuvmm_store_created_total"], m["cuvmm_store_aborted_total"])
		require.InDelta(t, m["cuvmm_store_created_total"], m["cuvmm_store_aborted_total"]+m["cuvmm_store_objects"], 1)
	}
	stop.Store(true)
	require.NoError(t, <-over)
	_, err := c.Create(t.Context(), "much", store.CreateOptions{Size: 1 << 30})
	require.ErrorIs(t, err, vmm.ErrLimit)
	sealed(t, c, "s", nil)

	out, _, code := call(t, "--socket="+path, "stats", "--json")
	require.Zero(t, code)
	var r store.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	text, _, code := call(t, "--socket="+path, "stats")
	require.Zero(t, code)
	m := metricsAt(t, address)
	list, err := c.List(t.Context(), store.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list, r.Objects)
	require.EqualValues(t, list[0].Cap, r.Bytes)
	for name, n := range map[string]uint64{
		"objects": uint64(r.Objects), "created": r.Created, "sealed": r.Sealed, "aborted": r.Aborted, "deleted": r.Deleted, "evicted": r.Evicted,
		"leases_granted": r.Granted, "restarts": r.Restarts,
	} {
		got, has := m["cuvmm_store_"+name+"_total"]
		if !has {
			got, has = m["cuvmm_store_"+name]
		}
		require.True(t, has, name)
		require.InDelta(t, n, got, 0, name)
		line := regexp.MustCompile(`(?m)^` + strings.ReplaceAll(name, "_", " ") + ` +(\d+)`).FindStringSubmatch(text)
		require.NotNil(t, line, "%s in %s", name, text)
		require.Equal(t, strconv.FormatUint(n, 10), line[1], name)
	}
	require.InDelta(t, 1, m[fmt.Sprintf("cuvmm_store_requests_refused_total{reason=limit}{uid=%d}", r.Users[0].UID)], 0)
	require.EqualValues(t, 1, r.Refused["limit"])
	require.InDelta(t, 64<<20, m["cuvmm_store_limit_bytes"], 0)
	var committed float64
	for name, n := range m {
		if strings.HasPrefix(name, "cuvmm_device_committed_bytes{") { // the device is a GPU where there is one
			committed += n
		}
	}
	require.GreaterOrEqual(t, committed, m["cuvmm_store_bytes"])

	_, stderr, code := call(t, "--socket="+path, "reload")
	require.Zero(t, code, stderr)
	require.Eventually(t, func() bool {
		r, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return false
		}
		defer r.Body.Close() //nolint:errcheck // in a test
		b, err := io.ReadAll(r.Body)
		return err == nil && strings.Contains(string(b), "cuvmm_store_restarts_total 1\n")
	}, inTime, time.Millisecond)
}

// TestMetricsOfSlowClients: clients that ask for nothing, or read nothing, go, and no more than a few have a
// descriptor at once.
func TestMetricsOfSlowClients(t *testing.T) {
	t.Parallel()
	const clients = 4 * metricsConns
	s := newMetricsServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 16<<20))
	}), slog.New(slog.DiscardHandler), 200*time.Millisecond)
	var open, most atomic.Int64
	gone := make(chan struct{}, clients)
	s.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			most.Store(max(most.Load(), open.Add(1))) // by one goroutine
		case http.StateClosed:
			open.Add(-1)
			gone <- struct{}{}
		}
	}
	l, err := listenMetrics(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	go s.Serve(l) //nolint:errcheck // it is closed
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for i := range clients {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		if i%2 == 0 {
			_, err = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
			require.NoError(t, err)
		}
	}
	for range clients {
		select {
		case <-gone:
		case <-time.After(inTime):
			t.Fatal("a client stays")
		}
	}
	require.Less(t, most.Load(), int64(2*metricsConns)) // some have a place before others are counted out
}

// TestMetricsNameIsTaken: whoever has the name by which two daemons see each other, it is not said to be one.
func TestMetricsNameIsTaken(t *testing.T) {
	t.Parallel()
	address := freePort(t)
	name := "@vmmstored-metrics-" + address
	l, err := net.Listen("unix", name)
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // in a test
	_, stderr, code := call(t, "--socket="+filepath.Join(t.TempDir(), "s"), "--metrics="+address)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "the name "+name+" is taken, by a vmmstored or another process")
	_, stderr, code = call(t, "--socket="+filepath.Join(t.TempDir(), "s"), "--metrics="+strings.Repeat("x", 200))
	require.Equal(t, 1, code)
	require.NotContains(t, stderr, "taken")
}
