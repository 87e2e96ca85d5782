package memmap

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/memtrace"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// SchemaVersion is the version of the data. It changes if the meaning of a field does.
const SchemaVersion = "memmap/1"

// Addr is an address or a handle; in JSON a text.
type Addr = memtrace.Addr

// Snapshot is what the map shows at one moment. All sizes are bytes. The numbers of one
// pool and of a Stats are of one moment each. Len, Asleep and Ahead of a range are, too; its chunks may be
// of a moment before.
type Snapshot struct {
	Schema  string    `json:"schema"` // SchemaVersion
	Seq     uint64    `json:"seq"`    // 1 for the first of a Map
	Time    time.Time `json:"time"`
	Title   string    `json:"title"`
	Devices []Device  `json:"devices"`
	Sharers []Sharer  `json:"sharers"` // those whose address is in no range or reservation of Devices

	// RangesTime is when ranges, pools, sharers, processes and what is open were read. The rest is read each
	// Options.Interval, also where reading thousands of ranges takes long.
	RangesTime time.Time `json:"ranges_time"`
}

// Device is one device.
type Device struct {
	Summary
	Ranges  []Range          `json:"ranges"` // by address
	Pools   []Pool           `json:"pools"`  // by name
	Events  []memtrace.Event `json:"events"` // the oldest first
	Samples Samples          `json:"samples"`
	Earlier Earlier          `json:"earlier"`
}

// Summary is a device without its parts.
type Summary struct {
	Name      string     `json:"name"`            // "cuda:0"
	Model     string     `json:"model"`           // "NVIDIA H100"
	Total     uint64     `json:"total"`           // memory of the device
	Free      uint64     `json:"free"`            // of it, for all processes
	Error     string     `json:"error,omitempty"` // why Total and Free are not known
	Stats     vmm.Stats  `json:"stats"`
	Created   uint64     `json:"created"` // by this process, in all Devices on this one: what SetLimit and a lease count
	Others    uint64     `json:"others"`  // taken of the device, and not by this program
	InPools   InPools    `json:"in_pools"`
	Unused    uint64     `json:"unused"`   // in Ranges beyond Len, or about to be mapped there: the rest of Stats.Committed
	Mapped    uint64     `json:"mapped"`   // in reservations that are no Range and no pool's, without what is imported
	Unmapped  uint64     `json:"unmapped"` // of open Chunks that were created here, those that are nowhere mapped
	Open      []OpenKind `json:"open"`
	Processes []Process  `json:"processes"`
}

// OpenKind is how many things of one kind are open.
type OpenKind struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// Range is a Range, or a reservation in which a program or a Pool maps chunks.
type Range struct {
	Addr        Addr      `json:"addr"`
	Size        uint64    `json:"size"`            // addresses
	Kind        string    `json:"kind"`            // as vmm.OpenObject has it
	Name        string    `json:"name,omitempty"`  // the program's, as vmm.OpenObject has it
	Made        string    `json:"made"`            // file:line
	Stack       []string  `json:"stack,omitempty"` // Made, who called that, and so on, as vmm.OpenObject has it
	Since       time.Time `json:"since"`
	Pool        string    `json:"pool,omitempty"`
	Len         uint64    `json:"len"`         // of a Range, also of one that sleeps
	Committed   uint64    `json:"committed"`   // all that is mapped
	Ahead       uint64    `json:"ahead"`       // of a Range: accessible beyond Len
	Imported    uint64    `json:"imported"`    // of it, other processes' and Devices' memory in use here
	Retiring    uint64    `json:"retiring"`    // given up; the work that may use it has not ended
	Quarantined uint64    `json:"quarantined"` // could not be undone
	Asleep      bool      `json:"asleep"`
	Chunks      []Run     `json:"chunks"`
	Sharers     []Sharer  `json:"sharers,omitempty"`
}

// Run is chunks of one size and state that lie side by side.
type Run struct {
	Off   uint64 `json:"off"`
	Size  uint64 `json:"size"` // of one chunk
	Count uint64 `json:"count"`
	State string `json:"state"` // as vmm.Mapping has it, or "quarantined"
}

// Pool is one pool.
type Pool struct {
	Name string `json:"name"`
	Addr Addr   `json:"addr"` // of its reservation
	Size uint64 `json:"size"` // addresses
	pool.Stats
	Idle    uint64       `json:"idle"` // free memory that any stream may have at once
	Chunks  []PoolChunk  `json:"chunks"`
	Streams []PoolStream `json:"streams"`
}

