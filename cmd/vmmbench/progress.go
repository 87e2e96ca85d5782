package main

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
)

// progress tells people what is going on.
type progress struct {
	w       io.Writer
	n, of   int
	bar     *progressbar.ProgressBar // nil: lines
	started bool
}

// newProgress takes one of the words of --progress and the number of steps.
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

// begin says that the next step begins. Progress is not worth an error.
func (p *progress) begin(name string) {
	p.n++
	if p.bar == nil {
		fmt.Fprintf(p.w, "[%d/%d] %s\n", p.n, p.of, name)
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
