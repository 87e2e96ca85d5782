package memmap

import (
	"reflect"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/vmm/memtrace"
)

// Change is what differs between a snapshot and the one before it. A part that is nil is as it was.
type Change struct {
	Schema  string         `json:"schema"` // SchemaVersion
	Seq     uint64         `json:"seq"`
	Before  uint64         `json:"before"` // the Seq that it is relative to
	Time    time.Time      `json:"time"`
	Ranges  time.Time      `json:"ranges_time"` // as Snapshot has it
	Devices []DeviceChange `json:"devices"`     // those that differ
	Sharers *[]Sharer      `json:"sharers,omitempty"`
}

// DeviceChange is what differs in one device.
type DeviceChange struct {
	Index   int              `json:"index"` // in Snapshot.Devices
	Summary *Summary         `json:"summary,omitempty"`
	Ranges  []Range          `json:"ranges,omitempty"`  // new ones, and those that differ
	Gone    []Addr           `json:"gone,omitempty"`    // ranges that are no more
	Pools   []Pool           `json:"pools,omitempty"`   // as Ranges
	Closed  []string         `json:"closed,omitempty"`  // pools that are no more
	Events  []memtrace.Event `json:"events,omitempty"`  // those after the ones before
	Samples *Samples         `json:"samples,omitempty"` // the rows after those before
}

// changeOf is what differs from was to is; nil if nothing does.
func changeOf(was, is *Snapshot) *Change {
	c := &Change{Schema: SchemaVersion, Seq: is.Seq, Before: was.Seq, Time: is.Time, Ranges: is.RangesTime, Devices: []DeviceChange{}}
	for i := range is.Devices {
		if d, differs := deviceChange(&was.Devices[i], &is.Devices[i]); differs {
			d.Index = i
			c.Devices = append(c.Devices, d)
		}
	}
	if !slices.Equal(was.Sharers, is.Sharers) {
		c.Sharers = &is.Sharers
	}
	if len(c.Devices) == 0 && c.Sharers == nil {
		return nil
	}
	return c
}

func deviceChange(was, is *Device) (d DeviceChange, differs bool) {
	if !reflect.DeepEqual(was.Summary, is.Summary) {
		d.Summary = &is.Summary
	}
	if !sameSlice(was.Ranges, is.Ranges) { // else they were not read
		d.Ranges, d.Gone = rangeChanges(was.Ranges, is.Ranges)
	}
	for i := range is.Pools {
		p := &is.Pools[i]
		j := slices.IndexFunc(was.Pools, func(q Pool) bool { return q.Name == p.Name })
		if j < 0 || !reflect.DeepEqual(was.Pools[j], *p) {
			d.Pools = append(d.Pools, *p)
		}
	}
	for i := range was.Pools {
		name := was.Pools[i].Name
		if !slices.ContainsFunc(is.Pools, func(q Pool) bool { return q.Name == name }) {
			d.Closed = append(d.Closed, name)
		}
	}
	var seen uint64
	if n := len(was.Events); n > 0 {
		seen = was.Events[n-1].Seq
	}
	if i := slices.IndexFunc(is.Events, func(e memtrace.Event) bool { return e.Seq > seen }); i >= 0 {
		d.Events = is.Events[i:]
	}
	if is.Samples.last() > was.Samples.last() {
		rows := is.Samples.after(was.Samples.last())
		d.Samples = &rows
	}
	differs = d.Summary != nil || d.Ranges != nil || d.Gone != nil || d.Pools != nil || d.Closed != nil || d.Events != nil || d.Samples != nil
	return d, differs
}

func sameSlice(a, b []Range) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// rangeChanges compares two lists by address.
func rangeChanges(was, is []Range) (changed []Range, gone []Addr) {
	i := 0
	for j := range is {
		r := &is[j]
		for i < len(was) && was[i].Addr < r.Addr {
			gone = append(gone, was[i].Addr)
			i++
		}
		if i < len(was) && was[i].Addr == r.Addr {
			if i++; was[i-1].equal(r) {
				continue
			}
		}
		changed = append(changed, *r)
	}
	for ; i < len(was); i++ {
		gone = append(gone, was[i].Addr)
	}
	return changed, gone
}

func (r *Range) equal(o *Range) bool {
	return r.Addr == o.Addr && r.Size == o.Size && r.Kind == o.Kind && r.Name == o.Name && r.Made == o.Made && r.Since.Equal(o.Since) && r.Pool == o.Pool &&
		r.Len == o.Len && r.Committed == o.Committed && r.Ahead == o.Ahead && r.Imported == o.Imported && r.Retiring == o.Retiring &&
		r.Quarantined == o.Quarantined && r.Asleep == o.Asleep &&
		slices.Equal(r.Chunks, o.Chunks) && slices.Equal(r.Sharers, o.Sharers)
}
