package vmm

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/frames"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/internal/stats"
	"github.com/cuvmm/cuvmm/vmm/internal/count"
)

// moment is memsample.Owner.Moment.
func (d *Device) moment(read func()) memsample.Totals {
	pinned := d.pinned()
	c := &d.counters
	c.Lock()
	defer c.Unlock()
	read()
	return memsample.Totals{Committed: c.Committed.Now, Cached: c.Cached.Now, HostCopies: c.HostCopies.Now, Pinned: pinned, PinnedOf: d.state}
}

// pinned is how much host memory is pinned for the device.
func (d *Device) pinned() uint64 {
	if o := d.state.openDevice.Load(); o != nil {
		return o.stage.Pinned() + o.mirrors.Load() + o.pinnedCache.size.Load()
	}
	return 0
}

// Counts are numbers of operations since the Device was opened; Reclaimed is bytes.
type Counts struct {
	Creates           uint64 `json:"creates"`             // pieces of memory taken from the driver
	Releases          uint64 `json:"releases"`            // pieces given back to it
	Maps              uint64 `json:"maps"`                // pieces mapped
	Unmaps            uint64 `json:"unmaps"`              // pieces unmapped
	Hits              uint64 `json:"hits"`                // cached pieces that growth took
	Growths           uint64 `json:"growths"`             // growths that a caller waited for
	GrowAheads        uint64 `json:"grow_aheads"`         // growths ahead of need
	GrowAheadFailures uint64 `json:"grow_ahead_failures"` // growths ahead of need that got less than they wanted, or nothing
	Reclaimed         uint64 `json:"reclaimed"`           // bytes taken back while retiring
}

// Stats is a consistent snapshot of a device's memory usage, in bytes. Reading it
// makes no driver call. It is an slog.LogValuer, and String is its JSON, as
// package expvar wants it. JSON field names are stable.
//
// Retiring and Quarantined count imported memory, too. Stats does not count pages that this package has unmapped and that stay for another reason: a dma-buf
// of them is open, or they are registered with another library (RDMA, NCCL) until that registration ends
// (see Watch). Device.MemInfo shows that they are not free.
type Stats struct {
	Reserved    uint64 `json:"reserved"`    // addresses
	Committed   uint64 `json:"committed"`   // physical memory created here, which the limit counts; cached and retiring included
	Imported    uint64 `json:"imported"`    // memory of another process or Device that is open here; its owner counts it as Committed
	Used        uint64 `json:"used"`        // below Len of a Range that is awake and has no Supplier
	Cached      uint64 `json:"cached"`      // unused, for growth; see SetReleaseThreshold
	Retiring    uint64 `json:"retiring"`    // given up; the work that may use it has not ended
	Quarantined uint64 `json:"quarantined"` // could not be undone or given back; Trim, growth out of memory and Close try again
	Asleep      uint64 `json:"asleep"`      // below Len of a Range that sleeps
	HostCopies  uint64 `json:"host_copies"` // host memory for the contents of Ranges that sleep or have slept; see RangeOptions.KeepHostMemory
	Pinned      uint64 `json:"pinned"`      // host memory for staging, of Mirrors and of Pinned, of all Devices on this one

	PeakReserved  uint64 `json:"peak_reserved"`
	PeakCommitted uint64 `json:"peak_committed"`
	PeakUsed      uint64 `json:"peak_used"`
	PeakCached    uint64 `json:"peak_cached"`
	PeakRetiring  uint64 `json:"peak_retiring"`

	Counts

	// WorkTime is how long the device's goroutine has been at work.
	WorkTime time.Duration `json:"work_ns"`

	Limit            uint64 `json:"limit"`             // see SetLimit
	Lease            uint64 `json:"lease"`             // what a budget has lent this process; 0: none, see package shareable/budget
	ReleaseThreshold uint64 `json:"release_threshold"` // see SetReleaseThreshold
	AddressLimit     uint64 `json:"address_limit"`     // see SetAddressLimit
}

