package vmm

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// gauge is a number of bytes now and the most it has been. The lock is its
// meter's.
type gauge struct {
	mu        *sync.Mutex
	now, peak uint64
}

func (g *gauge) add(n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.peak = max(g.peak, g.now)
}

func (g *gauge) sub(n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now -= n
}

// move counts n bytes under another gauge of the same meter, in one step.
func (g *gauge) move(to *gauge, n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now -= n
	to.now += n
	to.peak = max(to.peak, to.now)
}

// meter is the books behind Stats. Its lock is a leaf.
type counters struct {
	mu sync.Mutex

	reserved, committed, used, cached, retiring, quarantined, asleep gauge
	counts                                                           Counts

	released atomic.Uint64 // bytes, ever
}

func (m *counters) gauges() []*gauge {
	return []*gauge{&m.reserved, &m.committed, &m.used, &m.cached, &m.retiring, &m.quarantined, &m.asleep}
}

func (m *counters) init() {
	for _, g := range m.gauges() {
		g.mu = &m.mu
	}
}

// committedNow is the committed bytes of this moment.
func (m *counters) committedNow() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.committed.now
}

// stuckNow is the stuck bytes of this moment.
func (m *counters) quarantinedNow() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.quarantined.now
}

func (m *counters) count(c *uint64, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*c += n
}

// Counts is how often things were done, from the start on.
type Counts struct {
	Creates           uint64 `json:"creates"`             // pieces of memory taken from the driver
	Releases          uint64 `json:"releases"`            // pieces given back to it
	Maps              uint64 `json:"maps"`                // pieces mapped
	Unmaps            uint64 `json:"unmaps"`              // pieces unmapped
	Hits              uint64 `json:"hits"`                // pieces that growth found kept
	Growths           uint64 `json:"growths"`             // growths that somebody waited for
	GrowAheads        uint64 `json:"grow_aheads"`         // growths ahead of need
	GrowAheadFailures uint64 `json:"grow_ahead_failures"` // growths ahead of need that got less than they wanted, or nothing
	Reclaimed         uint64 `json:"reclaimed"`           // bytes taken back while retiring
}

// Stats is what a device has, in bytes. All numbers are of one moment; reading
// them makes no driver call. It is an slog.LogValuer, and String is its JSON, as
// package expvar wants it. The JSON names stay.
type Stats struct {
	Reserved    uint64 `json:"reserved"`    // addresses
	Committed   uint64 `json:"committed"`   // physical memory, created or imported, kept and retiring included
	Used        uint64 `json:"used"`        // below Len of a Range that is awake
	Cached      uint64 `json:"cached"`      // kept for growth, see SetReleaseThreshold
	Retiring    uint64 `json:"retiring"`    // retiring: given up, its wait not over
	Quarantined uint64 `json:"quarantined"` // could not be undone or given back; Trim, growth out of memory and Close try again
	Asleep      uint64 `json:"asleep"`      // below Len of a Range that sleeps
	Pinned      uint64 `json:"pinned"`      // host memory for staging, of all Devices on this one

	PeakReserved  uint64 `json:"peak_reserved"`
	PeakCommitted uint64 `json:"peak_committed"`
	PeakUsed      uint64 `json:"peak_used"`
	PeakCached    uint64 `json:"peak_cached"`
	PeakRetiring  uint64 `json:"peak_retiring"`

	Counts

	// WorkTime is how long the device's goroutine has been at work.
	WorkTime time.Duration `json:"work_ns"`

	Limit            uint64 `json:"limit"`             // see SetLimit
	ReleaseThreshold uint64 `json:"release_threshold"` // see SetReleaseThreshold
	AddressLimit     uint64 `json:"address_limit"`     // see SetAddressLimit
}

// Stats reads the device's books.
func (d *Device) Stats() Stats {
	if d == nil {
		return Stats{}
	}
	process.addresses.Lock()
	addresses := process.limit
	process.addresses.Unlock()
	d.state.mu.Lock()
	limit := d.state.limit
	d.state.mu.Unlock()
	d.cache.mu.Lock()
	threshold := d.cache.threshold
	d.cache.mu.Unlock()
	var pinned uint64
	if o := d.state.open.Load(); o != nil {
		pinned = o.stage.pinned()
	}
	m := &d.counters
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{
		Reserved:         m.reserved.now,
		Committed:        m.committed.now,
		Used:             m.used.now,
		Cached:           m.cached.now,
		Retiring:         m.retiring.now,
		Quarantined:      m.quarantined.now,
		Asleep:           m.asleep.now,
		Pinned:           pinned,
		PeakReserved:     m.reserved.peak,
		PeakCommitted:    m.committed.peak,
		PeakUsed:         m.used.peak,
		PeakCached:       m.cached.peak,
		PeakRetiring:     m.retiring.peak,
		Counts:           m.counts,
		WorkTime:         time.Duration(d.worked.Load()),
		Limit:            limit,
		ReleaseThreshold: threshold,
		AddressLimit:     addresses,
	}
}

