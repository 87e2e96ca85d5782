package vmm

import (
	"cmp"
	"slices"
)

// Report lists what is open, where it was made, and what is mapped in it. It
// makes no driver call.
func (d *Device) Report() Report {
	if d == nil {
		return Report{}
	}
	rep := Report{Device: d.name, Stats: d.Stats(), Open: []Opened{}}
	d.mu.Lock()
	things := make(map[any]Opened, len(d.open))
	for thing, o := range d.open {
		things[thing] = Opened{Kind: o.kind, Made: o.where()}
	}
	d.mu.Unlock()
	for thing, o := range things {
		switch t := thing.(type) {
		case *Reservation:
			o.Addr, o.Size, o.Chunks = t.ptr, t.size, t.pieces()
		case *Chunk:
			o.Size = t.mem.size
		}
		rep.Open = append(rep.Open, o)
	}
	slices.SortFunc(rep.Open, func(a, b Opened) int {
		return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Made, b.Made))
	})
	return rep
}

// pieces copies the slots.
func (r *Reservation) pieces() []Piece {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Piece
	for _, s := range r.slots {
		p := Piece{Off: s.off, Size: s.size(), State: s.state.String()}
		if s.stuck != nil {
			p.Stuck = s.stuck.Error()
		}
		all = append(all, p)
	}
	return all
}
