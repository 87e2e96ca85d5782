package main

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cuvmm/cuvmm/shareable/store"
)

// listenMetrics listens at the address of --metrics.
func listenMetrics(ctx context.Context, address string) (net.Listener, error) {
	return listenConfig.Listen(ctx, "tcp", address)
}

// metricsHandler serves the metrics of a store at /metrics.
func metricsHandler(s interface{ Report() store.Report }) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{s})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}

// metric is one number of a report.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(store.Report) float64
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// metrics are the numbers of the whole store.
var metrics = []metric{
	{"cuvmm_store_objects", "Objects, also deleted ones that readers have.", gauge, func(r store.Report) float64 { return float64(r.Objects) }},
	{"cuvmm_store_bytes", "Bytes of memory of all objects.", gauge, func(r store.Report) float64 { return float64(r.Bytes) }},
	{"cuvmm_store_clients", "Open connections.", gauge, func(r store.Report) float64 { return float64(r.Clients) }},
	{"cuvmm_store_leases", "Objects that have a writer.", gauge, func(r store.Report) float64 { return float64(r.Leases) }},
	{"cuvmm_store_waits", "Requests that wait.", gauge, func(r store.Report) float64 { return float64(r.Waits) }},
	{"cuvmm_store_created_total", "Objects created.", counter, func(r store.Report) float64 { return float64(r.Created) }},
	{"cuvmm_store_sealed_total", "Objects sealed.", counter, func(r store.Report) float64 { return float64(r.Sealed) }},
	{"cuvmm_store_aborted_total", "Objects given up by their writers.", counter, func(r store.Report) float64 { return float64(r.Aborted) }},
	{"cuvmm_store_deleted_total", "Objects deleted.", counter, func(r store.Report) float64 { return float64(r.Deleted) }},
	{"cuvmm_store_evicted_total", "Objects evicted.", counter, func(r store.Report) float64 { return float64(r.Evicted) }},
	{"cuvmm_store_leases_granted_total", "Leases granted.", counter, func(r store.Report) float64 { return float64(r.Granted) }},
	{"cuvmm_store_restarts_total", "Server processes before this one.", counter, func(r store.Report) float64 { return float64(r.Restarts) }},
	{"cuvmm_store_connections_total", "Connections accepted.", counter, func(r store.Report) float64 { return float64(r.Conns.Accepted) }},
	{"cuvmm_store_connections_refused_total", "Connections refused.", counter, func(r store.Report) float64 { return float64(r.Conns.Refused) }},
	{"cuvmm_store_connections_timed_out_total", "Connections that took too long.", counter, func(r store.Report) float64 { return float64(r.Conns.TimedOut) }},
	{"cuvmm_store_protocol_violations_total", "Connections that broke the protocol.", counter, func(r store.Report) float64 { return float64(r.Conns.Violations) }},
	{"cuvmm_store_uptime_seconds", "Time since the serving process began.", gauge, func(r store.Report) float64 { return r.Uptime.Seconds() }},
	{"cuvmm_store_readers_behind", "Readers that have not mapped, or unmapped, all that they were told.", gauge, func(r store.Report) float64 { return float64(r.ReadersBehind) }},
	{"cuvmm_store_reader_behind_seconds", "The longest that a reader is behind.", gauge, func(r store.Report) float64 {
		most := 0.0
		for _, b := range r.Behind {
			most = max(most, time.Since(b.BehindSince).Seconds())
		}
		return most
	}},
	{"cuvmm_store_limit_bytes", "Limit of the memory of all objects.", gauge, func(r store.Report) float64 { return float64(r.Limits.Bytes) }},
	{"cuvmm_store_limit_user_bytes", "Limit of the memory of the objects of one user.", gauge, func(r store.Report) float64 { return float64(r.Limits.BytesPerUser) }},
	{"cuvmm_store_limit_objects", "Limit of the number of objects.", gauge, func(r store.Report) float64 { return float64(r.Limits.Objects) }},
}

// userMetric is one number of a user.
type userMetric struct {
	name, help string
	value      func(store.UserReport) float64
}

var userMetrics = []userMetric{
	{"cuvmm_store_user_bytes", "Bytes of memory that count for a user.", func(u store.UserReport) float64 { return float64(u.Bytes) }},
	{"cuvmm_store_user_objects", "Objects that count for a user.", func(u store.UserReport) float64 { return float64(u.Objects) }},
	{"cuvmm_store_user_record_bytes", "Bytes of the server's own memory that count for a user.", func(u store.UserReport) float64 { return float64(u.RecordBytes) }},
	{"cuvmm_store_user_descriptors", "Descriptors of the server that count for a user.", func(u store.UserReport) float64 { return float64(u.Descriptors) }},
	{"cuvmm_store_user_clients", "Open connections of a user.", func(u store.UserReport) float64 { return float64(u.Clients) }},
}

// collector makes metrics of one report, so that they are of one moment.
type collector struct {
	s interface{ Report() store.Report }
}

var (
	infoDesc    = prometheus.NewDesc("cuvmm_store_info", "The device and the program; the value is 1.", []string{"device", "instance", "version"}, nil)
	refusedDesc = prometheus.NewDesc("cuvmm_store_requests_refused_total", "Requests refused, by user and reason.", []string{"uid", "reason"}, nil)
)

// Describe sends nothing: the collector is unchecked, since its labels are those of the users there
// are.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends what there is now.
func (c collector) Collect(to chan<- prometheus.Metric) {
	r := c.s.Report()
	to <- prometheus.MustNewConstMetric(infoDesc, gauge, 1, r.Device, r.Instance, version())
	for _, m := range metrics {
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc(m.name, m.help, nil, nil), m.kind, m.value(r))
	}
	for _, u := range r.Users {
		uid := strconv.FormatUint(uint64(u.UID), 10)
		for _, m := range userMetrics {
			to <- prometheus.MustNewConstMetric(prometheus.NewDesc(m.name, m.help, []string{"uid"}, nil), gauge, m.value(u), uid)
		}
		for reason, n := range u.Refused {
			to <- prometheus.MustNewConstMetric(refusedDesc, counter, float64(n), uid, reason)
		}
	}
}