// ResetPeaks makes the high-water marks what there is now.
func (d *Device) ResetPeaks() {
	if d == nil {
		return
	}
	d.counters.mu.Lock()
	defer d.counters.mu.Unlock()
	for _, g := range d.counters.gauges() {
		g.peak = g.now
	}
}

// String is the statistics as JSON, which makes them an expvar.Var.
func (s Stats) String() string { return text(s) }

// LogValue is the statistics as a group of numbers.
func (s Stats) LogValue() slog.Value { return group(s) }

// RangeStats is what one Range has, in bytes. All numbers are of one moment.
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

// books is what a reservation counts for its Range. It is guarded by r.mu.
type rangeCounters struct{ RangeStats }

func (b *rangeCounters) addCommitted(n uint64) {
	b.Committed += n
	b.PeakCommitted = max(b.PeakCommitted, b.Committed)
}

func (b *rangeCounters) subCommitted(n uint64) { b.Committed -= n }

// note counts for the Range.
func (r *Reservation) count(c *uint64, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*c += n
}

// Stats reads the range's books.
func (g *Range) Stats() RangeStats {
	if g == nil {
		return RangeStats{}
	}
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	st := g.r.stats.RangeStats
	st.PeakUsed = max(g.peak.Load(), g.len.Load())
	st.Used, st.Chunks, st.Asleep = g.len.Load(), len(g.r.slots), g.r.phase.Load() == isAsleep
	if g.r.phase.Load() != isClosed {
		st.Reserved = g.r.size
	}
	return st
}

// ResetPeaks makes the high-water marks what there is now.
func (g *Range) ResetPeaks() {
	if g == nil {
		return
	}
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	g.r.stats.PeakCommitted = g.r.stats.Committed
	g.peak.Store(0)
}

// String is the statistics as JSON, which makes them an expvar.Var.
func (s RangeStats) String() string { return text(s) }

// LogValue is the statistics as a group of numbers.
func (s RangeStats) LogValue() slog.Value { return group(s) }

// text is JSON of numbers, which cannot fail.
func text(stats any) string {
	b, _ := json.Marshal(stats) //nolint:errchkjson // see above
	return string(b)
}

// group is numbers for slog under their JSON names.
func group(stats any) slog.Value { return slog.GroupValue(attrs(reflect.ValueOf(stats))...) }

func attrs(v reflect.Value) (all []slog.Attr) {
	for f, x := range v.Fields() {
		if f.Anonymous {
			all = append(all, attrs(x)...)
			continue
		}
		all = append(all, slog.Any(f.Tag.Get("json"), x.Interface()))
	}
	return all
}

// Report is a device's books with what is open in it.
type Report struct {
	Device string       `json:"device"`
	Stats  Stats        `json:"stats"`
	Open   []OpenObject `json:"open"`
}

// OpenObject is one thing that is open.
type OpenObject struct {
	Kind   string    `json:"kind"` // "range", "reservation", "chunk", "stream", "event", "grant", "legacy peer access"
	Made   string    `json:"made"` // file:line
	Addr   Ptr       `json:"addr,omitempty"`
	Size   uint64    `json:"size,omitempty"`
	Chunks []Mapping `json:"chunks,omitempty"` // of a range or a reservation
}

// Mapping is one chunk where it is mapped.
type Mapping struct {
	Off   uint64 `json:"off"`
	Size  uint64 `json:"size"`
	State string `json:"state"` // "mapped", "accessible", "retiring", "unmapping"
	Stuck string `json:"stuck,omitempty"`
}

// Report lists what is open, where it was made, and what is mapped in it. It
// makes no driver call.
func (d *Device) Report() Report {
	if d == nil {
		return Report{}
	}
	rep := Report{Device: d.name, Stats: d.Stats(), Open: []OpenObject{}}
	d.mu.Lock()
	things := make(map[any]OpenObject, len(d.open))
	for thing, o := range d.open {
		things[thing] = OpenObject{Kind: o.kind, Made: o.where()}
	}
	d.mu.Unlock()
	for thing, o := range things {
		switch t := thing.(type) {
		case *Reservation:
			o.Addr, o.Size, o.Chunks = t.ptr, t.size, t.mappings()
		case *Chunk:
			o.Size = t.mem.size
		case grantKey:
			o.Addr, o.Size = t.r.ptr, t.r.size
		}
		rep.Open = append(rep.Open, o)
	}
	slices.SortFunc(rep.Open, func(a, b OpenObject) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Made, b.Made))
	})
	return rep
}

// pieces copies the slots.
func (r *Reservation) mappings() []Mapping {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Mapping
	for _, s := range r.slots {
		p := Mapping{Off: s.off, Size: s.size(), State: s.state.String()}
		if s.quarantined != nil {
			p.Stuck = s.quarantined.Error()
		}
		all = append(all, p)
	}
	return all
}
