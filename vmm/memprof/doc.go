// Package memprof is a heap profile of device memory: which lines of the program have allocated it,
// and which still have it, for go tool pprof. It is on in every program that uses package vmm or a
// package above it; this package reads it.
//
//	http.Handle("GET /debug/pprof/gpumem", memprof.Handler())
//
// and then
//
//	go tool pprof -top http://host/debug/pprof/gpumem
//
// As in Go's heap profile memory is sampled, by default once in 512 MiB, so that an allocation of a
// pool costs hardly more with it than without. See SetRate. Numbers are estimates, unless the rate is 1.
package memprof

// Files:
//
//	memprof.go  Take, Write, Handler, SetRate
