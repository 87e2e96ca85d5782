package docpictures

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// picture is one picture; docs/images has it as NAME-light.svg and NAME-dark.svg.
type picture struct {
	name, title, desc string
	height            int
	draw              func(c *canvas)
}

var pictures = []picture{follow, lengths, packages, readers, dies, pressure}

var update = flag.Bool("update", false, "write docs/images")

// The pictures in docs/images are those that are drawn here.
func TestPictures(t *testing.T) {
	for _, p := range pictures {
		for _, kind := range themes {
			file := filepath.Join("..", "..", "docs", "images", p.name+"-"+kind.name+".svg")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(p.svg(kind)), 0o644)) //nolint:gosec // a document
			}
			have, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, p.svg(kind), string(have), "%s: go test ./internal/docpictures -update", file)
		}
	}
}

// A picture says in words what it shows, loads nothing, and differs between pages in colors only.
func TestPicturesAreWhole(t *testing.T) {
	colors := regexp.MustCompile(`#[0-9a-f]{6}`)
	for _, p := range pictures {
		require.NotEmpty(t, p.title)
		require.NotEmpty(t, p.desc)
		light, dark := p.svg(themes[0]), p.svg(themes[1])
		require.NotEqual(t, light, dark)
		require.Equal(t, colors.ReplaceAllString(light, ""), colors.ReplaceAllString(dark, ""))
		require.NotRegexp(t, `<script|<image|<foreignObject|href=|url\(|@import`, light)
		c := &canvas{}
		p.draw(c)
		for _, low := range c.low {
			require.LessOrEqual(t, low, p.height, p.name)
		}
	}
}

var follow = picture{
	name: "follow", height: 300,
	title: "A vector grows, and a reader in another process follows it",
	desc: "Above, the process that writes: a vector has four chunks of GPU memory and grows by two, behind " +
		"the four, at addresses that were reserved. Below, a reader in another process: the same six chunks are mapped " +
		"there, at addresses of its own. Nothing is copied, and neither pointer changes.",
	draw: func(c *canvas) {
		c.text("head ink", 8, 24, "The writer appends")
		c.text("mid ink", 170, 58, "data")
		c.text("mid ink", 320, 58, "new")
		c.text("mid quiet", 420, 58, "reserved")
		row := func(pointer string, y int) {
			c.text("code name", 8, y+23, pointer)
			x := c.chunks("data", 72, y, 4)
			x = c.chunks("new", x, y, 2)
			c.chunks("reserved", x, y, 2)
		}
		row("0x7f00", 68)
		c.text("ink", 72, 128, "Nothing is copied. Its pointer stays.")
		c.line("line", 8, 148, 472, 148)
		c.text("head ink", 8, 180, "A reader in another process follows")
		c.text("mid ink", 210, 214, "the same memory")
		row("0xa400", 224)
		c.text("ink", 72, 284, "Nothing is copied. Its pointer stays, too.")
	},
}

var lengths = picture{
	name: "lengths", height: 244,
	title: "Len, Cap and Max of a vector",
	desc: "A row of addresses. Three chunks of memory are mapped at its front, each larger than the one before. Len, which " +
		"Append moves, ends within the third chunk. Cap is the end of the third chunk. Max is the end of the addresses. " +
		"Behind Cap there are addresses and no memory.",
	draw: func(c *canvas) {
		c.text("code name", 8, 52, "Ptr")
		c.arrow(19, 60, 19, 76)
		c.rect("data", 8, 80, 40, 40)
		c.rect("data", 52, 80, 64, 40)
		c.rect("new", 120, 80, 112, 40)
		c.rect("data", 120, 80, 60, 40)
		c.rect("reserved", 237, 81, 234, 38)
		c.text("mid ink", 120, 24, "memory, in chunks")
		c.line("line", 8, 34, 232, 34)
		c.text("mid quiet", 354, 24, "addresses only")
		c.line("line", 237, 34, 472, 34)
		c.text("mid quiet", 354, 106, "no memory yet")
		mark := func(x, y int, name, what string) {
			c.line("line", x, 122, x, y+4)
			c.text("code name end", x-8, y, name)
			c.text("quiet end", x-44, y, what)
		}
		mark(180, 146, "Len", "appended")
		mark(232, 172, "Cap", "has memory")
		mark(471, 198, "Max", "can grow to: addresses, reserved once")
		c.text("ink", 8, 236, "Append moves Len, and Cap if it must. Ptr stays.")
	},
}

var packages = picture{
	name: "packages", height: 470,
	title: "Which package to take",
	desc: "In one process: growable for elements and rows, vmm for bytes, streams and limits, vmm/pool for many short blocks, " +
		"vmm/kernel for kernels. Between processes of a host: shareable while the owner lives, shareable/store for data that " +
		"outlive their writer, shareable/ipc for programs that use CUDA's own IPC. Between GPUs and hosts, over NCCL: shareable/collective.",
	draw: func(c *canvas) {
		y := 8
		group := func(name string, rows ...[2]string) {
			h := 36 + 34*len(rows)
			c.rect("box", 4, y, 472, h)
			c.text("head ink", 16, y+25, name)
			for i, r := range rows {
				c.text("code name", 16, y+56+34*i, r[0])
				c.text("ink", 206, y+56+34*i, r[1])
			}
			y += h + 12
		}
		group("In one process",
			[2]string{"growable", "elements, or rows, that grow"},
			[2]string{"vmm", "bytes; streams, limits, sleep"},
			[2]string{"vmm/pool", "many blocks of short life"},
			[2]string{"vmm/kernel", "kernels, and graphs of them"})
		group("Several processes on a host",
			[2]string{"shareable", "others read while you write"},
			[2]string{"shareable/store", "data that outlive their writer"},
			[2]string{"shareable/ipc", "the other side has CUDA's IPC"})
		group("Several GPUs or hosts, over NCCL",
			[2]string{"shareable/collective", "gather, exchange, rebalance"})
	},
}

