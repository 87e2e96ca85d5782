// Package memmap shows where the memory of devices is: who holds it, what is free, each range with
// its chunks, pools with their fragmentation, who else maps it, the last events, and growth over
// time. A [Map] is an http.Handler with a page that moves by itself:
//
//	m := memmap.New(memmap.Options{Devices: []*vmm.Device{dev}})
//	http.Handle("/debug/memmap/", m)
//
// [Map.WriteHTML] writes the same page as one file with the data in it, for one at the end of a
// run. [Map.Record] notes the growth over time while no page is open. The data have a JSON Schema,
// schema.json, which also describes vmm.Report, vmm.Stats and pool.Stats.
//
// # What it costs
//
// Nothing while no page is open. Otherwise one snapshot each Options.Interval, for all pages
// together, and one driver call for each device. The next snapshot is taken later if one costs more
// than 1/200 of the interval, so a map takes less than 1 % of a processor; a page that opens costs
// one snapshot in full. With 10,000 ranges a snapshot takes a few milliseconds: see
// BenchmarkSnapshot.
package memmap

// Files:
//
//	options.go     Options, Sharer, Process; intervals and limits
//	map.go         Map: New, Close, Record; when a snapshot is taken, and what a page is told
//	snapshot.go    Snapshot and its parts, and how they are read
//	change.go      Change: what differs between two snapshots
//	samples.go     Samples: growth over time
//	events.go      the last events of a device
//	handler.go     ServeHTTP: the paths, the stream of events
//	page.go        putting the page together; WriteHTML
//	schema.json    the JSON Schema of what is served
//	page/          the page: its frame, its styles, its program
//	uplot/         uPlot 1.6.32, which draws the growth over time, and its license

// Map.mu is held while a snapshot is taken: locks of packages vmm and pool come after it, and so do
// those of the functions in Options.
