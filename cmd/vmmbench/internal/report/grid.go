package report

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	termtext "github.com/jedib0t/go-pretty/v6/text"
)

// Limits of a printed table: what a terminal shows at once.
const (
	maxWidth = 80
	maxRows  = 20
)

// grid is a table before it is printed. What is the same in all rows goes into its
// heading. If it is too large, it becomes several tables.
type grid struct {
	title   string
	keys    []string // names of the columns that say which row it is
	columns []string // names of the other columns
	lift    []string // those of columns that go into the heading if all rows have the same
	rows    []gridRow
}

// gridRow is a row. Notes are words that most rows do not have.
type gridRow struct {
	keys, cells, notes []string
}

// tables returns the grid as tables that fit. In Markdown every width fits.
func (g grid) tables(markdown bool) []Piece {
	if len(g.rows) == 0 {
		return nil
	}
	said := g.liftConstants()
	heading := g.title
	if len(said) > 0 {
		heading += ": " + strings.Join(said, ", ")
	}
	if g.fits(markdown) || len(g.keys) < 2 {
		return []Piece{g.print(heading, markdown)}
	}
	return append([]Piece{{Heading: heading}}, g.split("", markdown)...)
}

// split returns the grid as a table for each value of its first key, and each of them again if it
// does not fit.
func (g grid) split(heading string, markdown bool) []Piece {
	if g.fits(markdown) || len(g.keys) < 2 {
		return []Piece{g.print(heading, markdown)}
	}
	var list []Piece
	for _, part := range g.by(0) {
		list = append(list, part.split(strings.TrimPrefix(heading+", "+part.title, ", "), markdown)...)
	}
	return list
}

// by returns a grid for each value of a key. Their titles are what their rows share.
func (g grid) by(key int) []grid {
	var values []string
	byValue := map[string][]gridRow{}
	for _, row := range g.rows {
		value := row.keys[key]
		if !slices.Contains(values, value) {
			values = append(values, value)
		}
		row.keys = dropAt(row.keys, key)
		byValue[value] = append(byValue[value], row)
	}
	var list []grid
	for _, value := range values {
		part := g
		part.keys, part.rows = dropAt(g.keys, key), byValue[value]
		part.title = strings.Join(append([]string{g.keys[key] + " " + value}, part.liftConstants()...), ", ")
		list = append(list, part)
	}
	return list
}

// usual are the values of axes that no heading names: those without a flag.
var usual = map[string]string{
	"call": "async", "engine": "ce", "streams": "1", "step": "whole", "exportable": "no", "busy": "0", "write": "device", "how": "fd",
}

// Usual reports whether the axis has the value that it has without a flag.
func (a Axis) Usual() bool { return usual[a.Name] == a.String() }

// liftConstants removes the columns whose value is the same in all rows, and the notes
// that all rows have. It returns them in words. Of one row, nothing is the same.
func (g *grid) liftConstants() []string {
	g.rows = slices.Clone(g.rows)
	if len(g.rows) < 2 {
		return nil
	}
	var said []string
	first := g.rows[0]
	same := func(of func(gridRow) string) bool {
		return !slices.ContainsFunc(g.rows, func(row gridRow) bool { return of(row) != of(first) })
	}
	// A key that is the same says nothing of a row. Of the other columns only some may go.
	for i := 0; i < len(g.keys); {
		if !same(func(row gridRow) string { return row.keys[i] }) {
			i++
			continue
		}
		if value := g.rows[0].keys[i]; usual[g.keys[i]] != value && value != "-" {
			said = append(said, strings.TrimSpace(g.keys[i]+" "+value))
		}
		g.keys = dropAt(g.keys, i)
		for n := range g.rows {
			g.rows[n].keys = dropAt(g.rows[n].keys, i)
		}
		first = g.rows[0]
	}
	for i := 0; i < len(g.columns); {
		if !slices.Contains(g.lift, g.columns[i]) || !same(func(row gridRow) string { return row.cells[i] }) {
			i++
			continue
		}
		said = append(said, strings.TrimSpace(g.columns[i]+" "+g.rows[0].cells[i]))
		g.columns = dropAt(g.columns, i)
		for n := range g.rows {
			g.rows[n].cells = dropAt(g.rows[n].cells, i)
		}
		first = g.rows[0]
	}
	// A note of all rows is one of the table.
	for _, note := range first.notes {
		if slices.ContainsFunc(g.rows, func(row gridRow) bool { return !slices.Contains(row.notes, note) }) {
			continue
		}
		said = append(said, note)
		for n := range g.rows {
			g.rows[n].notes = slices.DeleteFunc(slices.Clone(g.rows[n].notes), func(s string) bool { return s == note })
		}
	}
	return said
}

func dropAt(list []string, i int) []string {
	return slices.Delete(slices.Clone(list), i, i+1)
}

// fits reports whether the grid is small enough for one table.
func (g grid) fits(markdown bool) bool {
	return len(g.rows) <= maxRows && (markdown || width(g.print("", false).Table) <= maxWidth)
}

// width is how many columns of a terminal a table takes.
func width(t table.Writer) int {
	return termtext.LongestLineLen(strings.TrimRight(t.Render(), " \n"))
}

// print makes a table of the grid. Notes that are too long for the line stand below the table.
func (g grid) print(heading string, markdown bool) Piece {
	t := g.writer(true)
	if markdown || width(t) <= maxWidth {
		return Piece{Heading: heading, Table: t}
	}
	var below []string
	for _, row := range g.rows {
		if len(row.notes) > 0 {
			below = append(below, strings.TrimPrefix(strings.Join(row.keys, " ")+": "+strings.Join(row.notes, "; "), ": "))
		}
	}
	return Piece{Heading: heading, Table: g.writer(false), Sentences: below}
}

// writer is the table. Columns without a value are left out.
func (g grid) writer(notes bool) table.Writer {
	t := table.NewWriter()
	t.SetStyle(style())
	t.SuppressEmptyColumns()
	line := func(keys, cells []string, last string) (row table.Row) {
		for _, cell := range slices.Concat(keys, cells) {
			row = append(row, cell)
		}
		if notes {
			row = append(row, last)
		}
		return row
	}
	t.AppendHeader(line(g.keys, g.columns, "notes"))
	for _, row := range g.rows {
		t.AppendRow(line(row.keys, row.cells, strings.Join(row.notes, "; ")))
	}
	return t
}

// wrap breaks a text into lines that fit. Lines after the first begin with indent.
func wrap(s, indent string) string { return wrapTo(maxWidth, s, indent) }

func wrapTo(width int, s, indent string) string {
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
