// Package plot draws pictures of a report as SVG. A picture is light or dark as the browser
// is set. Its title says what is seen, its description says how to read it, and the last lines
// say where the figures come from. Color is never the only sign: lines differ in marks and
// dashes too.
package plot

// Files:
//
//	plot.go    what stands around each picture
//	lines.go   Charts: the pictures of a report, growth by the bytes so far
//	canvas.go  text, lines and marks; axes and their ticks
//	style.css  colors for light and dark pages, marks and dashes
