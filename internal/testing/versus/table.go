package versus

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
)

// Table is a table that a test logs at its end.
type Table struct {
	text strings.Builder
	w    *tabwriter.Writer
}

// NewTable begins a table with its head, whose cells are parted by tabs.
func NewTable(head string) *Table {
	t := &Table{}
	t.w = tabwriter.NewWriter(&t.text, 0, 0, 2, ' ', 0)
	t.Add("%s", head)
	return t
}

// Add adds a line, whose cells are parted by tabs.
func (t *Table) Add(format string, args ...any) { fmt.Fprintf(t.w, format+"\n", args...) }

// Log logs the table.
func (t *Table) Log(tb testing.TB) {
	tb.Helper()
	if err := t.w.Flush(); err != nil {
		tb.Fatal(err)
	}
	tb.Log("\n" + t.text.String())
}

// Verdict is "met" or "not met", for a target.
func Verdict(met bool) string {
	if met {
		return "met"
	}
	return "not met"
}