// Stats reads the device's counters.
func (d *Device) Stats() Stats {
	if d == nil || d.state == nil {
		return Stats{}
	}
	process.mu.Lock()
	addresses := process.limit
	process.mu.Unlock()
	limit, lease := d.state.bank.Limit(), d.state.bank.Lent()
	pinned := d.pinned()
	// What follows is of one moment; the limits above change by themselves.
	c := &d.counters
	var st Stats
	c.Moment(func() {
		st = Stats{
			Reserved:         c.Reserved.Now,
			Committed:        c.Committed.Now,
			Imported:         c.Imported.Now,
			Used:             c.Used.Now,
			Cached:           c.Cached.Now,
			Retiring:         c.Retiring.Now,
			Quarantined:      c.Quarantined.Now,
			Asleep:           c.Asleep.Now,
			HostCopies:       c.HostCopies.Now,
			Pinned:           pinned,
			PeakReserved:     c.Reserved.Peak,
			PeakCommitted:    c.Committed.Peak,
			PeakUsed:         c.Used.Peak,
			PeakCached:       c.Cached.Peak,
			PeakRetiring:     c.Retiring.Peak,
			Counts:           Counts(c.Counts),
			WorkTime:         time.Duration(d.workTime.Load()),
			Limit:            limit,
			Lease:            lease,
			ReleaseThreshold: c.Threshold,
			AddressLimit:     addresses,
		}
	})
	return st
}

// ResetPeaks sets the high-water marks to the current values.
func (d *Device) ResetPeaks() {
	if d == nil || d.state == nil {
		return
	}
	c := &d.counters
	c.Moment(func() {
		for _, g := range []*count.Gauge{&c.Reserved, &c.Committed, &c.Used, &c.Cached, &c.Retiring, &c.Quarantined, &c.Asleep} {
			g.Peak = g.Now
		}
	})
}

// String is the statistics as JSON, the same that expvar.Func makes of Stats.
func (s Stats) String() string { return stats.Text(s) }

// LogValue is the statistics as a group of numbers.
func (s Stats) LogValue() slog.Value { return stats.Group(s) }

// RangeStats is a consistent snapshot of one Range's memory usage, in bytes. Chunks is a number of them,
// and Hits to Reclaimed are as in Counts.
type RangeStats struct {
	Reserved    uint64 `json:"reserved"`
	Committed   uint64 `json:"committed"` // all that is mapped, retiring included
	Used        uint64 `json:"used"`      // Len
	Retiring    uint64 `json:"retiring"`
	Quarantined uint64 `json:"quarantined"`
	Chunks      int    `json:"chunks"`

	PeakCommitted uint64 `json:"peak_committed"`
	PeakUsed      uint64 `json:"peak_used"`

	Hits              uint64 `json:"hits"` // as in Counts, and so are the following
	Growths           uint64 `json:"growths"`
	GrowAheads        uint64 `json:"grow_aheads"`
	GrowAheadFailures uint64 `json:"grow_ahead_failures"`
	Reclaimed         uint64 `json:"reclaimed"`

	Asleep bool `json:"asleep"`
}

// String is the statistics as JSON, the same that expvar.Func makes of RangeStats.
func (s RangeStats) String() string { return stats.Text(s) }

// LogValue is the statistics as a group of numbers.
func (s RangeStats) LogValue() slog.Value { return stats.Group(s) }

// Report is a device's statistics with what is open in it.
type Report struct {
	Device string       `json:"device"`
	Stats  Stats        `json:"stats"`
	Open   []OpenObject `json:"open"`
}

