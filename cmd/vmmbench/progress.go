package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress prints which group is measured, and about how long the rest takes.
type progress struct {
	w         io.Writer
	estimates []time.Duration // of each group
	begun     time.Time
	n         int                      // groups that have begun
	bar       *progressbar.ProgressBar // nil: lines
	quit      chan struct{}            // ends the bar's goroutine
	ended     chan struct{}
}

// newProgress takes a value of --progress and the estimate of each group.
func newProgress(w io.Writer, how string, estimates []time.Duration) *progress {
	p := &progress{w: w, estimates: estimates, begun: time.Now()}
	if how == "auto" {
		how = "plain"
		if f, ok := w.(*os.File); ok && isTerminal(f) {
			how = "bar"
		}
	}
	switch how {
	case "off":
		p.w = io.Discard
	case "bar":
		p.bar = progressbar.NewOptions64(int64(sum(estimates)), progressbar.OptionSetWriter(w), progressbar.OptionSetElapsedTime(false),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetWidth(20), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(tick/2))
	}
	return p
}

// tick is how often the bar moves.
const tick = 200 * time.Millisecond

func sum(list []time.Duration) time.Duration {
	var all time.Duration
	for _, d := range list {
		all += d
	}
	return all
}

// left is how long the groups from the i-th on take, by their estimates and by how long
// the groups before took.
func (p *progress) left(i int) time.Duration {
	done, rest := sum(p.estimates[:i]), sum(p.estimates[i:])
	if done > 0 {
		rest = time.Duration(float64(rest) * float64(time.Since(p.begun)) / float64(done))
	}
	return rest
}

// about prints a time for people, in whole seconds.
func about(d time.Duration) string {
	if d < time.Second {
		return "less than 1s"
	}
	return "about " + d.Round(time.Second).String()
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// begin prints that the next group begins. An error is ignored: the measurement is
// more important than its progress.
func (p *progress) begin(name string) {
	p.stopBar()
	i := p.n
	p.n++
	if p.bar == nil {
		_, _ = fmt.Fprintf(p.w, "[%d/%d] %s (%s left)\n", p.n, len(p.estimates), name, about(p.left(i)))
		return
	}
	p.quit, p.ended = make(chan struct{}), make(chan struct{})
	go p.moveBar(i, name, p.quit, p.ended)
}

// moveBar moves the bar while the i-th group is measured, up to its estimate.
func (p *progress) moveBar(i int, name string, quit <-chan struct{}, ended chan<- struct{}) {
	defer close(ended)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	done, begun, left := sum(p.estimates[:i]), time.Now(), p.left(i)
	for {
		p.bar.Describe(fmt.Sprintf("[%d/%d] %s, %s left", i+1, len(p.estimates), name, about(left-time.Since(begun))))
		_ = p.bar.Set64(int64(done + min(time.Since(begun), p.estimates[i])))
		select {
		case <-quit:
			return
		case <-ticker.C:
		}
	}
}

// stopBar waits for moveBar, if it runs.
func (p *progress) stopBar() {
	if p.quit == nil {
		return
	}
	close(p.quit)
	<-p.ended
	p.quit = nil
}

func (p *progress) close() {
	p.stopBar()
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
