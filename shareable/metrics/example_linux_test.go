package metrics_test

import (
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/metrics"
	"github.com/cuvmm/cuvmm/vmm"
)

// A server's statistics as a Prometheus server reads them, by promhttp.HandlerFor(registry, ...).
func ExampleNewServer() {
	dev, err := vmm.Open("host")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	server, err := shareable.NewServer(dev, shareable.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	g, err := dev.NewRange(vmm.RangeOptions{Max: 1 << 20, Share: vmm.ShareFD})
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	p, err := server.Publish("log", g, shareable.PublishOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewServer(server))
	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "cuvmm_server_publications" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output: cuvmm_server_publications 1
}
