package main

import (
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// hint is what to do after a run whose results are noisy, empty after others.
func (m *measureFlags) hint(r *report.Report) string {
	noisy, all := 0, len(r.Comparisons)
	for _, c := range r.Comparisons {
		if c.Verdict == stat.TooNoisy {
			noisy++
		}
	}
	what := "verdicts"
	if all == 0 {
		what, all = "cases", len(r.Cases)
		for _, c := range r.Cases {
			if slices.Contains(c.Flags, "noisy") || slices.Contains(c.Flags, "drift") {
				noisy++
			}
		}
	}
	if noisy == 0 {
		return ""
	}
	pin := "keep to CPUs near the GPU (--numa, --cpus), "
	if m.cpus != "" || m.node >= 0 {
		pin = ""
	}
	more := ""
	if m.soak == 0 {
		more = fmt.Sprintf(", or take more samples (--samples %d --max-time %v)", 4*m.samples, 4*m.maxTime)
	}
	return fmt.Sprintf("noisy: %d of %d %s: %send other work on the machine and the GPU%s", noisy, all, what, pin, more)
}
