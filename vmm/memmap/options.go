package memmap

import (
	"time"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// Options says what a Map shows. Its functions are called while a snapshot is taken, by one
// goroutine at a time; they must not call the Map.
type Options struct {
	// Title is shown at the top of the page: the program's name, for one.
	Title string

	// Devices are the devices that the map shows, in this order. One that is closed is shown with
	// the error. Of what happened, the map shows the last 256 events that Device.SetHistory keeps.
	Devices []*vmm.Device

	// Pools returns the pools by the names that the map shows. Those of other devices are left
	// out. nil: there are none.
	Pools func() map[string]*pool.Pool

	// Sharers returns which other processes map memory of this one. nil: it is not known.
	Sharers func() []Sharer

	// Processes returns the memory of a device that other processes have, as NVML says. nil: it is
	// not known, and belongs to what the map cannot explain.
	Processes func(*vmm.Device) []Process

	// Interval is how often the page is told what has changed, 500 ms or more; 0: 500 ms. If taking
	// a snapshot costs more than 1/200 of it, the page is told less often.
	Interval time.Duration

	// Samples is how many moments the growth over time has at most, 16 or more; 0: 2,000. Beyond that every
	// other one of the older half is dropped, so the whole run stays in view.
	Samples int
}

const (
	leastInterval  = 500 * time.Millisecond
	mostInterval   = 30 * time.Second
	costShare      = 200 // an interval is as many times what its snapshot costs, at least
	defaultSamples = 2000
	leastSamples   = 16
	mostEvents     = 256
	mostChanges    = 63               // kept beside the newest, for pages that read slowly
	mostViewers    = 64               // pages that are told at once
	heartbeat      = 15 * time.Second // a page that is told nothing gets an empty line
)

func (o *Options) resolve() {
	o.Interval = max(o.Interval, leastInterval)
	if o.Samples <= 0 {
		o.Samples = defaultSamples
	}
	o.Samples = max(o.Samples, leastSamples)
}

// Sharer is one process that maps memory of this one.
type Sharer struct {
	Addr     Addr   `json:"addr"`           // in this process: any address in the range; 0: not known
	Object   string `json:"object"`         // the name under which it is shared
	Instance string `json:"instance"`       // of the process, where it says one
	PID      int    `json:"pid"`            // as the kernel says; 0: not known
	UID      int    `json:"uid"`            // its user; -1: not known
	Bytes    uint64 `json:"bytes"`          // that it maps
	Behind   uint64 `json:"behind"`         // bytes that it was told of and does not map yet
	Note     string `json:"note,omitempty"` // what else is to be said
}

// Process is another process that has memory of a device.
type Process struct {
	PID   int    `json:"pid"`
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}
