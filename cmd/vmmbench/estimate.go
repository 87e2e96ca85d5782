package main

import (
	"runtime"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// The speeds that an estimate begins with, in bytes a nanosecond. progress.left corrects
// it by the groups that have ended.
const (
	hostRate   = 4.0    // copies of the host's memory
	faultRate  = 1.2    // first writes to the host's memory, with a page fault for each page
	linkRate   = 40.0   // between pinned memory and a GPU
	slowRate   = 10.0   // between pageable memory and a GPU
	deviceRate = 1500.0 // within a GPU
	callTime   = 300 * time.Microsecond
)

// transferTime is the time for bytes at a rate.
func transferTime(bytes uint64, rate float64) time.Duration {
	return time.Duration(float64(bytes) / rate)
}

// patternRate returns how many bytes a nanosecond this machine fills or checks.
func patternRate() float64 {
	block := make([]byte, 1<<20)
	begun := time.Now()
	verify.Pattern{Seed: 1}.Fill(block, 0)
	one := float64(len(block)) / float64(max(time.Since(begun), 1))
	return min(one*float64(runtime.GOMAXPROCS(0)), slowRate) // the data pass through pageable memory
}

// estimate is how long a group probably takes: its samples, or --max-time if that is
// less, and filling and checking, which --max-time does not bound.
func (g group) estimate(m *measureFlags, pattern float64) time.Duration {
	var block time.Duration // one sample of each task
	data := g.fill
	if g.deviceChecks {
		pattern = deviceRate
	}
	for _, t := range g.tasks {
		block += max(t.sample, m.minTime)
		if m.verify == verify.Full && !g.edges {
			data += t.check
		}
	}
	samples := min(time.Duration(min(m.samples, g.samples))*block, m.maxTime)
	samples = max(samples, time.Duration(g.minSamples)*block)
	warm := max(time.Duration(len(g.tasks))*m.settings.warmTime, block)
	if m.verify != verify.Off {
		samples += block // the one that is checked
	}
	return warm + samples + transferTime(data, pattern)
}

// estimates is the estimate of each group.
func estimates(groups []group, m *measureFlags) []time.Duration {
	pattern := patternRate()
	list := make([]time.Duration, len(groups))
	for i, g := range groups {
		list[i] = g.estimate(m, pattern)
	}
	return list
}