// OpenObject is one thing that is open.
type OpenObject struct {
	Kind   string    `json:"kind"`            // "range", "reservation", "chunk", "stream", "event", "grant", "legacy peer access", by KeepOpen, or by ReserveOptions.Owner
	Name   string    `json:"name,omitempty"`  // RangeOptions.Name, pool.Options.Name or ReserveOptions.Name
	Made   string    `json:"made"`            // file:line of the program
	Stack  []string  `json:"stack,omitempty"` // the program's lines, the innermost first, at most 4: Made, who called that, ...
	Since  time.Time `json:"since"`
	Addr   Ptr       `json:"addr,omitempty"`
	Size   uint64    `json:"size,omitempty"`
	Chunks []Mapping `json:"chunks,omitempty"` // of a range or a reservation
}

// Mapping describes one mapped chunk, whatever its state, for a Report. Segment gives access to the
// memory.
type Mapping struct {
	Off         uint64 `json:"off"`
	Size        uint64 `json:"size"`
	State       string `json:"state"`                 // "mapped", "accessible", "retiring", "unmapping"
	Quarantined string `json:"quarantined,omitempty"` // the undo that failed there
	Imported    bool   `json:"imported,omitempty"`    // the memory is another process's or Device's
}

// Report lists what is open, where it was made, and what is mapped in it. It
// makes no driver call.
func (d *Device) Report() Report {
	if d == nil || d.state == nil {
		return Report{}
	}
	rep := Report{Device: d.name, Stats: d.Stats()}
	// Each object is asked without d.mu: some take locks that come before it.
	d.mu.Lock()
	things, opened := make([]any, 0, len(d.unclosed)), make([]openedAt, 0, len(d.unclosed))
	for thing, o := range d.unclosed {
		things, opened = append(things, thing), append(opened, o)
	}
	d.mu.Unlock()
	lines := map[frames.Callers]frames.MadeAt{} // many are made by the same line, and finding it takes time
	order := make([]openAt, len(things))
	for i, thing := range things {
		if _, ok := lines[opened[i].made]; !ok {
			lines[opened[i].made] = opened[i].made.Lines()
		}
		order[i].i = i
		if t, ok := thing.(describer); ok {
			order[i].addr, order[i].size = t.where()
		}
	}
	slices.SortFunc(order, func(a, b openAt) int {
		if a.addr != b.addr {
			return cmp.Compare(a.addr, b.addr)
		}
		x, y := &opened[a.i], &opened[b.i]
		return cmp.Or(cmp.Compare(x.kind, y.kind), cmp.Compare(lines[x.made].Line, lines[y.made].Line))
	})
	rep.Open = make([]OpenObject, len(order))
	for i, at := range order {
		o := &opened[at.i]
		made := lines[o.made]
		rep.Open[i] = OpenObject{Kind: o.kind, Made: made.Line, Stack: made.Stack, Since: o.at, Addr: at.addr, Size: at.size}
		if r, ok := things[at.i].(*Reservation); ok {
			rep.Open[i].Name, rep.Open[i].Chunks = r.name, r.mappings()
		}
	}
	return rep
}

// openAt is what Report sorts: moving it costs less than moving an OpenObject.
type openAt struct {
	addr Ptr
	size uint64
	i    int
}

// describer is an open object that can say more of itself than its kind.
type describer interface {
	describe(kind string) string
	where() (p Ptr, size uint64)
}

// describe is the kind, and more for what can say more.
func describe(thing any, kind string) string {
	if t, ok := thing.(describer); ok {
		return t.describe(kind)
	}
	return kind
}

func (r *Reservation) describe(kind string) string {
	return fmt.Sprintf("%s at %v of %s", withName(kind, r.name), r.ptr, errtext.Size(r.size))
}

func (r *Reservation) where() (p Ptr, size uint64) { return r.ptr, r.size }

// mappings lists the slots.
func (r *Reservation) mappings() (all []Mapping) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = make([]Mapping, 0, r.table.Len())
	for _, s := range r.table.All() {
		m := Mapping{Off: s.Off, Size: s.Size, State: s.State.String(), Imported: !s.Mem.Created}
		if s.Quarantined != nil {
			m.Quarantined = s.Quarantined.Error()
		}
		all = append(all, m)
	}
	return all
}
