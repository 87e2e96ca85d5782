package main

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// gatedLoops bounds what is queued behind a gate.
const gatedLoops = 128

// gateSupport returns what a gate needs. ok is false where a stream cannot wait
// for a word of memory.
func gateSupport(dev device) (ops driver.StreamMemOps, alloc driver.HostAllocator, ok bool) {
	ops, hasOps := dev.raw.(driver.StreamMemOps)
	alloc, hasAlloc := dev.raw.(driver.HostAllocator)
	return ops, alloc, hasOps && hasAlloc && dev.Supports(driver.FeatureStreamMemOps) == nil
}

// gate makes a stream wait until the host writes a word.
type gate struct {
	memOps driver.StreamMemOps
	ptr    driver.Ptr
	word   []byte // pinned
	count  uint64 // how often it was shut

	timeout time.Duration
}

// shut makes the stream wait. open lets the stream go on and returns false if
// the gate had opened itself before, after the timeout. Calling open again does
// nothing.
func (g *gate) shut(s driver.Stream) (open func() (inTime bool), err error) {
	g.count++
	n := g.count
	if err := g.memOps.WaitValue(s, g.ptr, n, 4); err != nil {
		return nil, err
	}
	// The timer and open may both store. No Go code reads the word, so a plain
	// store will do.
	var once sync.Once
	store := func() { once.Do(func() { binary.LittleEndian.PutUint32(g.word, uint32(n)) }) }
	late := time.AfterFunc(g.timeout, store)
	return func() bool {
		inTime := late.Stop()
		store()
		return inTime
	}, nil
}
