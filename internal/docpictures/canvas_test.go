package docpictures

import (
	"fmt"
	"html"
	"strings"
)

// width is that of every picture: at 400 pixels its text can still be read.
const width = 480

// theme are the colors of one kind of page.
type theme struct {
	name                                                                     string
	ink, quiet, data, label, fresh, line, warm, warmFill, soft, softLine, on string
}

var themes = []theme{
	{
		"light", "#1f2328", "#59636e", "#0969da", "#0969da", "#54aeff", "#818b98", "#bc4c00", "#fff1e5", "#f6f8fa",
		"#d1d9e0", "#ffffff",
	},
	{
		"dark", "#f0f6fc", "#9198a1", "#1f6feb", "#58a6ff", "#79c0ff", "#656c76", "#f0883e", "#3d1300", "#151b23",
		"#3d444d", "#ffffff",
	},
}

func (t theme) style() string {
	return fmt.Sprintf(`    .ink { fill: %s }
    .quiet { fill: %s }
    .data { fill: %s }
    .name { fill: %s }
    .new { fill: %s }
    .reserved { fill: none; stroke: %s; stroke-width: 1.5; stroke-dasharray: 4 3 }
    .line { fill: none; stroke: %s; stroke-width: 1.5 }
    .head-of-arrow { fill: %s }
    .warm { fill: %s }
    .warm-line { fill: none; stroke: %s; stroke-width: 2.5 }
    .warm-box { fill: %s; stroke: %s; stroke-width: 1.5 }
    .box { fill: %s; stroke: %s; stroke-width: 1.5 }
    .on { fill: %s }
    text { font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; font-size: 16px }
    .head { font-size: 18px; font-weight: 600 }
    .code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 15px }
    .mid { text-anchor: middle }
    .end { text-anchor: end }
`, t.ink, t.quiet, t.data, t.label, t.fresh, t.line, t.line, t.line, t.warm, t.warm, t.warmFill, t.warm, t.soft, t.softLine, t.on)
}

// canvas is a picture that is being drawn.
type canvas struct {
	body strings.Builder
	low  []int // the lowest pixel of each shape, to check that it is inside
}

func (c *canvas) add(bottom int, format string, args ...any) {
	c.low = append(c.low, bottom)
	fmt.Fprintf(&c.body, "  "+format+"\n", args...)
}

func (c *canvas) rect(class string, x, y, w, h int) {
	c.add(y+h, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="4"/>`, class, x, y, w, h)
}

func (c *canvas) text(class string, x, y int, s string) {
	c.add(y+5, `<text class="%s" x="%d" y="%d">%s</text>`, class, x, y, html.EscapeString(s))
}

func (c *canvas) line(class string, x1, y1, x2, y2 int) {
	c.add(max(y1, y2), `<path class="%s" d="M%d %d L%d %d"/>`, class, x1, y1, x2, y2)
}

// arrow ends at x2, y2; it is vertical or horizontal.
func (c *canvas) arrow(x1, y1, x2, y2 int) {
	switch {
	case x1 == x2 && y2 > y1:
		c.line("line", x1, y1, x2, y2-7)
		c.add(y2, `<path class="head-of-arrow" d="M%d %d h10 l-5 8 Z"/>`, x2-5, y2-8)
	case x1 == x2:
		c.line("line", x1, y1, x2, y2+7)
		c.add(y1, `<path class="head-of-arrow" d="M%d %d h10 l-5 -8 Z"/>`, x2-5, y2+8)
	case x2 > x1:
		c.line("line", x1, y1, x2-7, y2)
		c.add(y2+5, `<path class="head-of-arrow" d="M%d %d v10 l8 -5 Z"/>`, x2-8, y2-5)
	default:
		c.line("line", x1, y1, x2+7, y2)
		c.add(y2+5, `<path class="head-of-arrow" d="M%d %d v10 l-8 -5 Z"/>`, x2+8, y2-5)
	}
}

// chunks draws n chunks of memory, or of addresses, from x on, and returns where the next would be.
func (c *canvas) chunks(class string, x, y, n int) int {
	for range n {
		if class == "reserved" {
			c.rect(class, x+1, y+1, chunk-6, chunk-12)
		} else {
			c.rect(class, x, y, chunk-4, chunk-10)
		}
		x += chunk
	}
	return x
}

// chunk is how far chunks are apart.
const chunk = 46

// cross marks what has ended.
func (c *canvas) cross(x, y int) {
	c.line("warm-line", x-8, y-8, x+8, y+8)
	c.line("warm-line", x-8, y+8, x+8, y-8)
}

// svg is the picture for one kind of page. It loads nothing.
func (p picture) svg(t theme) string {
	c := &canvas{}
	p.draw(c)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">
  <title id="title">%s</title>
  <desc id="desc">%s</desc>
  <style>
%s  </style>
%s</svg>
`, width, p.height, html.EscapeString(p.title), html.EscapeString(p.desc), t.style(), c.body.String())
}
