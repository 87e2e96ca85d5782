package plot

import (
	"encoding/xml"
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
)

// Sizes in pixels. At 400 pixels the text of a picture can still be read.
const (
	width, edge = 640, 12
	pitch       = 18  // from one line of text to the next
	letter      = 8.4 // how wide a letter is at most, on the average of a word
)

// canvas is a picture that is being drawn, from the top down. The part above y is done.
type canvas struct {
	shapes strings.Builder
	y      float64
}

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(&c.shapes, format+"\n", args...) }

func (c *canvas) text(class string, x, y float64, text string) {
	c.add(`<text class="%s" x="%.1f" y="%.1f">%s</text>`, class, x, y, escape(text))
}

// paragraph adds lines of at most so many letters, as high as this.
func (c *canvas) paragraph(class, text string, letters int, height float64) {
	for _, s := range wrap(text, letters) {
		c.y += height
		c.text(class, edge, c.y, s)
	}
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	c.add(`<path class="%s" d="M%.1f %.1fL%.1f %.1f"/>`, class, x1, y1, x2, y2)
}

// marks are shapes around a point. Colors come again after seven, marks after five: two of the
// first 35 series never share both.
var marks = []string{"M-4-4h8v8h-8z", "M0-5L5 4H-5z", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M0-5.5L5.5 0L0 5.5L-5.5 0z", "M0 5L5-4H-5z"}

func (c *canvas) mark(class string, mark int, x, y float64) {
	c.add(`<path class="mark %s" transform="translate(%.1f %.1f)" d="%s"/>`, class, x, y, marks[mark%len(marks)])
}

// escape is text in SVG. Characters that XML does not allow become the replacement character.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder has no errors
	return b.String()
}

// wrap breaks text into lines of about so many letters, behind spaces, underscores and slashes. Longer
// words are cut.
func wrap(text string, letters int) []string {
	return regexp.MustCompile(fmt.Sprintf(`(?s).{1,%[1]d}(?:[ _/]|$)|.{1,%[1]d}`, letters)).FindAllString(text, -1)
}

// long is how wide a text is at most.
func long(text string) float64 { return letter * float64(len([]rune(text))) }

// scale maps values to places of the picture, by their logarithms.
type scale struct{ low, high, from, to float64 }

// newScale makes a scale that is a little wider than the values.
func newScale(low, high, from, to float64) scale {
	low, high = math.Log10(low), math.Log10(high)
	wider := max(0.005, (high-low)*0.03)
	return scale{low - wider, high + wider, from, to}
}

func (s scale) at(v float64) float64 {
	return s.from + (math.Log10(v)-s.low)/(s.high-s.low)*(s.to-s.from)
}

// across draws a horizontal axis of sizes: a line for each, its name where there is room, and what
// the sizes are.
func (c *canvas) across(s scale, top, bottom float64, name string) {
	free := 0.0
	for _, v := range s.binary() {
		text := size.Format(uint64(v))
		x, half := s.at(v), long(text)/2
		c.line("grid", x, top, x, bottom)
		if x-half > free {
			c.text("muted middle", x, bottom+pitch, text)
			free = x + half
		}
	}
	c.text("muted middle", (s.from+s.to)/2, bottom+2*pitch, name)
	c.y = bottom + 2*pitch + 6
}

// binary returns powers of two on a scale, as many as there is room for.
func (s scale) binary() (values []float64) {
	low, high := s.low/math.Log10(2), s.high/math.Log10(2)
	step := math.Ceil((high - low) * long("1024MiB") / (s.to - s.from))
	for e := math.Ceil(low); e <= high; e += step {
		values = append(values, math.Exp2(e))
	}
	return values
}

// decimal returns round values on a scale: powers of ten, 2 and 5 between them if these are few,
// and even steps if they are fewer still.
func (s scale) decimal() (values []float64) {
	low, high := math.Pow(10, s.low), math.Pow(10, s.high)
	if high/low < 8 {
		step := math.Pow(10, math.Floor(math.Log10((high-low)/2)))
		for i := math.Ceil(low / step); i*step <= high; i++ {
			values = append(values, i*step)
		}
		return values
	}
	for e := math.Floor(s.low); e <= s.high; e++ {
		for _, f := range []float64{1, 2, 5} {
			if v := f * math.Pow(10, e); v >= low && v <= high && (f == 1 || high/low < 150) {
				values = append(values, v)
			}
		}
	}
	return values
}

// decimal prints a tick without the noise of binary fractions.
func decimal(v float64) string { return fmt.Sprintf("%.6g", v) }
