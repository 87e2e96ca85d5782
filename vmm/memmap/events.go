package memmap

import (
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memtrace"
)

const mostStack = 8 // frames of an event

// eventList is the last events of a device. Only those that are new are looked up.
type eventList []memtrace.Event

// update adds what is new, of the last mostEvents.
func (l *eventList) update(d *vmm.Device) {
	all := *l
	var seen uint64
	if n := len(all); n > 0 {
		seen = all[n-1].Seq
	}
	if newest := inside.VMM.HistoryLog(d).Newest(); newest > mostEvents {
		seen = max(seen, newest-mostEvents)
	}
	for h := range d.HistorySeq(seen) {
		e := memtrace.Resolve(h)
		e.Stack = e.Stack[:min(len(e.Stack), mostStack)]
		all = append(all, e)
	}
	*l = all[max(0, len(all)-mostEvents):] // not in place: snapshots have what was there
}