var readers = picture{
	name: "readers", height: 330,
	title: "Owner, page and readers",
	desc: "An owner has a vector in GPU memory. A reader connects to its socket once and receives descriptors of the chunks, " +
		"which it maps, and of the control page. From then on the owner writes the length to that page and readers look there. New " +
		"chunks come over the socket. If the owner is killed, the readers keep what they have mapped.",
	draw: func(c *canvas) {
		c.rect("box", 4, 8, 472, 74)
		c.text("head ink", 16, 33, "Owner")
		c.text("code ink", 16, 63, "Publish")
		c.chunks("data", 110, 26, 4)
		c.chunks("new", 110+4*chunk, 26, 1)
		c.text("quiet", 350, 50, "GPU memory")
		c.rect("warm-box", 16, 128, 150, 64)
		c.text("mid ink", 91, 152, "control page")
		c.text("mid code ink", 91, 178, "length: 5")
		c.arrow(91, 82, 91, 126)
		c.text("quiet", 100, 110, "writes")
		c.arrow(91, 236, 91, 194)
		c.text("quiet", 100, 220, "look at it")
		c.arrow(330, 82, 330, 236)
		c.text("quiet", 342, 140, "socket:")
		c.text("quiet", 342, 162, "descriptors of")
		c.text("quiet", 342, 184, "new chunks")
		c.rect("box", 4, 240, 472, 80)
		c.text("head ink", 16, 265, "Readers")
		c.text("code ink", 16, 297, "Attach")
		c.chunks("data", 110, 258, 4)
		c.chunks("new", 110+4*chunk, 258, 1)
		c.text("quiet", 350, 271, "the same,")
		c.text("quiet", 350, 293, "mapped here")
	},
}

var dies = picture{
	name: "dies", height: 300,
	title: "A worker dies, and the next one appends on",
	desc: "Over time, from left to right: the first worker appends to an object of a store and is killed. The object stays, since the " +
		"daemon owns its memory. A second worker opens it and appends on from the published length. A reader follows all the time, at one address.",
	draw: func(c *canvas) {
		bar := func(class string, x, y, w int, s string) {
			c.rect(class, x, y, w, 34)
			c.text("on mid", x+w/2, y+22, s)
		}
		c.text("ink", 8, 40, "worker 1")
		bar("data", 110, 18, 120, "appends")
		c.cross(236, 35)
		c.text("warm", 252, 40, "killed")
		c.text("ink", 8, 92, "worker 2")
		bar("data", 290, 70, 182, "appends on")
		c.text("ink", 8, 144, "object of")
		c.text("ink", 8, 164, "a store")
		c.rect("warm-box", 110, 126, 362, 44)
		x := c.chunks("data", 116, 130, 3)
		c.text("ink", x+4, 153, "stays")
		c.chunks("new", 336-4, 130, 3)
		c.text("ink", 8, 218, "a reader")
		bar("data", 110, 196, 362, "follows, at one address")
		c.arrow(110, 252, 472, 252)
		c.text("quiet", 110, 276, "time")
		c.text("quiet end", 472, 276, "only what was not published is lost")
	},
}

var pressure = picture{
	name: "pressure", height: 420,
	title: "Pressure and sleep",
	desc: "Above: growth that finds no memory first takes what the device keeps unused, then calls the functions that were given to " +
		"OnPressure and tries again, and last returns ErrOutOfMemory, with nothing changed. Below: Sleep gives a vector's memory back, keeps its " +
		"addresses, and its contents wait in host memory. Wake brings memory and contents to the same addresses.",
	draw: func(c *canvas) {
		c.text("head ink", 8, 24, "Growth finds no memory")
		step := func(y int, n, s string) {
			c.rect("box", 8, y, 464, 38)
			c.text("code name", 20, y+24, n)
			c.text("ink", 48, y+24, s)
		}
		step(38, "1", "unused memory that was kept is released")
		c.arrow(60, 76, 60, 92)
		step(92, "2", "your functions (OnPressure) release more")
		c.arrow(60, 130, 60, 146)
		step(146, "3", "ErrOutOfMemory: nothing has changed")
		c.text("head ink", 8, 224, "Sleep and Wake")
		c.text("ink", 8, 262, "awake")
		c.text("code name", 80, 262, "0x7f00")
		c.chunks("data", 150, 239, 4)
		c.text("quiet", 342, 262, "GPU memory")
		c.text("ink", 8, 326, "asleep")
		c.text("code name", 80, 326, "0x7f00")
		c.chunks("reserved", 150, 303, 4)
		c.text("quiet", 342, 326, "addresses only")
		c.rect("warm-box", 150, 362, 180, 36)
		c.text("mid ink", 240, 385, "contents")
		c.text("quiet", 342, 385, "host memory")
		c.arrow(200, 279, 200, 300)
		c.text("code ink", 92, 294, "Sleep")
		c.arrow(280, 300, 280, 278)
		c.text("code ink", 292, 294, "Wake")
		c.line("line", 240, 342, 240, 360)
	},
}
