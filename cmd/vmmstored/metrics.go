package main

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cuvmm/cuvmm/shareable/metrics"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
	devicemetrics "github.com/cuvmm/cuvmm/vmm/metrics"
)

// listenMetrics listens at the address of --metrics.
func listenMetrics(ctx context.Context, address string) (net.Listener, error) {
	return listenConfig.Listen(ctx, "tcp", address)
}

// metricsTimeout is how long a client may take to ask, and to read the reply.
const metricsTimeout = 10 * time.Second

// newMetricsServer is a server that no client holds up.
func newMetricsServer(h http.Handler, timeout time.Duration) *http.Server {
	return &http.Server{Handler: h, ReadTimeout: timeout, WriteTimeout: timeout}
}

// metricsHandler serves the metrics of a store and of its device at /metrics.
func metricsHandler(s *store.Server, dev *vmm.Device) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewStore(s, version()), devicemetrics.NewDevice(dev))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}
