// Package report is the output of vmmbench: one object, and the formats it is
// written in. Numbers are numbers. A missing value is null, with the reason
// beside it.
package report

// Files:
//
//	report.go    Report and what it is made of: the schema
//	state.go     HostState, DeviceState: values that may change during a run; package machine fills them
//	read.go      reading a report, and checks of its figures
//	compare.go   comparing a report with a baseline
//	part.go      parts of a report: some of its cases, a list parted by a key
//	format.go    the formats, and Output: writing a report as it comes
//	csv.go       CSV
//	gobench.go   Go's benchmark format
//	figures.go   fields of cases and states by their names in JSON, and as people read them; Figure
//	pivot.go     tables of documents: Pivot and Slower
//	grid.go      grid: rows and columns, of which every table is made; newTable: a table as it is printed
//	tables.go    tables for terminals and pages: of the machine, of cases and comparisons, of pairs
//	findings.go  sentences: findings, and how cases ended
//	links.go     how much of its link a copy gets
//	floors.go    Floor: a rate that a case had to reach, and the table of them
//	words.go     what the words in tables mean, by words.txt
