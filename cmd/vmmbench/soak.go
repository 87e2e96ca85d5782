package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// maxSoakSamples bounds what a soak keeps: 16 MB for each case.
const maxSoakSamples = 1 << 20

// checkSoak has --for set what it stands for: as many samples as fit that time, on memory that
// stays where it is.
func (m *measureFlags) checkSoak() error {
	switch {
	case m.soak < 0:
		return usageError{fmt.Errorf("--for %v: want more than 0", m.soak)}
	case m.soak == 0:
		return nil
	case m.set.Changed("samples") || m.set.Changed("max-time"):
		return usageError{errors.New("--for takes samples for that long: leave out --samples and --max-time")}
	}
	m.samples, m.maxTime, m.rounds = maxSoakSamples, m.soak, 1
	return nil
}

// describeSoak summarizes a case of a soak.
func describeSoak(c *report.Case) *report.Soak {
	slowest := slices.Index(c.Samples, c.Stats.Max)
	return &report.Soak{
		Seconds: c.At[len(c.At)-1],
		P50:     c.Stats.Median, P99: stat.Percentile(c.Samples, 0.99), P999: stat.Percentile(c.Samples, 0.999),
		Slowest: c.Stats.Max, SlowestAt: c.At[slowest],
	}
}
