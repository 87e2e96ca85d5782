// Package metrics has the statistics of the servers of package shareable and of stores as metrics
// for Prometheus, for a program that registers them:
//
//	registry.MustRegister(metrics.NewServer(server))
//
// vmmstored --metrics has those of its store, by NewStore. Each time a collector is asked it reads
// its statistics once, so the numbers are of one moment as far as those are. Names that end in _bytes
// are bytes, in _seconds seconds, and in _total counts from the start on; docs/reference/metrics.md lists
// them. Package vmm/metrics has those of devices and pools.
//
// No other package of the library imports this one, or Prometheus's.
package metrics

// Files:
//
//	server.go   NewServer, and the names of shareable.Stats
//	store.go    NewStore, and the names of store.Report
