// Package plot draws the figures of a report: as SVG and PNG, for light and dark pages,
// wide and narrow. A picture says in its title what is seen, in its text for screen
// readers what it shows, and below where the figures come from. Color is never the only
// sign: series differ in marks and dashes too.
package plot

// Files:
//
//	plot.go     Charts: which pictures a report has
//	bysize.go   bandwidth and call times by size
//	growth.go   growth: cumulated times, times of steps
//	heat.go     heat maps of pairs of devices
//	lines.go    diagrams of lines
//	ratio.go    ratios of compared cases
//	rows.go     diagrams of rows: one value with its interval each
//	samples.go  every sample in order
//	axis.go     axes and ticks
//	layout.go   a picture's parts and places; SVG and PNG
//	theme.go    colors
