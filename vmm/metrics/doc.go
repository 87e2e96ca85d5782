// Package metrics has the statistics of devices and pools as metrics for Prometheus, for a program
// that registers them:
//
//	registry.MustRegister(metrics.NewDevice(dev), metrics.NewPool("activations", p))
//	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
//
// Each time a collector is asked it reads its Stats once, so the numbers of one device, or of one
// pool, are of one moment. Reading them makes no driver call. Names that end in _bytes are bytes,
// in _seconds seconds, and in _total counts from the start on; docs/reference/metrics.md lists them. For
// expvar there is expvar.Func with vmm.Device.Stats.
//
// No other package of the library imports this one, or Prometheus's.
package metrics

// Files:
//
//	device.go   NewDevice, and the names of vmm.Stats
//	pool.go     NewPool, and the names of pool.Stats
