package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
)

// progress prints how many groups of all are under way or done, and about how long the rest
// takes: "3 of 6, 8 s left", with the group's name.
type progress struct {
	w                 io.Writer
	estimates         []time.Duration // of each group
	begun, groupBegun time.Time
	n                 int    // groups that have begun
	anew              bool   // the line is written anew, as on a terminal
	stop              func() // waits for the goroutine that does so
}

// newProgress takes a value of --progress and the estimate of each group.
func newProgress(w io.Writer, how string, estimates []time.Duration) *progress {
	if how == "off" {
		w = io.Discard
	}
	f, ok := w.(*os.File)
	return &progress{
		w: w, estimates: estimates, begun: time.Now(), stop: func() {},
		anew: how == "line" || how == "auto" && ok && isTerminal(f),
	}
}

// tick is how often a line is written anew.
const tick = time.Second

// columns is how long a line may be that is written anew: one that a terminal wraps cannot.
const columns = 79

func sum(list []time.Duration) time.Duration {
	var all time.Duration
	for _, d := range list {
		all += d
	}
	return all
}

// left is how long the group under way and those after it take, by their estimates and by how
// long the groups before took. While the group takes longer than estimated, it is what the
// others take.
func (p *progress) left(now time.Time) time.Duration {
	i, scale := p.n-1, 1.0
	if done := sum(p.estimates[:i]); done > 0 {
		scale = float64(p.groupBegun.Sub(p.begun)) / float64(done)
	}
	scaled := func(d time.Duration) time.Duration { return time.Duration(scale * float64(d)) }
	return max(scaled(p.estimates[i])-now.Sub(p.groupBegun), 0) + scaled(sum(p.estimates[i+1:]))
}

// seconds prints a time for people.
func seconds(d time.Duration) string {
	switch {
	case d < time.Second:
		return "under 1 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// begin prints that the next group begins. An error is ignored: the measurement is
// more important than its progress.
func (p *progress) begin(name string) {
	p.stop()
	p.n++
	p.groupBegun = time.Now()
	if !p.anew {
		_, _ = fmt.Fprintln(p.w, p.line(name, p.groupBegun))
		return
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			_, _ = fmt.Fprintf(p.w, clearLine+"%.*s", columns, p.line(name, time.Now()))
			select {
			case <-quit:
				return
			case <-ticker.C:
			}
		}
	}()
	p.stop = func() {
		close(quit)
		<-ended
		_, _ = fmt.Fprint(p.w, clearLine)
		p.stop = func() {}
	}
}

// clearLine empties the line of a terminal.
const clearLine = "\r\x1b[K"

func (p *progress) line(name string, now time.Time) string {
	return fmt.Sprintf("%d of %d, %s left: %s", p.n, len(p.estimates), seconds(p.left(now)), name)
}

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
