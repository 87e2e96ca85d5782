package report

import "fmt"

// Floor is a rate that a case had to reach, by --at-least, in GB/s.
type Floor struct {
	Case  string   `json:"case"`
	Least float64  `json:"least"`
	Value *float64 `json:"value"` // the case's median; null if it did not pass
}

// Missed reports whether the case is slower, or has no figure.
func (f Floor) Missed() bool { return f.Value == nil || *f.Value < f.Least }

// floors is the table of what had to be reached.
func floors(r *Report) []Piece {
	g := newGrid("case with a floor")
	for _, f := range r.Run.AtLeast {
		g.setRow(f.Case, f, "least", "value")
		g.set(f.Case, "result", map[bool]string{true: "below its floor", false: "reached"}[f.Missed()])
	}
	return g.pieces("Floors, GB/s")
}

// pcieLane is what a lane carries one way, in GB/s, by the generation: the transfers a second of the
// PCI Express Base Specification, with its encoding (8b/10b, from generation 3 on 128b/130b, from 6 on
// FLITs of 242 in 256 bytes).
var pcieLane = map[uint64]float64{1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

// links is the table of the fastest copies over PCIe, as a share of what the link of each GPU carries.
func links(r *Report) []Piece {
	g := newGrid("device")
	for _, d := range r.Devices {
		s, end := d.State, d.StateEnd
		if s == nil || end == nil {
			continue
		}
		generation, width := most(s.PCIeGeneration, end.PCIeGeneration), most(s.PCIeWidth, end.PCIeWidth)
		carries, best := pcieLane[generation]*float64(width), 0.0
		for _, c := range r.Cases {
			way := c.Axes.text("direction")
			over := c.Axes.text("device") == d.Open && c.Axes.text("host") == "pinned" && (way == "h2d" || way == "d2h")
			if over && c.Status == Passed && c.Stats != nil && c.Unit == "GB/s" {
				best = max(best, c.Stats.Value)
			}
		}
		if best == 0 || best > carries { // a link that is idle may be slower than it was while it worked
			continue
		}
		g.set(d.Open, "link", fmt.Sprintf("Gen%d x%d", generation, width))
		g.set(d.Open, "possible link", fmt.Sprintf("Gen%d x%d", most(s.PCIeGenerationMax), most(s.PCIeWidthMax)))
		g.set(d.Open, "link rate", fmt.Sprintf("%.0f", carries))
		g.set(d.Open, "fastest copy", fourDigits(best))
		g.set(d.Open, "share", fmt.Sprintf("%.0f %%", 100*best/carries))
	}
	return g.pieces("Copies over PCIe, one way, GB/s")
}

// most is the largest of the numbers that are known, 0 if none is.
func most(list ...*uint64) (n uint64) {
	for _, x := range list {
		if x != nil {
			n = max(n, *x)
		}
	}
	return n
}
