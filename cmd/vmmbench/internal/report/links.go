package report

import (
	"fmt"
	"slices"
)

// Floor is a rate that a case had to reach, by --at-least, in GB/s.
type Floor struct {
	Case  string   `json:"case"`
	Least float64  `json:"least"`
	Value *float64 `json:"value"` // the case's median; null if it did not pass
}

// Missed reports whether the case is slower, or has no figure.
func (f Floor) Missed() bool { return f.Value == nil || *f.Value < f.Least }

// floorsFound says which floors were missed.
func floorsFound(r *Report) (list []string) {
	for _, f := range r.Run.AtLeast {
		has := "did not pass"
		if f.Value != nil {
			has = "has " + fourDigits(*f.Value) + " GB/s"
		}
		if f.Missed() {
			list = append(list, fmt.Sprintf("Below its floor: %s %s; at least %s GB/s are wanted.", f.Case, has, fourDigits(f.Least)))
		}
	}
	if n := len(r.Run.AtLeast); n > 0 && len(list) == 0 {
		list = append(list, counted(n, "case")+" with a floor: none is below it.")
	}
	return list
}

// pcieLane is what a lane carries one way, in GB/s, by the generation: the transfers a second of the
// PCI Express Base Specification, with its encoding (8b/10b, from generation 3 on 128b/130b, from 6 on
// FLITs of 242 in 256 bytes).
var pcieLane = map[uint64]float64{1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

// nvlinkRate is what an NVLink carries one way, in GB/s, by the architecture of the GPU, as NVIDIA's
// data sheets have it: 600 GB/s both ways of 12 links on A100, 900 of 18 on H100, 1,800 of 18 on B200.
var nvlinkRate = map[string]float64{"sm_60": 20, "sm_70": 25, "sm_80": 25, "sm_90": 25, "sm_100": 50, "sm_103": 50}

// linksFound has the rate of the fastest copy as a share of its link's.
func linksFound(r *Report) (list []string) {
	for _, d := range r.Devices {
		list = append(list, hostLink(r, d)...)
	}
	return append(list, nvlinks(r)...)
}

// nvlinks has a sentence for all pairs of devices with the same number and rate of NVLinks.
func nvlinks(r *Report) (list []string) {
	rate := map[string]float64{}
	for _, d := range r.Devices {
		rate[d.Open] = nvlinkRate[string(d.Arch)]
	}
	linked := without(r.Topology, func(l Link) bool { return l.NVLinks == nil || *l.NVLinks == 0 || rate[l.From] == 0 })
	most := func(l Link) float64 { return float64(*l.NVLinks) * rate[l.From] }
	for _, g := range GroupBy(linked, func(l Link) string { return fmt.Sprintf("%d NVLinks (%.0f GB/s)", *l.NVLinks, most(l)) }) {
		var rates []float64
		for _, l := range g.Of {
			best := fastest(r, func(a Axes) bool {
				return a.text(axisFrom) == l.From && a.text(axisTo) == l.To && a.text("direction") != "both" && a.text(axisMem) != "none" // which goes through the host
			})
			if best > 0 {
				rates = append(rates, best)
			}
		}
		if len(rates) == 0 {
			continue
		}
		slices.Sort(rates)
		share := func(x float64) string { return fmt.Sprintf("%.0f", 100*x/most(g.Of[0])) }
		list = append(list, fmt.Sprintf("Between devices, one way: %s GB/s, %s %% of %s.", span(rates, fourDigits), span(rates, share), g.Key))
	}
	return list
}

// span prints the first and the last of sorted numbers, once if they look alike.
func span(list []float64, print func(float64) string) string {
	low, high := print(list[0]), print(list[len(list)-1])
	if low == high {
		return high
	}
	return low + " to " + high
}

// hostLink is the sentence for the link between a GPU and the host. It also names the best link that the
// GPU could have.
func hostLink(r *Report, d Device) []string {
	if d.State == nil || d.StateEnd == nil {
		return nil
	}
	// A GPU without work may lower its link: the better of the two moments counts.
	better := func(of func(*DeviceState) *uint64) uint64 { return max(orZero(of(d.State)), orZero(of(d.StateEnd))) }
	generation := better(func(s *DeviceState) *uint64 { return s.PCIeGeneration })
	width := better(func(s *DeviceState) *uint64 { return s.PCIeWidth })
	most := pcieLane[generation] * float64(width)
	best := fastest(r, func(a Axes) bool {
		way := a.text("direction")
		return a.text("device") == d.Open && a.text("host") == "pinned" && (way == "h2d" || way == "d2h")
	})
	if best == 0 || best > most { // it was faster while it worked than at either moment
		return nil
	}
	s := fmt.Sprintf("Between the host and %s: up to %s GB/s, %.0f %% of PCIe Gen%d x%d (%.0f GB/s)", d.Open, fourDigits(best), 100*best/most, generation, width, most)
	g, w := orZero(d.State.PCIeGenerationMax), orZero(d.State.PCIeWidthMax)
	if g > 0 && w > 0 && (generation < g || width < w) {
		s += fmt.Sprintf("; the GPU could do Gen%d x%d", g, w)
	}
	return []string{s + "."}
}

func orZero(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

// fastest is the highest bandwidth of the cases with such axes, in GB/s.
func fastest(r *Report, is func(Axes) bool) (best float64) {
	for _, c := range r.Cases {
		if c.Status == Passed && c.Stats != nil && c.Unit == "GB/s" && is(c.Axes) {
			best = max(best, c.Stats.Value)
		}
	}
	return best
}
