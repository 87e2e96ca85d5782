package main

import (
	"fmt"
	"io"
	"os"
)

// progress prints how many groups of all are under way or done, as "3 of 6", with the group's name.
type progress struct {
	w      io.Writer
	n, all int  // groups that have begun, and that there are
	anew   bool // the line is written anew, as on a terminal
}

// newProgress takes a value of --progress and the number of groups.
func newProgress(w io.Writer, how string, all int) *progress {
	if how == "off" {
		w = io.Discard
	}
	f, ok := w.(descriptor)
	return &progress{w: w, all: all, anew: how == "line" || how == "auto" && ok && isTerminal(f)}
}

// columns is how long a line may be that is written anew: one that a terminal wraps cannot.
const columns = 79

// terminalWidth is how many characters a line of a terminal has, 0 if w is none.
func terminalWidth(w io.Writer) int {
	f, ok := w.(descriptor)
	if !ok || !isTerminal(f) {
		return 0
	}
	return windowWidth(f.Fd())
}

// descriptor is an *os.File, or a type that embeds one, as stdout's.
type descriptor interface {
	Stat() (os.FileInfo, error)
	Fd() uintptr
}

func isTerminal(f descriptor) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// clearLine empties the line of a terminal.
const clearLine = "\r\x1b[K"

// begin prints that the next group begins. An error is ignored: the measurement is
// more important than its progress.
func (p *progress) begin(name string) {
	p.n++
	line := fmt.Sprintf("%d of %d: %s", p.n, p.all, name)
	if p.anew {
		_, _ = fmt.Fprintf(p.w, clearLine+"%.*s", columns, line)
	} else {
		_, _ = fmt.Fprintln(p.w, line)
	}
}

// stop clears the line.
func (p *progress) stop() {
	if p.anew {
		_, _ = fmt.Fprint(p.w, clearLine)
	}
}
