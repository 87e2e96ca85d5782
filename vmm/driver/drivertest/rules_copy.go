package drivertest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func copyRules() []Rule {
	return []Rule{
		{Name: "copy-round-trip", Says: "bytes go in and come out at any offset and length, across chunks", Source: manual, run: onChunks(3, copyRoundTrip)},
		{Name: "copy-empty", Says: "a copy of 0 bytes works, also where nothing is mapped", Source: manual, run: onChunks(1, copyEmpty)},
		{Name: "copy-bounds", Says: "a copy that runs out of the mapped span is ErrInvalid, writes nothing and does no harm", Source: seam, run: onChunks(4, copyBounds)},
		{Name: "copy-in-done", Says: "when CopyIn returns, the source slice may be reused and the memory unmapped", Source: seam, run: onDevice(copyInDone)},
		{Name: "fill", Says: "a fill sets elements of 1, 2 or 4 bytes and nothing beside them", Source: manual, run: onChunks(2, fill)},
		{Name: "fill-bounds", Says: "a fill of another width, at an odd address, past the mapping or past 2^64 is ErrInvalid", Source: manual, run: onChunks(2, fillBounds)},
		{Name: "device-close", Says: "a second Close works, every later call is ErrClosed, and another Device of the same ordinal goes on", Source: seam, run: deviceClose},
		{Name: "device-do", Says: "Do runs the function once and returns its error", Source: seam, run: deviceDo},
	}
}

// pattern is n bytes in which every byte differs from its neighbours.
func pattern(n uint64, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ seed
	}
	return b
}

func copyRoundTrip(c *check, d driver.Device, p driver.Ptr) {
	want := make([]byte, 3*c.gran)
	for i, span := range []struct{ off, n uint64 }{
		{0, 3 * c.gran}, {1, 1}, {c.gran - 1, 2}, {c.gran - 3, c.gran + 5}, {3*c.gran - 1, 1}, {4097, 4095},
	} {
		src := pattern(span.n, byte(i))
		c.must(d.CopyIn(p+driver.Ptr(span.off), src), "write %d bytes at %d", span.n, span.off)
		copy(want[span.off:], src)
		c.holds(d, p+driver.Ptr(span.off), src, "%d bytes at %d", span.n, span.off)
	}
	c.holds(d, p, want, "beside what was written")
}

func copyEmpty(c *check, d driver.Device, p driver.Ptr) {
	c.must(d.CopyIn(p, nil), "write nothing")
	c.must(d.CopyOut(nil, p), "read nothing")
	c.must(d.Copy(p, p+64, 0, d.CopyStream()), "copy nothing")
	c.must(d.Fill(p, 1, 4, 0, d.CopyStream()), "fill nothing")
	const nowhere = driver.Ptr(64)
	c.must(d.Copy(nowhere, nowhere, 0, d.CopyStream()), "copy nothing where nothing is mapped")
	c.must(d.Fill(nowhere, 1, 4, 0, d.CopyStream()), "fill nothing where nothing is mapped")
}

func copyBounds(c *check, d driver.Device, p driver.Ptr) {
	c.write(d, p, 4*c.gran, 1)
	c.unmap(c.chunk(p, 1), c.gran)
	good := c.chunk(p, 2) // two granules
	gone := c.reserve(c.gran)
	c.free(gone)
	for _, bad := range []struct {
		p    driver.Ptr
		n    uint64
		what string
	}{
		{c.chunk(p, 1), 64, "in a hole"}, {c.chunk(p, 1) - 1, 64, "into a hole"}, {good - 63, 64, "out of a hole"},
		{p, 2 * c.gran, "into a hole by a granule"}, {c.chunk(p, 4) - 1, 64, "past the reservation"},
		{gone, 64, "in a freed range"}, {0, 64, "at 0"}, {1<<64 - 32, 64, "past the top of the address space"},
	} {
		buf := bytes.Repeat([]byte{2}, int(bad.n))
		c.want(d.CopyIn(bad.p, buf), "write "+bad.what, driver.ErrInvalid)
		c.want(d.CopyOut(buf, bad.p), "read "+bad.what, driver.ErrInvalid)
		c.want(d.Copy(bad.p, good, bad.n, d.CopyStream()), "copy to memory "+bad.what, driver.ErrInvalid)
		c.want(d.Copy(good, bad.p, bad.n, d.CopyStream()), "copy from memory "+bad.what, driver.ErrInvalid)
	}
	c.want(d.Copy(p, good, -c.gran, d.CopyStream()), "copy an overflowing size", driver.ErrInvalid)
	c.must(d.Sync(), "sync afterwards")
	c.reads(d, p, c.gran, 1)
	c.reads(d, good, 2*c.gran, 1)
}

func copyInDone(c *check, d driver.Device) {
	p, hs := c.chunks(2)
	for i := range 20 {
		src := pattern(2*c.gran, byte(i))
		want := slices.Clone(src)
		c.must(d.CopyIn(p, src), "write")
		clear(src)
		c.holds(d, p, want, "after a write whose slice was changed")
		c.must(d.CopyIn(p, want), "write")
		c.unmap(p, 2*c.gran)
		c.must(d.Sync(), "sync after unmapping what was just written")
		c.mapHandle(p, c.gran, hs[0])
		c.mapHandle(c.chunk(p, 1), c.gran, hs[1])
		c.access(p, 2*c.gran, grant(0, driver.AccessReadWrite))
	}
}

