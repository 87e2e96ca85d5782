package main

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
)

// progress prints which group is measured.
type progress struct {
	w       io.Writer
	n, of   int
	bar     *progressbar.ProgressBar // nil: lines
	started bool
}

// newProgress takes a value of --progress and the number of steps.
func newProgress(w io.Writer, how string, steps int) *progress {
	p := &progress{w: w, of: steps}
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
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(w), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish())
	}
	return p
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// begin prints that the next step begins. An error is ignored: the measurement is
// more important than its progress.
func (p *progress) begin(name string) {
	p.n++
	if p.bar == nil {
		_, _ = fmt.Fprintf(p.w, "[%d/%d] %s\n", p.n, p.of, name)
		return
	}
	if p.started {
		_ = p.bar.Add(1)
	}
	p.started = true
	p.bar.Describe(name)
}

func (p *progress) close() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