// PoolChunk is a pool.ChunkUsage.
type PoolChunk struct {
	Off     uint64 `json:"off"` // in the reservation
	Size    uint64 `json:"size"`
	Used    uint64 `json:"used"`
	InSlabs uint64 `json:"in_slabs"`
	Pending uint64 `json:"pending"`
	Idle    uint64 `json:"idle"`
	Longest uint64 `json:"longest"`
}

// PoolStream is a pool.StreamUsage.
type PoolStream struct {
	Stream  Addr              `json:"stream"`
	Pending uint64            `json:"pending"`
	InSlabs uint64            `json:"in_slabs"`
	Classes []pool.ClassUsage `json:"classes"`
}

// snapshot reads everything. m.mu is held.
func (m *Map) snapshot(now time.Time) *Snapshot {
	s := &Snapshot{Schema: SchemaVersion, Seq: m.seq + 1, Time: now, Title: m.o.Title, Devices: []Device{}, Sharers: []Sharer{}, RangesTime: now}
	var pools map[string]*pool.Pool
	if m.o.Pools != nil {
		pools = m.o.Pools()
	}
	for i, d := range m.o.Devices {
		x := m.device(d, pools)
		m.samples[i].begin(d)
		m.samples[i].add(now, sampleOf(&x.Summary))
		x.Samples, x.Earlier = m.samples[i].Samples, m.samples[i].earlier
		m.events[i].update(d)
		x.Events = m.events[i]
		s.Devices = append(s.Devices, x)
	}
	if m.o.Sharers != nil {
		s.join(m.o.Sharers())
	}
	return s
}

// lightSnapshot is the last snapshot; only statistics, samples and events are read anew.
func (m *Map) lightSnapshot(now time.Time) *Snapshot {
	s := *m.now
	s.Seq, s.Time = m.seq+1, now
	s.Devices = slices.Clone(s.Devices)
	pools := m.inPools()
	for i, d := range m.o.Devices {
		x := &s.Devices[i]
		x.readMemory(d)
		x.setPools(pools[i])
		m.samples[i].add(now, sampleOf(&x.Summary))
		x.Samples = m.samples[i].Samples
		m.events[i].update(d)
		x.Events = m.events[i]
	}
	return &s
}

// summary reads what a sample needs of a device.
func summary(d *vmm.Device) Summary {
	x := Summary{Name: d.String(), Model: d.Info().Name, Open: []OpenKind{}, Processes: []Process{}}
	x.readMemory(d)
	return x
}

// readMemory reads what changes when memory is made or released. The device's free memory and the
// program's are of different moments. Memory that is about to be made, or was just released, counts as
// the program's, so that Others is not too much.
func (x *Summary) readMemory(d *vmm.Device) {
	x.Error, x.Others = "", math.MaxUint64
	for range 4 {
		before, changes := inside.VMM.Created(d)
		var err error
		x.Free, x.Total, err = d.MemInfo()
		x.Stats = d.Stats()
		if err != nil {
			x.Error, x.Others = err.Error(), 0
			return
		}
		after, now := inside.VMM.Created(d)
		x.Created = after
		taken := x.Total - x.Free
		x.Others = min(x.Others, taken-min(taken, max(before, after, x.Stats.Committed)))
		if now == changes {
			return
		}
	}
}

func (m *Map) device(d *vmm.Device, pools map[string]*pool.Pool) Device {
	rep := d.Report()
	x := Device{Summary: summary(d), Ranges: make([]Range, 0, len(rep.Open)), Pools: []Pool{}}
	if m.o.Processes != nil {
		x.Processes = append(x.Processes, m.o.Processes(d)...)
	}
	names := map[Addr]string{}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		p := pools[name]
		if p.Device() != d {
			continue
		}
		y, err := readPool(name, p)
		if err != nil { // it is none
			continue
		}
		names[y.Addr] = name
		x.Pools = append(x.Pools, y)
	}
	counts := map[string]int{}
	chunks := 0
	for i := range rep.Open {
		chunks += len(rep.Open[i].Chunks)
	}
	runs := make([]Run, 0, chunks) // of all ranges, one after the other
	for i := range rep.Open {
		o := &rep.Open[i]
		counts[o.Kind]++
		if o.Addr == 0 || o.Chunks == nil {
			continue
		}
		var r Range
		r, runs = readRange(d, o, runs)
		r.Pool = names[r.Addr]
		if o.Kind != "range" && r.Pool == "" {
			x.Mapped += r.Committed - r.Imported - r.Retiring - r.Quarantined
		}
		x.Ranges = append(x.Ranges, r)
	}
	x.Unmapped = inside.VMM.Unmapped(d)
	x.setPools(x.inPools())
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		x.Open = append(x.Open, OpenKind{kind, counts[kind]})
	}
	return x
}

