package report

import (
	"cmp"
	"fmt"
	"slices"
)

// pcieLane is what a lane carries one way, in GB/s, by the generation: the transfers a second of the
// PCI Express Base Specification, with its encoding (8b/10b, from generation 3 on 128b/130b, from 6 on
// FLITs of 242 in 256 bytes).
var pcieLane = map[uint64]float64{1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

// nvlinkRate is what an NVLink carries one way, in GB/s, by the architecture of the GPU, as NVIDIA's
// data sheets have it: 600 GB/s both ways of 12 links on A100, 900 of 18 on H100, 1,800 of 18 on B200.
var nvlinkRate = map[string]float64{"sm_60": 20, "sm_70": 25, "sm_80": 25, "sm_90": 25, "sm_100": 50, "sm_103": 50}

// link is a link that copies went over, one way, in GB/s.
type link struct {
	kind       string
	most, best float64
}

// linksFound has, for each kind of link, the rates of the fastest copies over them, as a share of
// what they carry.
func linksFound(r *Report) (list []string) {
	arch := map[string]string{}
	var links []link
	for _, d := range r.Devices {
		arch[d.Open] = string(d.Arch)
		kind, most := pcie(d)
		links = append(links, link{kind, most, fastest(r, func(a Axes) bool {
			way := a.text("direction")
			return a.text("device") == d.Open && a.text("host") == "pinned" && (way == "h2d" || way == "d2h")
		})})
	}
	for _, l := range r.Topology {
		if l.NVLinks == nil {
			continue
		}
		most := float64(*l.NVLinks) * nvlinkRate[arch[l.From]]
		links = append(links, link{fmt.Sprintf("%d NVLinks", *l.NVLinks), most, fastest(r, func(a Axes) bool {
			direct := a.text("direction") != "both" && a.text(axisMem) != "none" // which goes through the host
			return direct && a.text(axisFrom) == l.From && a.text(axisTo) == l.To
		})})
	}
	// One that is idle may be slower than it was while it worked.
	links = without(links, func(l link) bool { return l.best == 0 || l.best > l.most })
	for _, g := range GroupBy(links, func(l link) string { return fmt.Sprintf("%s (%.0f GB/s)", l.kind, l.most) }) {
		slices.SortFunc(g.Of, func(a, b link) int { return cmp.Compare(a.best, b.best) })
		span := func(print func(link) string) string {
			if low, high := print(g.Of[0]), print(g.Of[len(g.Of)-1]); low != high {
				return low + " to " + high
			}
			return print(g.Of[0])
		}
		rates := span(func(l link) string { return fourDigits(l.best) })
		shares := span(func(l link) string { return fmt.Sprintf("%.0f", 100*l.best/l.most) })
		list = append(list, fmt.Sprintf("One way over %s: %s GB/s, %s %%.", g.Key, rates, shares))
	}
	return list
}

// pcie is the link of a GPU to the host, the best that it was, with the best that it could be.
func pcie(d Device) (kind string, most float64) {
	s, end := d.State, d.StateEnd
	if s == nil || end == nil {
		return "", 0
	}
	best := func(a, b *uint64) uint64 {
		if a == nil || b == nil {
			return *cmp.Or(a, b, new(uint64))
		}
		return max(*a, *b)
	}
	generation, width := best(s.PCIeGeneration, end.PCIeGeneration), best(s.PCIeWidth, end.PCIeWidth)
	kind = fmt.Sprintf("PCIe Gen%d x%d", generation, width)
	if g, w := best(s.PCIeGenerationMax, nil), best(s.PCIeWidthMax, nil); generation < g || width < w {
		kind += fmt.Sprintf(", where the GPU could do Gen%d x%d", g, w)
	}
	return kind, pcieLane[generation] * float64(width)
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
