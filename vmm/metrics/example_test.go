//go:build linux

package metrics_test

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/metrics"
)

// A device's memory as a Prometheus server reads it, by promhttp.HandlerFor(registry, ...).
func ExampleNewDevice() {
	dev, err := vmm.OpenDriver(host.New(host.Config{Memory: 1 << 30}), 0)
	if err != nil {
		panic(err)
	}
	defer dev.Close()
	g, err := dev.Alloc(3 << 20)
	if err != nil {
		panic(err)
	}
	defer g.Close()

	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewDevice(dev))
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "_used_bytes") {
			m := f.GetMetric()[0]
			fmt.Printf("%s{%s=%q} %.0f\n", f.GetName(), m.GetLabel()[0].GetName(), m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
		}
	}
	// Output: cuvmm_device_used_bytes{device="host:0"} 3145728
}
