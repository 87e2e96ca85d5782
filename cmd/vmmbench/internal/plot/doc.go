// Package plot draws pictures of a report as SVG. A picture is light or dark as the browser
// is set. Its title says what is seen, its description says how to read it, and the last lines
// say where the figures come from. Color is never the only sign: lines differ in marks and
// dashes too.
package plot

// Files:
//
//	plot.go    Charts: which pictures a report has, and what stands around each
//	lines.go   growth by the bytes so far, bandwidth by size
//	canvas.go  text, lines and marks; axes and their ticks
//	style.css  colors for light and dark pages, marks and dashes
