package main

import (
	"context"
	"net"
	"net/http"

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

// metricsHandler serves the metrics of a store and of its device at /metrics.
func metricsHandler(s *store.Server, dev *vmm.Device) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewStore(s, version()), devicemetrics.NewDevice(dev))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}
