// Package report is the output of vmmbench: one object, and the formats it is
// written in. Numbers are numbers. A missing value is null, with the reason
// beside it.
package report

// Files:
//
//	report.go       Report and what it is made of: the schema
//	state.go        HostState, DeviceState: what may change, in a report; package machine fills them
//	read.go         reading a report, and checks of its figures
//	compare.go      comparing a report with a baseline
//	findings.go     what was found, in sentences
//	headline.go     the answer, a sentence each for copies and growth
//	part.go         parts of a report: its first cases, some of its cases, a list parted by a key
//	format.go       the formats, and Output: writing a report as it comes
//	csv.go          CSV
//	gobench.go      Go's benchmark format
//	lookup.go       what documents show: figures by their names, Pivot and Slower
//	links.go        how much of its link a copy gets, and floors
//	metrics.go      the figures of a case: names, units, meanings; which tables beside the main one show them
//	table.go        tables of the run and its devices; document, which all tables are written to
//	casetable.go    tables of cases and their columns, of their comparisons, of pairs of devices
//	state_table.go  tables of the state of host and devices
//	grid.go         grid: rows and columns as text that fits a terminal; NewTable: a table as it is printed
//	legend.go       explanations of the words in tables