func fill(c *check, d driver.Device, p driver.Ptr) {
	for _, f := range []struct {
		pattern uint32
		width   int
		off, n  uint64
	}{
		{0xa1, 1, 3, 5}, {0xb1b2, 2, c.gran - 2, 3}, {0xc1c2c3c4, 4, c.gran - 8, 1000}, {7, 1, 0, 2 * c.gran}, {0x01020304, 4, 0, c.gran / 2},
	} {
		// All bytes are compared, so that a write beside the fill shows.
		want := make([]byte, 2*c.gran)
		c.must(d.CopyOut(want, p), "read")
		word := binary.NativeEndian.AppendUint32(nil, f.pattern)
		switch f.width {
		case 1:
			word = []byte{byte(f.pattern)}
		case 2:
			word = binary.NativeEndian.AppendUint16(nil, uint16(f.pattern))
		}
		copy(want[f.off:], bytes.Repeat(word, int(f.n)))
		c.must(d.Fill(p+driver.Ptr(f.off), f.pattern, f.width, f.n, d.CopyStream()), "fill %+v", f)
		c.must(d.SyncStream(d.CopyStream()), "sync")
		c.holds(d, p, want, "fill %+v", f)
	}
}

func fillBounds(c *check, d driver.Device, p driver.Ptr) {
	c.unmap(c.chunk(p, 1), c.gran)
	for _, f := range []struct {
		off   uint64
		width int
		n     uint64
	}{
		{0, 0, 8}, {0, 3, 8}, {0, 8, 8}, {0, -1, 8}, {1, 2, 8}, {2, 4, 8}, {0, 1, c.gran + 1}, {0, 2, c.gran/2 + 1}, {4, 4, c.gran / 4},
		{0, 4, 1 << 62}, {0, 4, 1<<62 + 1}, {0, 2, 1 << 63}, {0, 1, 1<<64 - 1}, {c.gran, 1, 1},
	} {
		c.want(d.Fill(p+driver.Ptr(f.off), 1, f.width, f.n, d.CopyStream()), fmt.Sprintf("fill %+v", f), driver.ErrInvalid)
	}
	c.must(d.Sync(), "sync afterwards")
	c.reads(d, p, c.gran, 0)
}

func deviceClose(c *check) {
	p, _ := c.chunks(1)
	other := c.dev(0)
	d := c.openDevice(0)
	s := c.newStream(d)
	e := c.newEvent(d, 0)
	c.write(d, p, c.gran, 1)
	c.must(d.FreeEvent(e), "free the event")
	c.must(d.FreeStream(s), "free the stream")
	c.must(d.Close(), "close")
	c.must(d.Close(), "close again")
	c.refuses(deviceCalls(d, p, s, e), "after Close", driver.ErrClosed)
	c.reads(other, p, c.gran, 1)
}

func deviceDo(c *check) {
	runs := 0
	want := errors.New("the function's own")
	err := c.dev(0).Do(func() error { runs++; return want })
	if !errors.Is(err, want) || runs != 1 {
		c.Errorf("Do returned %v after %d runs", err, runs)
	}
	c.must(c.dev(0).Do(func() error { return nil }), "do")
}

// refuses checks that each of the calls returns an error of that kind.
func (c *check) refuses(calls map[string]func() error, when string, kind error) {
	c.Helper()
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		c.want(c.returns(name, calls[name]), name+" "+when, kind)
	}
}

// deviceCalls is every call that a closed or lost device refuses on entry.
func deviceCalls(d driver.Device, p driver.Ptr, s driver.Stream, e driver.Event) map[string]func() error {
	buf := make([]byte, 16)
	return map[string]func() error{
		"MemInfo":    func() error { _, _, err := d.MemInfo(); return err },
		"CopyIn":     func() error { return d.CopyIn(p, buf) },
		"CopyOut":    func() error { return d.CopyOut(buf, p) },
		"Copy":       func() error { return d.Copy(p, p+64, 16, s) },
		"Fill":       func() error { return d.Fill(p, 1, 1, 16, s) },
		"NewStream":  func() error { return errOf(d.NewStream()) },
		"SyncStream": func() error { return d.SyncStream(s) },
		"StreamDone": func() error { return errOf(d.StreamDone(s)) },
		"Capturing":  func() error { return errOf(d.Capturing(s)) },
		"NewEvent":   func() error { return errOf(d.NewEvent(0)) },
		"SyncEvent":  func() error { return d.SyncEvent(e) },
		"Record":     func() error { return d.Record(e, s) },
		"Wait":       func() error { return d.Wait(s, e) },
		"Done":       func() error { return errOf(d.Done(e)) },
		"Elapsed":    func() error { return errOf(d.Elapsed(e, e)) },
		"Sync":       d.Sync,
		"Do":         func() error { return d.Do(func() error { return nil }) },
	}
}
