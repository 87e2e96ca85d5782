package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
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

// soaked has the groups take as many samples as --for allows, whatever they would take
// otherwise.
func (m *measureFlags) soaked(groups []group) {
	for i := range groups {
		if m.soak > 0 {
			groups[i].samples = math.MaxInt
		}
	}
}

// describeSoak summarizes a soak.
func describeSoak(samples []measure.Sample, ns []float64) *report.Soak {
	s := &report.Soak{P50: stat.Quantile(ns, 0.5), P99: stat.Percentile(ns, 0.99), P999: stat.Percentile(ns, 0.999)}
	for _, x := range samples {
		if x.NS >= s.Slowest {
			s.Slowest, s.SlowestAt = x.NS, x.At.Seconds()
		}
	}
	s.Seconds = samples[len(samples)-1].At.Seconds()
	return s
}
