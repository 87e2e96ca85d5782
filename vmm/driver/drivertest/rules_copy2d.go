package drivertest

import (
	"bytes"
	"fmt"
	"math"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func copy2DRules() []Rule {
	return needing([]Rule{
		{Name: "pitch", Says: "Pitch is at least the row, the same for what it returned, and ErrInvalid for no bytes or more than 2^63-1", Source: seam, run: pitch},
		{Name: "copy2d-round-trip", Says: "rows go in and come out at any width and pitch, and what is between them is not written", Source: manual, run: onInterface(copy2DRoundTrip)},
		{Name: "copy2d-device", Says: "rows are copied between memory of two pitches, pinned memory included, and what is between them is not written", Source: manual, run: onInterface(copy2DDevice)},
		{Name: "copy2d-empty", Says: "a copy of no rows works, also where nothing is mapped", Source: manual, run: onInterface(copy2DEmpty)},
		{Name: "copy2d-bounds", Says: "rows that overlap, are not whole, overflow, or have memory between them that is not mapped are ErrInvalid: nothing is written, and no harm done", Source: measured, run: onChunks(4, copy2DBounds)},
		{Name: "copy2d-close", Says: "after Close, copies of rows and Pitch are ErrClosed", Source: seam, run: copy2DClose},
	}, driver.FeatureCopy2D)
}

func copy2DOrderRules() []Rule {
	both := []driver.Feature{driver.FeatureCopy2D, driver.FeatureStreamMemOps}
	return []Rule{
		{Name: "copy2d-order", Says: "a copy of rows runs in its stream's order, and one of ordinary memory waits for no other stream", Source: guide, needs: both, run: onStream(3, copy2DOrder)},
		{Name: "copy2d-capture", Says: "a captured copy of rows does not run, and one of ordinary memory destroys no capture", Source: contract(9), needs: both[:1], run: onChunks(2, copy2DCapture)},
	}
}

// rowShapes are widths and pitches of rows, and their number.
func rowShapes() [][3]uint64 {
	return [][3]uint64{
		{1, 1, 1}, {1, 2, 5}, {3, 512, 40}, {64, 64, 7}, {100, 256, 1000}, {508, 512, 3000}, {777, 1001, 333}, {4096, 5000, 2}, {70000, 70016, 20},
	}
}

// spread is rows one behind the other as they lie a pitch apart, in a copy of old.
func spread(old, rows []byte, width, pitch uint64) []byte {
	all := bytes.Clone(old)
	for i := uint64(0); i*width < uint64(len(rows)); i++ {
		copy(all[i*pitch:], rows[i*width:(i+1)*width])
	}
	return all
}

// large maps three chunks side by side, together at least 1.5 MiB whatever the
// granularity, and returns their size.
func (c *check) large() (p driver.Ptr, size uint64) {
	c.Helper()
	part := (512<<10 + c.gran - 1) / c.gran * c.gran
	p = c.reserve(3 * part)
	for i := range uint64(3) {
		c.mapHandle(p+driver.Ptr(i*part), part, c.create(part))
	}
	c.access(p, 3*part, grant(0, driver.AccessReadWrite))
	return p, 3 * part
}

func pitch(c *check) {
	i := as[driver.Copier2D](c, c.dev(0))
	for _, width := range []uint64{1, 2, 63, 64, 65, 100, 508, 512, 513, 3072, 4096, 100_000, 1<<32 + 1} {
		n := valueOf(i.Pitch(width)).must(c, "ask for a pitch for rows of %d bytes", width)
		if again, err := i.Pitch(n); n < width || again != n || err != nil {
			c.Errorf("the pitch for rows of %d bytes is %d, and for rows of that %d (%v)", width, n, again, err)
		}
	}
	for _, width := range []uint64{0, math.MaxInt64, math.MaxUint64} {
		c.want(errOf(i.Pitch(width)), fmt.Sprintf("ask for a pitch for rows of %d bytes", width), driver.ErrInvalid)
	}
}

func copy2DRoundTrip(c *check, d driver.Device, i driver.Copier2D) {
	p, size := c.large()
	for k, shape := range rowShapes() {
		width, pitch, n := shape[0], shape[1], shape[2]
		n = min(n, (size-width)/pitch)
		off := min(size/3-7, size-n*pitch) // so that rows lie across chunks
		at := driver.PitchedPtr{Ptr: p + driver.Ptr(off), Pitch: pitch}
		c.write(d, p, size, 0xee)
		src := pattern(width*n, byte(k))
		c.must(i.CopyIn2D(at, src, width), "write %d rows of %d bytes, pitch %d", n, width, pitch)
		old := bytes.Repeat([]byte{0xee}, int(size))
		want := append(old[:off:off], spread(old[off:], src, width, pitch)...)
		c.holds(d, p, want, "%d rows of %d bytes, pitch %d", n, width, pitch)
		out := bytes.Repeat([]byte{0xdd}, int(width*n)+1)
		c.must(i.CopyOut2D(out[:width*n], at, width), "read %d rows of %d bytes, pitch %d", n, width, pitch)
		if !bytes.Equal(out[:width*n], src) || out[width*n] != 0xdd {
			c.Errorf("%d rows of %d bytes, pitch %d came back different", n, width, pitch)
		}
	}
}

func copy2DDevice(c *check, d driver.Device, i driver.Copier2D) {
	s := c.stream(d)
	p, _ := c.large()
	q, size := c.large()
	host, b := c.pin(d, 8192)
	for k, shape := range [][4]uint64{{1, 3, 2, 9}, {60, 64, 100, 50}, {64, 64, 64, 60}, {500, 777, 512, 10}, {3, 5, 512, 700}} {
		width, from, to, n := shape[0], shape[1], shape[2], shape[3]
		note := fmt.Sprintf("%d rows of %d bytes from pitch %d to %d", n, width, from, to)
		src := pattern((n-1)*from+width, byte(k))
		c.must(d.CopyIn(p, src), "write the source")
		c.write(d, q, size, 0xee)
		c.must(i.Copy2D(driver.PitchedPtr{Ptr: q + 5, Pitch: to}, driver.PitchedPtr{Ptr: p, Pitch: from}, width, n, s), "copy %s", note)
		// And on to pinned memory, where the rows lie one behind the other.
		for k := range b {
			b[k] = 0xee
		}
		c.must(i.Copy2D(driver.PitchedPtr{Ptr: host, Pitch: width}, driver.PitchedPtr{Ptr: q + 5, Pitch: to}, width, n, s), "copy on %s", note)
		c.sync(d, s)
		var rows []byte
		for r := range n {
			rows = append(rows, src[r*from:r*from+width]...)
		}
		old := bytes.Repeat([]byte{0xee}, int(size))
		want := append(old[:5:5], spread(old[5:], rows, width, to)...)
		c.holds(d, q, want, "%s", note)
		if !bytes.Equal(b[:len(rows)], rows) || b[len(rows)] != 0xee {
			c.Errorf("%s: other bytes in pinned memory than those expected", note)
		}
	}
}

func copy2DEmpty(c *check, d driver.Device, i driver.Copier2D) {
	s := d.CopyStream()
	nowhere := driver.PitchedPtr{Ptr: 64, Pitch: 512}
	c.must(i.CopyIn2D(nowhere, nil, 64), "write no rows")
	c.must(i.CopyOut2D(nil, nowhere, 64), "read no rows")
	c.must(i.Copy2D(nowhere, nowhere, 64, 0, s), "copy no rows")
	c.must(i.Copy2D(nowhere, nowhere, 0, 64, s), "copy rows of no bytes")
}

func copy2DBounds(c *check, d driver.Device, p driver.Ptr) {
	i := as[driver.Copier2D](c, d)
	s := d.CopyStream()
	c.write(d, p, 4*c.gran, 1)
	c.unmap(c.chunk(p, 1), c.gran)
	good := c.chunk(p, 2) // two granules
	for _, bad := range []struct {
		what           string
		p              driver.Ptr
		pitch, n, rows uint64 // n: width
	}{
		{"that overlap", good, 63, 64, 2},
		{"with no pitch", good, 0, 64, 2},
		{"with a hole between them", p, 2 * c.gran, 64, 2},
		{"the last of which ends past the mapping", good, c.gran, 64, 3},
		{"that end in a hole", p, c.gran - 32, 64, 2},
		{"that begin in a hole", c.chunk(p, 1), 512, 64, 2},
		{"at 0", 0, 512, 64, 2},
		{"past the top of the address space", good, 1 << 63, 64, 2},
		{"that overflow", good, 1 << 63, 64, 3},
	} {
		at, ok := driver.PitchedPtr{Ptr: bad.p, Pitch: bad.pitch}, driver.PitchedPtr{Ptr: good, Pitch: 512}
		buf := bytes.Repeat([]byte{2}, int(bad.n*bad.rows))
		c.want(i.CopyIn2D(at, buf, bad.n), "write rows "+bad.what, driver.ErrInvalid)
		c.want(i.CopyOut2D(buf, at, bad.n), "read rows "+bad.what, driver.ErrInvalid)
		c.want(i.Copy2D(at, ok, bad.n, bad.rows, s), "copy to rows "+bad.what, driver.ErrInvalid)
		c.want(i.Copy2D(ok, at, bad.n, bad.rows, s), "copy from rows "+bad.what, driver.ErrInvalid)
	}
	at := driver.PitchedPtr{Ptr: good, Pitch: 512}
	c.want(i.CopyIn2D(at, []byte{2, 2, 2}, 2), "write rows that are not whole", driver.ErrInvalid)
	c.want(i.CopyOut2D(make([]byte, 3), at, 2), "read rows that are not whole", driver.ErrInvalid)
	c.want(i.CopyIn2D(at, []byte{2, 2, 2}, 0), "write rows of no bytes", driver.ErrInvalid)
	c.want(i.Copy2D(at, at, 64, 1<<60, s), "copy 2^60 rows", driver.ErrInvalid)
	// What follows the last row need not be mapped.
	c.must(i.CopyIn2D(driver.PitchedPtr{Ptr: good, Pitch: 2*c.gran - 64}, bytes.Repeat([]byte{1}, 128), 64), "write rows up to the end")
	c.must(d.Sync(), "sync afterwards")
	c.reads(d, p, c.gran, 1)
	c.reads(d, good, 2*c.gran, 1)
}

func copy2DClose(c *check) {
	p, _ := c.chunks(1)
	d := c.openDevice(0)
	s := d.CopyStream()
	c.must(d.Close(), "close")
	c.refuses(rowCalls(as[driver.Copier2D](c, d), p, s), "after Close", driver.ErrClosed)
}

// rowCalls is every call of Copier2D.
func rowCalls(i driver.Copier2D, p driver.Ptr, s driver.Stream) map[string]func() error {
	at, buf := driver.PitchedPtr{Ptr: p, Pitch: 64}, make([]byte, 16)
	return map[string]func() error{
		"Pitch":     func() error { return errOf(i.Pitch(1)) },
		"CopyIn2D":  func() error { return i.CopyIn2D(at, buf, 8) },
		"CopyOut2D": func() error { return i.CopyOut2D(buf, at, 8) },
		"Copy2D":    func() error { return i.Copy2D(at, at, 8, 2, s) },
	}
}

func copy2DOrder(c *check, d driver.Device, s driver.Stream, p driver.Ptr) {
	i := as[driver.Copier2D](c, d)
	g := c.hold(d, s)
	// Rows of the second chunk become what the first has when the gate is open.
	from := driver.PitchedPtr{Ptr: p, Pitch: 512}
	to := driver.PitchedPtr{Ptr: c.chunk(p, 1), Pitch: 256}
	c.fillAll(d, p, 1, s)
	c.must(c.prompt("queue a copy of rows", func() error { return i.Copy2D(to, from, 256, 8, s) }), "queue a copy of rows")
	c.fillAll(d, p, 2, s)
	// The copies of ordinary memory wait for none of that.
	rows := driver.PitchedPtr{Ptr: c.chunk(p, 2), Pitch: 512}
	src, got := pattern(8*100, 3), make([]byte, 8*100)
	c.must(c.returns("write rows", func() error { return i.CopyIn2D(rows, src, 100) }), "write rows")
	c.must(c.returns("read rows", func() error { return i.CopyOut2D(got, rows, 100) }), "read rows")
	if !bytes.Equal(got, src) {
		c.Error("rows came back different")
	}
	c.reads(d, to.Ptr, 8*256, 0)
	c.openAndSync(g, d, s)
	c.reads(d, to.Ptr, 8*256, 1)
	c.reads(d, to.Ptr+8*256, 256, 0)
}

func copy2DCapture(c *check, d driver.Device, p driver.Ptr) {
	i := as[driver.Copier2D](c, d)
	rows, other := driver.PitchedPtr{Ptr: p, Pitch: 512}, driver.PitchedPtr{Ptr: c.chunk(p, 1), Pitch: 256}
	src, got := pattern(8*100, 3), make([]byte, 8*100)
	for _, m := range modes() {
		s := c.capture(d, m)
		c.must(i.CopyIn2D(rows, src, 100), "write rows beside a capture")
		c.must(i.CopyOut2D(got, rows, 100), "read rows beside a capture")
		if !bytes.Equal(got, src) {
			c.Error("rows came back different")
		}
		c.must(i.Copy2D(other, rows, 100, 8, s), "capture a copy of rows")
		c.survives(d, s)
		c.sync(d, s)
		c.reads(d, other.Ptr, c.gran, 0)
	}
}
