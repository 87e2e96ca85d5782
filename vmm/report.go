package vmm

import (
	"cmp"
	"slices"
)

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
			o.Addr, o.Size, o.Chunks = t.ptr, t.size, t.pieces()
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
func (r *Reservation) pieces() []Mapping {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Mapping
	for _, s := range r.slots {
		p := Mapping{Off: s.off, Size: s.size(), State: s.state.String()}
		if s.stuck != nil {
			p.Stuck = s.stuck.Error()
		}
		all = append(all, p)
	}
	return all
}
