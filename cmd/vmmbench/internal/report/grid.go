package report

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	termtext "github.com/jedib0t/go-pretty/v6/text"
)

// grid is a table before it is printed: a row for each key and a column for each name, in the
// order in which they come.
type grid struct {
	header []string // the name of the keys, then of the columns
	rows   [][]string
	at     map[string]int // rows by their keys
}

func newGrid(keys string) *grid { return &grid{header: []string{keys}, at: map[string]int{}} }

// set puts a text into a cell.
func (g *grid) set(key, column, text string) {
	if !slices.Contains(g.header[1:], column) {
		g.header = append(g.header, column)
	}
	i, ok := g.at[key]
	if !ok {
		i = len(g.rows)
		g.at[key], g.rows = i, append(g.rows, []string{key})
	}
	row, at := g.rows[i], 1+slices.Index(g.header[1:], column)
	for len(row) <= at {
		row = append(row, "")
	}
	row[at], g.rows[i] = text, row
}

// setFields puts fields of an object into a column, those of these names or all.
func (g *grid) setFields(column string, object any, only ...string) {
	for _, f := range fields(object) {
		if text := f.String(); text != "" && (len(only) == 0 || slices.Contains(only, f.name)) {
			g.set(f.title(), column, text)
		}
	}
}

// setRow puts these fields of an object into a row.
func (g *grid) setRow(key string, object any, only ...string) {
	for _, f := range fields(object) {
		if slices.Contains(only, f.name) {
			g.set(key, f.title(), f.String())
		}
	}
}

// lift removes those of the columns whose text is the same in all of several rows. It returns
// them in words, for the heading.
func (g *grid) lift(columns ...string) (said []string) {
	for _, column := range columns {
		at := slices.Index(g.header, column)
		if at < 0 || len(g.rows) < 2 {
			continue
		}
		first := g.rows[0][at]
		if slices.ContainsFunc(g.rows, func(row []string) bool { return row[at] != first }) {
			continue
		}
		if first != "" {
			said = append(said, column+" "+first)
		}
		g.header = slices.Delete(g.header, at, at+1)
		for i, row := range g.rows {
			g.rows[i] = slices.Delete(row, at, at+1)
		}
	}
	return said
}

// widthMax is how wide a column is, but for the first: longer texts are broken into lines.
const widthMax = 36

// pieces is the table with its heading, nothing if it has no rows.
func (g *grid) pieces(heading string) []Piece {
	if len(g.rows) == 0 {
		return nil
	}
	for _, row := range g.rows {
		for i := range row[1:] {
			row[1+i] = termtext.WrapSoft(row[1+i], widthMax)
		}
	}
	return []Piece{{Heading: heading, Table: newTable(g.header, g.rows)}}
}

// newTable makes a table as it is printed, without its empty columns.
func newTable(header []string, rows [][]string) table.Writer {
	t := table.NewWriter()
	s := table.StyleLight
	s.Options = table.OptionsNoBordersAndSeparators
	s.Options.SeparateHeader = true
	s.Format.Header = 0
	t.SetStyle(s)
	t.SuppressEmptyColumns()
	line := func(cells []string) (row table.Row) {
		for _, cell := range cells {
			row = append(row, cell)
		}
		return row
	}
	t.AppendHeader(line(header))
	for _, row := range rows {
		t.AppendRow(line(row))
	}
	return t
}

// wrap breaks a text into lines that fit a width. Lines after the first are indented.
func wrap(width int, s string) string {
	return strings.ReplaceAll(termtext.WrapSoft(s, width-2), "\n", "\n  ")
}
