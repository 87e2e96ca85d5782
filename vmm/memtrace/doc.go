// Package memtrace shows what has happened to the memory of a device: as lines of JSON, and as a
// file for Perfetto (ui.perfetto.dev) and chrome://tracing. The device keeps it once it is told to:
//
//	dev.SetHistory(vmm.HistoryOptions{Events: 10_000})
//	http.Handle("/debug/gpumem", memtrace.Handler(dev))
//
// and after an out of memory
//
//	f, err := os.Create("history.json")
//	...
//	err = memtrace.WriteTrace(f, dev)
package memtrace

// Files:
//
//	memtrace.go  Event, Resolve, Addr; WriteLines, Handler
//	trace.go     WriteTrace: trace events, as Perfetto reads them
