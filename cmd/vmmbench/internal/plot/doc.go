// Package plot draws the figures of a report: as SVG and PNG, for light and dark pages,
// wide and narrow. A picture says in its title what is seen, in its text for screen
// readers what it shows, and below where the figures come from. Color is never the only
// sign: series differ in marks and dashes too.
package plot

// Files:
//
//	plot.go    Charts: which pictures a report has
//	matrix.go  pairs of devices, with the values in the cells
//	ratios.go  ratios of compared cases: how many rows, and in which order
//	lines.go   bandwidth by size, growth by bytes so far, and what such diagrams share: axes, bands, names at the ends
//	render.go  SVG and PNG; the lines below a picture
//	theme.go   colors, marks and dashes
