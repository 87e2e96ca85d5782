package drivertest

import (
	"fmt"
	"maps"
	"strings"
)

// Count is the outcome of the calls of one name. A call that the hook refused or the
// driver failed counts as failed.
type Count struct {
	Made   int    // calls that succeeded
	Failed int    // calls that did not
	Bytes  uint64 // Call.Size of those that succeeded, added up
}

func (d *Injected) count(name string, size uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counts[name]
	if err != nil {
		c.Failed++
	} else {
		c.Made++
		c.Bytes += size
	}
	d.counts[name] = c
}

// Counts is a copy of the counts so far, by the name of the call. A name that
// was never called has the zero Count.
func (d *Injected) Counts() map[string]Count {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.counts)
}

// pair is calls that take something and calls that free it.
type pair struct {
	take, free []string
	bytes      bool // compare bytes, because one Unmap covers many Maps
}

func pairs() []pair {
	return []pair{
		{take: []string{"Reserve"}, free: []string{"Free"}},
		{take: []string{"Reserve"}, free: []string{"Free"}, bytes: true},
		{take: []string{"Create", "Import", "ImportFabric"}, free: []string{"Release"}},
		{take: []string{"Map"}, free: []string{"Unmap"}, bytes: true},
		{take: []string{"Open"}, free: []string{"Close"}},
		{take: []string{"NewStream", "NewStreamPriority"}, free: []string{"FreeStream"}},
		{take: []string{"NewEvent", "OpenEvent"}, free: []string{"FreeEvent"}},
		{take: []string{"LoadModule"}, free: []string{"UnloadModule"}},
		{take: []string{"EndCapture"}, free: []string{"FreeGraph"}},
		{take: []string{"Instantiate"}, free: []string{"FreeGraphExec"}},
		{take: []string{"EnablePeer"}, free: []string{"DisablePeer"}},
		{take: []string{"AllocHost"}, free: []string{"FreeHost"}},
		{take: []string{"CreatePool", "ImportPool"}, free: []string{"DestroyPool"}},
		{take: []string{"AllocPlain", "AllocAsync", "AllocFromPool", "ImportPointer"}, free: []string{"FreePlain", "FreeAsync"}},
		{take: []string{"OpenMem"}, free: []string{"CloseMem"}},
	}
}

// Balanced returns nil if everything that was taken through the wrapper was given
// back: reservations freed, handles released, mapped bytes unmapped, devices closed,
// streams, events, graphs and pinned and plain memory freed, pools destroyed, modules
// unloaded, access to peers disabled. Else the error names each pair that is not even. What a Close of a
// device frees by itself counts as not given back. File descriptors are not counted.
func (d *Injected) Balanced() error {
	counts := d.Counts()
	sum := func(names []string, bytes bool) (n uint64) {
		for _, name := range names {
			if bytes {
				n += counts[name].Bytes
			} else {
				n += uint64(counts[name].Made)
			}
		}
		return n
	}
	// Bytes and calls are compared apart: one Unmap covers many Maps.
	var uneven []string
	for _, p := range pairs() {
		taken, freed := sum(p.take, p.bytes), sum(p.free, p.bytes)
		if taken == freed {
			continue
		}
		noun := "calls"
		if p.bytes {
			noun = "bytes"
		}
		uneven = append(uneven, fmt.Sprintf("%s %d %s, %s %d",
			strings.Join(p.take, "+"), taken, noun, strings.Join(p.free, "+"), freed))
	}
	if uneven == nil {
		return nil
	}
	return fmt.Errorf("not given back: %s", strings.Join(uneven, "; "))
}
