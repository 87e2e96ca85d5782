package report

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	termtext "github.com/jedib0t/go-pretty/v6/text"
)

// Limits of a printed table: what a terminal shows at once. It may be wider.
const (
	usualWidth = 80
	maxRows    = 20
)

// grid is a table before it is printed. What is the same in all rows goes into its
// heading. If it is too large, it becomes several tables.
type grid struct {
	title   string
	keys    []string // names of the columns that say which row it is
	columns []string // names of the other columns
	lift    []string // those of columns that go into the heading if all rows have the same
	rows    []gridRow
	common  []string // notes of all rows, which stand in the heading
}

// gridRow is a row: its cells by the names of their columns. Notes are words that most rows do
// not have.
type gridRow struct {
	cells map[string]string
	notes []string
}

// tables returns the grid as tables that fit a width.
func (g grid) tables(most int) []Piece {
	if len(g.rows) == 0 {
		return nil
	}
	heading := g.title
	if said := g.liftConstants(); len(said) > 0 {
		heading += ": " + strings.Join(said, ", ")
	}
	if g.fits(most) || len(g.keys) < 2 {
		return []Piece{g.print(heading, most)}
	}
	return append([]Piece{{Heading: heading}}, g.split(nil, most)...)
}

// split returns the grid as a table for each value of its first key, and each of them again if it
// does not fit. said is what all rows share.
func (g grid) split(said []string, most int) (list []Piece) {
	if g.fits(most) || len(g.keys) < 2 {
		return []Piece{g.print(strings.Join(said, ", "), most)}
	}
	key := g.keys[0]
	for _, group := range GroupBy(g.rows, func(row gridRow) string { return row.cells[key] }) {
		part := g
		part.keys, part.rows = g.keys[1:], group.Of
		list = append(list, part.split(slices.Concat(said, []string{key + " " + group.Key}, part.liftConstants()), most)...)
	}
	return list
}

// usual are the values of axes that no heading names: those without a flag.
var usual = map[string]string{
	"into": "touched", "call": "async", "engine": "ce", "streams": "1", "step": "whole", "exportable": "no", "busy": "0", "write": "device", "how": "fd",
}

// Usual reports whether the axis has the value that it has without a flag.
func (a Axis) Usual() bool { return usual[a.Name] == a.String() }

// liftConstants removes the columns whose value is the same in all rows, and the notes
// that all rows have. It returns them in words. Of one row nothing is the same: it loses what is
// usual.
func (g *grid) liftConstants() (said []string) {
	if len(g.rows) == 1 {
		if keys := without(g.keys, func(key string) bool { v := g.rows[0].cells[key]; return v == "-" || usual[key] == v }); len(keys) > 0 {
			g.keys = keys
		}
		return nil
	}
	first := g.rows[0]
	same := func(column string) bool {
		return !slices.ContainsFunc(g.rows, func(row gridRow) bool { return row.cells[column] != first.cells[column] })
	}
	say := func(column string) { said = append(said, strings.TrimSpace(column+" "+first.cells[column])) }
	// A key that is the same says nothing of a row. Of the other columns only some may go.
	g.keys = without(g.keys, func(key string) bool {
		if !same(key) {
			return false
		}
		if value := first.cells[key]; usual[key] != value && value != "-" {
			say(key)
		}
		return true
	})
	g.columns = without(g.columns, func(column string) bool {
		if !slices.Contains(g.lift, column) || !same(column) {
			return false
		}
		say(column)
		return true
	})
	// A note of all rows is one of the table.
	for _, note := range g.notes(first) {
		if !slices.ContainsFunc(g.rows, func(row gridRow) bool { return !slices.Contains(row.notes, note) }) {
			said, g.common = append(said, note), append(slices.Clip(g.common), note)
		}
	}
	return said
}

// notes are those of a row that not all rows have.
func (g *grid) notes(row gridRow) []string {
	return without(row.notes, func(note string) bool { return slices.Contains(g.common, note) })
}

// without returns a list without the elements that drop names.
func without[T any](list []T, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), drop)
}

// fits reports whether the grid is small enough for one table.
func (g grid) fits(most int) bool {
	return len(g.rows) <= maxRows && width(g.print("", most).Table) <= most
}

// width is how many columns of a terminal a table takes.
func width(t table.Writer) int {
	return termtext.LongestLineLen(strings.TrimRight(t.Render(), " \n"))
}

// print makes a table of the grid. Notes that are too long for the line stand below the table.
func (g grid) print(heading string, most int) Piece {
	names := slices.Concat(g.keys, g.columns)
	var rows, noted [][]string
	var below []string
	for _, row := range g.rows {
		var cells []string
		for _, name := range names {
			cells = append(cells, row.cells[name])
		}
		notes := strings.Join(g.notes(row), "; ")
		rows, noted = append(rows, cells), append(noted, append(slices.Clip(cells), notes))
		if notes != "" {
			below = append(below, strings.TrimPrefix(strings.Join(cells[:len(g.keys)], " ")+": "+notes, ": "))
		}
	}
	if t := NewTable(append(names, "notes"), noted, 0); width(t) <= most {
		return Piece{Heading: heading, Table: t}
	}
	return Piece{Heading: heading, Table: NewTable(names, rows, 0), Sentences: below}
}

// NewTable makes a table as it is printed, without its empty columns. wrapped is how many characters
// all columns but the first have together; longer cells are broken into lines. 0 is no limit.
func NewTable(header []string, rows [][]string, wrapped int) table.Writer {
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
	var columns []table.ColumnConfig
	for i := 1; i < len(header) && wrapped > 0; i++ {
		columns = append(columns, table.ColumnConfig{Number: i + 1, WidthMax: wrapped / (len(header) - 1), WidthMaxEnforcer: termtext.WrapSoft})
	}
	t.SetColumnConfigs(columns)
	for _, row := range rows {
		t.AppendRow(line(row))
	}
	return t
}

// wrap breaks a text into lines that fit a width. Lines after the first begin with indent.
func wrap(width int, s, indent string) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case termtext.StringWidth(line)+1+termtext.StringWidth(word) > width:
			lines, line = append(lines, line), indent+word
		default:
			line += " " + word
		}
	}
	return strings.Join(append(lines, line), "\n")
}
