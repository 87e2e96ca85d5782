package main

import (
	"fmt"
	"io"
)

// progress prints a line for each group that begins: "3 of 6" and its name.
type progress struct {
	w      io.Writer
	n, all int // groups that have begun, and that there are
}

// newProgress takes a value of --progress and the number of groups.
func newProgress(w io.Writer, how string, all int) *progress {
	if how == "off" {
		w = io.Discard
	}
	return &progress{w: w, all: all}
}

// begin prints that the next group begins. An error is ignored: the measurement is
// more important than its progress.
func (p *progress) begin(name string) {
	p.n++
	_, _ = fmt.Fprintf(p.w, "%d of %d: %s\n", p.n, p.all, name)
}
