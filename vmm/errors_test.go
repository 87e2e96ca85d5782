package vmm_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// TestBadInput: the error is typed and names operation, size and device, and nothing
// changes.
func TestBadInput(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	other := newWorld(t, 1)
	g := ranged(t, w, 2*page)
	r := holed(t, w)
	c := chunk(t, w, page)
	foreign := chunk(t, other, page)
	gone := chunk(t, w, page)
	require.NoError(t, gone.Close())
	s := stream(t, d)
	before, beforeR := w.picture(g), w.picture(r)
	free, _, err := d.MemInfo()
	require.NoError(t, err)
	private, err := d.Create(page, vmm.Prop{})
	require.NoError(t, err)
	fabric := vmm.ErrNotSupported
	if onCUDA {
		fabric = vmm.ErrPermission // if nothing manages the fabric
	}

	for _, c := range []struct {
		name string
		want error
		do   func() error
	}{
		{"reserve nothing", vmm.ErrInvalid, func() error { _, err := d.Reserve(0, vmm.ReserveOptions{}); return err }},
		{"reserve 2^64-1", vmm.ErrInvalid, func() error { _, err := d.Reserve(math.MaxUint64, vmm.ReserveOptions{}); return err }},
		{"reserve 2^63", vmm.ErrAddressSpace, func() error { _, err := d.Reserve(1<<63, vmm.ReserveOptions{}); return err }},
		{"an odd alignment", vmm.ErrInvalid, func() error { _, err := d.Reserve(page, vmm.ReserveOptions{Align: 3 * page}); return err }},
		{"create nothing", vmm.ErrInvalid, func() error { _, err := d.Create(0, vmm.Prop{}); return err }},
		{"create part of a granule", vmm.ErrInvalid, func() error { _, err := d.Create(page+1, vmm.Prop{}); return err }},
		{"create too much", vmm.ErrOutOfMemory, func() error { _, err := d.Create(1<<40, vmm.Prop{}); return err }},
		{"create 2^63", vmm.ErrOutOfMemory, func() error { _, err := d.Create(1<<63, vmm.Prop{}); return err }},
		{"create elsewhere", vmm.ErrNoDevice, func() error {
			_, err := d.Create(page, vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: 99}})
			return err
		}},
		{"alloc nothing", vmm.ErrInvalid, func() error { _, err := d.Alloc(0); return err }},
		{"alloc too much", vmm.ErrOutOfMemory, func() error { _, err := d.Alloc(1 << 40); return err }},
		{"chunks of part of a granule", vmm.ErrInvalid, func() error { _, err := d.NewRange(vmm.RangeOptions{Chunk: 5}); return err }},
		{"a maximum that overflows", vmm.ErrInvalid, func() error { _, err := d.NewRange(vmm.RangeOptions{Max: math.MaxUint64}); return err }},
		{"fabric", fabric, func() error { _, err := d.Create(page, vmm.Prop{Share: vmm.ShareFabric}); return err }},
		{"map nothing", vmm.ErrInvalid, func() error { return r.Map(3 * page) }},
		{"map a nil chunk", vmm.ErrInvalid, func() error { return r.Map(3*page, nil) }},
		{"map a closed chunk", vmm.ErrClosed, func() error { return r.Map(3*page, gone) }},
		{"map another driver's chunk", vmm.ErrInvalid, func() error { return r.Map(3*page, foreign) }},
		{"map at an odd offset", vmm.ErrInvalid, func() error { return r.Map(page/2, c) }},
		{"map over what is mapped", vmm.ErrInvalid, func() error { return r.Map(page, c) }},
		{"map beyond the end", vmm.ErrBounds, func() error { return r.Map(64*page, c) }},
		{"map at 2^63", vmm.ErrBounds, func() error { return r.Map(1<<63, c) }},
		{"map at the last address", vmm.ErrBounds, func() error { return r.Map(math.MaxUint64-page+1, c) }},
		{"unmap nothing", vmm.ErrBounds, func() error { return r.Unmap(0, 0) }},
		{"unmap part of a chunk", vmm.ErrInvalid, func() error { return r.Unmap(page, page) }},
		{"unmap a hole", vmm.ErrInvalid, func() error { return r.Unmap(0, 4*page) }},
		{"unmap 2^63", vmm.ErrBounds, func() error { return r.Unmap(0, 1<<63) }},
		{"unmap an overflow", vmm.ErrBounds, func() error { return r.Unmap(page, math.MaxUint64) }},
		{"hold beyond the reservation", vmm.ErrBounds, func() error { _, err := r.Hold(0, 65*page); return err }},
		{"hold beyond the length", vmm.ErrBounds, func() error { _, err := g.Hold(0, 2*page+1); return err }},
		{"grow beyond the maximum", vmm.ErrFull, func() error { return g.Grow(g.Max()) }},
		{"grow by an overflow", vmm.ErrFull, func() error { return g.Grow(math.MaxUint64) }},
		{"grow by 2^63", vmm.ErrFull, func() error { return g.Grow(1 << 63) }},
		{"append beyond the maximum", vmm.ErrFull, func() error { return g.Append(make([]byte, 255*page)) }},
		{"a length beyond the capacity", vmm.ErrBounds, func() error { return g.SetLen(g.Cap() + 1) }},
		{"a length of 2^63", vmm.ErrBounds, func() error { return g.SetLen(1 << 63) }},
		{"read at a negative offset", vmm.ErrBounds, func() error { _, err := g.ReadAt(make([]byte, 1), -1); return err }},
		{"write beyond the length", vmm.ErrBounds, func() error { _, err := g.WriteAt([]byte{1}, 2*page); return err }},
		{"write across the length", vmm.ErrBounds, func() error { _, err := g.WriteAt([]byte{1, 2}, 2*page-1); return err }},
		{"write at a negative offset", vmm.ErrBounds, func() error { _, err := g.WriteAt([]byte{1}, -1); return err }},
		{"write at the last offset", vmm.ErrBounds, func() error { _, err := g.WriteAt([]byte{1}, math.MaxInt64); return err }},
		{"copy to nowhere", vmm.ErrInvalid, func() error { return d.CopyIn(page, []byte{1}) }},
		{"copy to what is not mapped", vmm.ErrBounds, func() error { return d.CopyIn(r.Ptr()+3*page, []byte{1}) }},
		{"copy across a hole", vmm.ErrBounds, func() error { return d.CopyOut(make([]byte, 10*page), r.Ptr()) }},
		{"copy across the end of addresses", vmm.ErrBounds, func() error { return d.CopyIn(math.MaxUint64, []byte{1, 2}) }},
		{"queue a copy to nowhere", vmm.ErrInvalid, func() error { return s.Copy(page, g.Ptr(), 1) }},
		{"queue a copy from a hole", vmm.ErrBounds, func() error { return s.Copy(g.Ptr(), r.Ptr()+3*page, page) }},
		{"fill odd widths", vmm.ErrInvalid, func() error { return s.Fill(g.Ptr(), 0, 3, 1) }},
		{"fill an overflow", vmm.ErrInvalid, func() error { return s.Fill(g.Ptr(), 0, 4, 1<<63) }},
		{"fill zero widths", vmm.ErrInvalid, func() error { return s.Fill(g.Ptr(), 0, 0, 1) }},
		{"wait for no event", vmm.ErrInvalid, func() error { return s.Wait(nil) }},
		{"use no stream", vmm.ErrInvalid, func() error { return g.UsedBy() }},
		{"use a nil stream", vmm.ErrInvalid, func() error { return g.UsedBy(nil) }},
		{"use another driver's stream", vmm.ErrInvalid, func() error { return g.UsedBy(stream(t, other.devs[0])) }},
		{"grant nothing", vmm.ErrInvalid, func() error { return g.Grant(vmm.AccessNone, w.devs[1]) }},
		{"grant to no device", vmm.ErrInvalid, func() error { return g.Grant(vmm.AccessRead) }},
		{"grant to nil", vmm.ErrInvalid, func() error { return g.Grant(vmm.AccessRead, nil) }},
		{"grant twice in one", vmm.ErrInvalid, func() error { return g.Grant(vmm.AccessRead, w.devs[1], w.devs[1]) }},
		{"grant to another driver", vmm.ErrInvalid, func() error { return g.Grant(vmm.AccessRead, other.devs[0]) }},
		{"revoke the owner", vmm.ErrInvalid, func() error { return g.Revoke(d) }},
		{"export what is private", vmm.ErrInvalid, func() error { _, err := private.Export(); return err }},
		{"import nothing", vmm.ErrInvalid, func() error { _, err := d.Import(-1, page, vmm.Prop{Share: vmm.ShareFD}); return err }},
		{"run nothing", vmm.ErrInvalid, func() error { return d.Do(nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do()
			require.ErrorIs(t, err, c.want)
			var op *vmm.OpError
			require.ErrorAs(t, err, &op)
			require.Equal(t, d.String(), op.Device, err)
			require.NotEmpty(t, op.Op)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	require.False(t, errors.Is(func() error { _, err := d.Reserve(1<<63, vmm.ReserveOptions{}); return err }(), vmm.ErrOutOfMemory),
		"out of addresses is not out of memory")

	require.Equal(t, before, w.picture(g))
	require.Equal(t, beforeR, w.picture(r))
	require.NoError(t, private.Close())
	now, _, err := d.MemInfo()
	require.NoError(t, err)
	require.Equal(t, free, now)
}

// TestInnerReservation: the reservation of a Range returns ErrBusy to other callers.
func TestInnerReservation(t *testing.T) {
	w := newWorld(t, 1)
	g := ranged(t, w, 3*page)
	c := chunk(t, w, page)
	r, off, ok := w.devs[0].Lookup(g.Ptr() + 5)
	require.True(t, ok)
	require.EqualValues(t, 5, off)
	require.ErrorIs(t, r.Map(8*page, c), vmm.ErrBusy)
	require.ErrorIs(t, r.Unmap(0, page), vmm.ErrBusy)
	require.ErrorIs(t, r.Close(), vmm.ErrBusy)
	_, _, ok = w.devs[0].Lookup(g.Ptr() + vmm.Ptr(g.Max()))
	require.False(t, ok)
	_, _, ok = w.devs[0].Lookup(0)
	require.False(t, ok)
	require.NoError(t, c.Close())
	require.NoError(t, g.Close())
	_, _, ok = w.devs[0].Lookup(g.Ptr())
	require.False(t, ok)
	w.end()
}

func TestOpenNames(t *testing.T) {
	for _, c := range []struct {
		name string
		want error
		text string
	}{
		{"host:99", vmm.ErrNoDevice, "99"},
		{"host:-1", vmm.ErrNoDevice, "-1"},
		{"host:GPU-x", vmm.ErrNoDevice, "GPU-x"},
		{"host:", vmm.ErrNoDevice, ""},
		{"", vmm.ErrInvalid, "cuda:N"},
		{"gpu:0", vmm.ErrInvalid, "cuda:N"},
		{"\x1b[2J", vmm.ErrInvalid, `"\x1b[2J"`},
		{"host:\x1b[2J", vmm.ErrNoDevice, `none is "\x1b[2J"`},
		{"host?page=\x1b[2J", vmm.ErrInvalid, `page="\x1b[2J"`},
		{"host?\x1b[2J=1", vmm.ErrInvalid, `"\x1b[2J"`},
	} {
		_, err := vmm.Open(c.name)
		require.ErrorIs(t, err, c.want, c.name)
		require.ErrorContains(t, err, c.text)
		require.NotContains(t, err.Error(), "\x1b")
		var op *vmm.OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, c.name, op.Device)
	}
	if _, err := vmm.Open("cuda:0"); errors.Is(err, vmm.ErrNoDriver) {
		require.ErrorContains(t, err, "libcuda.so.1", "it says what was looked for")
		d, err := vmm.Open("auto")
		require.NoError(t, err)
		require.Equal(t, "host:0", d.String())
		require.NoError(t, d.Close())
	}
	d, err := vmm.Open("host:1")
	require.NoError(t, err)
	require.Equal(t, "host:1", d.String())
	require.NoError(t, d.Close())
	require.NoError(t, d.Close(), "twice is fine")

	_, err = vmm.OpenDriver(nil, 0)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = vmm.OpenDriver(host.New(host.Config{}), 7)
	require.ErrorIs(t, err, vmm.ErrNoDevice)

	all, err := vmm.Devices()
	require.NoError(t, err)
	require.Equal(t, "host:0", all[len(all)-1].Open)
}

func TestStandardErrors(t *testing.T) {
	require.ErrorIs(t, vmm.ErrNotSupported, errors.ErrUnsupported)
	require.ErrorIs(t, vmm.ErrClosed, os.ErrClosed)
	require.ErrorIs(t, vmm.ErrInvalid, os.ErrInvalid)
	require.ErrorIs(t, vmm.ErrPermission, fs.ErrPermission)
}

// TestNilReceivers return an error or a zero value and never panic.
func TestNilReceivers(t *testing.T) {
	var d *vmm.Device
	var r *vmm.Reservation
	var g *vmm.Range
	var c *vmm.Chunk
	var s *vmm.Stream
	var e *vmm.Event
	for name, err := range map[string]error{
		"Device.Reserve":     second(d.Reserve(1, vmm.ReserveOptions{})),
		"Device.Create":      second(d.Create(1, vmm.Prop{})),
		"Device.Import":      second(d.Import(1, 1, vmm.Prop{})),
		"Device.NewRange":    second(d.NewRange(vmm.RangeOptions{})),
		"Device.Alloc":       second(d.Alloc(1)),
		"Device.NewStream":   second(d.NewStream()),
		"Device.Raw":         second(d.Raw()),
		"Device.Sync":        d.Sync(),
		"Device.Do":          d.Do(func() error { return nil }),
		"Device.Supports":    d.Supports(vmm.FeatureVMM),
		"Device.CopyIn":      d.CopyIn(1, []byte{1}),
		"Device.CopyOut":     d.CopyOut([]byte{1}, 1),
		"Device.Trim":        second(d.Trim(0)),
		"Sleep":              vmm.Sleep(vmm.SleepKeep, g),
		"Wake":               vmm.Wake(g),
		"Reservation.Map":    r.Map(0, nil),
		"Reservation.Unmap":  r.Unmap(0, 1),
		"Reservation.Grant":  r.Grant(vmm.AccessRead, nil),
		"Reservation.UsedBy": r.UsedBy(nil),
		"Reservation.Hold":   second(r.Hold(0, 0)),
		"Revoke":             r.Revoke(nil),
		"Range.Grow":         g.Grow(1),
		"Range.Append":       g.Append([]byte{1}),
		"Range.Write":        second(g.Write([]byte{1})),
		"Range.SetLen":       g.SetLen(0),
		"Range.Clip":         g.Clip(),
		"Range.ReadAt":       second(g.ReadAt(nil, 0)),
		"Range.WriteAt":      second(g.WriteAt(nil, 0)),
		"Range.ReadFrom":     second(g.ReadFrom(strings.NewReader("x"))),
		"Range.WriteTo":      second(g.WriteTo(nil)),
		"Range.Host":         second(g.Host()),
		"Range.Hold":         second(g.Hold(0, 0)),
		"Range.Grant":        g.Grant(vmm.AccessRead, nil),
		"Range.UsedBy":       g.UsedBy(nil),
		"EnablePeers":        vmm.EnablePeers(vmm.AccessRead, []*vmm.Device{nil}, nil),
		"Chunk.Export":       second(c.Export()),
		"Stream.Copy":        s.Copy(1, 1, 1),
		"Stream.Fill":        s.Fill(1, 0, 1, 1),
		"Stream.Record":      second(s.Record()),
		"Stream.Wait":        s.Wait(e),
		"Stream.Sync":        s.Sync(),
		"Event.Done":         second(e.Done()),
		"Event.Sync":         e.Sync(),
	} {
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, name)
	}
	for name, err := range map[string]error{
		"Device": d.Close(), "Reservation": r.Close(), "Range": g.Close(), "Chunk": c.Close(), "Stream": s.Close(), "Event": e.Close(),
	} {
		require.NoError(t, err, name)
	}
	require.Zero(t, d.Stats())
	require.Zero(t, d.SetReleaseThreshold(1)+d.SetLimit(1))
	d.ResetPeaks()
	g.ResetPeaks()
	require.Zero(t, d.Info())
	require.Zero(t, d.Report())
	require.Nil(t, d.Driver())
	require.Zero(t, r.Ptr()+g.Ptr())
	require.Zero(t, r.Size()+g.Len()+g.Cap()+g.Max()+c.Size()+r.Generation())
	require.Nil(t, r.Device())
	require.Nil(t, r.Segments())
	require.Zero(t, g.Stats())
	require.Zero(t, g.Options())
	require.Zero(t, s.Raw())
	<-r.Changed()
	w := d.WrapStream(1)
	require.ErrorIs(t, w.Sync(), vmm.ErrInvalid, "no stream of a nil device")
	require.NoError(t, w.Close())
	_, err := vmm.Segment{}.Chunk()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = c.Properties()
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

func second[T any](_ T, err error) error { return err }
