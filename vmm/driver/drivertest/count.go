package drivertest

import (
	"fmt"
	"maps"
	"strings"
)

// Count is what became of the calls of one name. A call that the hook refused
// or the driver failed made nothing.
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

// pair is calls that take something and calls that give it back.
type pair struct {
	take, give []string
	bytes      bool // compare bytes, because one Unmap covers many Maps
}

func pairs() []pair {
	return []pair{
		{take: []string{"Reserve"}, give: []string{"Free"}},
		{take: []string{"Reserve"}, give: []string{"Free"}, bytes: true},
		{take: []string{"Create", "Import", "ImportFabric"}, give: []string{"Release"}},
		{take: []string{"Map"}, give: []string{"Unmap"}, bytes: true},
		{take: []string{"Open"}, give: []string{"Close"}},
		{take: []string{"NewStream"}, give: []string{"FreeStream"}},
		{take: []string{"NewEvent"}, give: []string{"FreeEvent"}},
		{take: []string{"EnablePeer"}, give: []string{"DisablePeer"}},
		{take: []string{"AllocHost"}, give: []string{"FreeHost"}},
		{take: []string{"AllocPlain", "AllocAsync"}, give: []string{"FreePlain", "FreeAsync"}},
	}
}

// Balanced is nil when everything taken through the wrapper was given back:
// reservations freed, handles released, mapped bytes unmapped, devices closed,
// streams, events and pinned and plain memory freed, access to peers disabled.
// Else it names each pair that is not even; what closing a device undoes by
// itself is one. File descriptors are their owner's and not counted.
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
	var uneven []string
	for _, p := range pairs() {
		taken, given := sum(p.take, p.bytes), sum(p.give, p.bytes)
		if taken == given {
			continue
		}
		unit := "calls"
		if p.bytes {
			unit = "bytes"
		}
		uneven = append(uneven, fmt.Sprintf("%s %d %s, %s %d",
			strings.Join(p.take, "+"), taken, unit, strings.Join(p.give, "+"), given))
	}
	if uneven == nil {
		return nil
	}
	return fmt.Errorf("not given back: %s", strings.Join(uneven, "; "))
}