// readRange is a range or a reservation of a Report, with what the Range itself says. Its runs are
// appended to those of others.
func readRange(d *vmm.Device, o *vmm.OpenObject, runs []Run) (Range, []Run) {
	r := Range{Addr: Addr(o.Addr), Size: o.Size, Kind: o.Kind, Name: o.Name, Made: o.Made, Stack: o.Stack, Since: o.Since}
	first := len(runs)
	for i := range o.Chunks {
		c := &o.Chunks[i]
		state := c.State
		if c.Quarantined != "" {
			state = "quarantined"
		}
		switch {
		case state == "quarantined":
			r.Quarantined += c.Size
		case state == "retiring", state == "unmapping":
			r.Retiring += c.Size
		case c.Imported:
			r.Imported += c.Size
		}
		r.Committed += c.Size
		if n := len(runs); n > first {
			if last := &runs[n-1]; last.State == state && last.Size == c.Size && last.Off+last.Size*last.Count == c.Off {
				last.Count++
				continue
			}
		}
		runs = append(runs, Run{c.Off, c.Size, 1, state})
	}
	r.Chunks = runs[first:len(runs):len(runs)]
	if g, _, ok := d.LookupRange(o.Addr); ok {
		st := g.Stats()
		r.Len, r.Asleep = st.Used, st.Asleep
		if free := st.Committed - st.Retiring - st.Quarantined; !st.Asleep && free > st.Used {
			r.Ahead = free - st.Used
		}
	}
	return r, runs
}

func readPool(name string, p *pool.Pool) (Pool, error) {
	u, err := p.Usage()
	if err != nil {
		return Pool{}, err
	}
	base := p.Reservation().Ptr()
	x := Pool{
		Name: name, Addr: Addr(base), Size: p.Reservation().Size(), Stats: u.Stats, Idle: u.Idle,
		Chunks: make([]PoolChunk, 0, len(u.Chunks)), Streams: make([]PoolStream, 0, len(u.Streams)),
	}
	for _, c := range u.Chunks {
		x.Chunks = append(x.Chunks, PoolChunk{uint64(c.Addr - base), c.Size, c.Used, c.InSlabs, c.Pending, c.Idle, c.Longest})
	}
	for _, s := range u.Streams {
		x.Streams = append(x.Streams, PoolStream{Addr(s.Stream), s.Pending, s.InSlabs, s.Classes})
	}
	return x, nil
}

// InPools is what pools have of a device.
type InPools struct {
	Reserved uint64 `json:"reserved"`
	Used     uint64 `json:"used"` // of it, what blocks have
}

func (d *Device) inPools() (n InPools) {
	for i := range d.Pools {
		n.Reserved += d.Pools[i].Reserved
		n.Used += d.Pools[i].Used
	}
	return n
}

// setPools computes Unused, too. The parts of Stats are of one moment, so Unused is never memory that does
// not exist.
func (x *Summary) setPools(pools InPools) {
	st := &x.Stats
	x.InPools = pools
	known := st.Used + st.Cached + st.Retiring + st.Quarantined + pools.Reserved + x.Mapped + x.Unmapped
	x.Unused = st.Committed - min(st.Committed, known)
}

// join puts each sharer to the range that it maps.
func (s *Snapshot) join(all []Sharer) {
	for _, x := range all {
		r := s.find(x.Addr)
		if r == nil {
			s.Sharers = append(s.Sharers, x)
			continue
		}
		r.Sharers = append(r.Sharers, x)
	}
}

// find is the range that an address lies in, or nil.
func (s *Snapshot) find(at Addr) *Range {
	for i := range s.Devices {
		all := s.Devices[i].Ranges
		j, ok := slices.BinarySearchFunc(all, at, func(r Range, at Addr) int { return cmp.Compare(r.Addr, at) })
		if !ok {
			j--
		}
		if j >= 0 && at-all[j].Addr < Addr(all[j].Size) {
			return &all[j]
		}
	}
	return nil
}
