package main

import (
	"context"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/cuvmm/cuvmm/shareable/metrics"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
	devicemetrics "github.com/cuvmm/cuvmm/vmm/metrics"
)

// Of clients of --metrics.
const (
	metricsTimeout = 10 * time.Second // to ask, and to read the reply
	metricsConns   = 32               // at once: their descriptors are those of the store
)

// listenMetrics listens at the address of --metrics.
func listenMetrics(ctx context.Context, address string) (net.Listener, error) {
	l, err := listenConfig.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return netutil.LimitListener(l, metricsConns), nil
}

// newMetricsServer is a server that no client holds up.
func newMetricsServer(h http.Handler, log *slog.Logger, timeout time.Duration) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: timeout, WriteTimeout: timeout, ErrorLog: stdlog.New(httpLog{log}, "", 0)}
}

// httpLog logs what an HTTP server says, under one message, by which lines are limited.
type httpLog struct{ to *slog.Logger }

func (l httpLog) Write(line []byte) (int, error) {
	l.to.Warn("the server of --metrics", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}

// metricsHandler serves the metrics of a store and of its device at /metrics.
func metricsHandler(s *store.Server, dev *vmm.Device) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewStore(s, version()), devicemetrics.NewDevice(dev))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}
