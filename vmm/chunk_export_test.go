package vmm_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// exporter is a host driver that exports every span, and whose fabric is a table of
// descriptors.
type exporter struct {
	*host.Driver
	t     *testing.T
	spans [][2]uint64        // what the caller wanted
	flags driver.DMABufFlags // the last caller's
	names map[[64]byte]int
}

func (x *exporter) ExportRange(p driver.Ptr, size uint64, flags driver.DMABufFlags) (int, error) {
	x.spans, x.flags = append(x.spans, [2]uint64{uint64(p), size}), flags
	null, err := os.Open(os.DevNull)
	require.NoError(x.t, err)
	x.t.Cleanup(func() { require.NoError(x.t, null.Close()) })
	return int(null.Fd()), nil
}

func (x *exporter) ExportFabric(h driver.Handle) (name [64]byte, err error) {
	fd, err := x.Export(h)
	if err == nil {
		name[0] = byte(len(x.names) + 1)
		x.names[name] = fd
	}
	return name, err
}

func (x *exporter) ImportFabric(name [64]byte, size uint64, p driver.Prop) (driver.Handle, error) {
	fd, ok := x.names[name]
	if !ok {
		return 0, &driver.CallError{Call: "ImportFabric", Kind: driver.ErrInvalid}
	}
	return x.Import(fd, size, p)
}

func exporting(t *testing.T) (*world, *exporter) {
	t.Helper()
	x := &exporter{Driver: host.New(host.Config{Devices: 1, Memory: 512 * page, Granularity: page}), t: t, names: map[[64]byte]int{}}
	return worldOf(t, 1, x, nil), x
}

func TestExportDMABuf(t *testing.T) {
	w, x := exporting(t)
	g, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 64 * page, Chunk: 2 * page, Share: vmm.ShareFD})
	require.NoError(t, err)
	require.NoError(t, g.Append(pattern(3*page, 1)))
	at := uint64(g.Ptr())
	for _, s := range [][2]uint64{{0, 4 * page}, {page, 2 * page}, {3 * page, page}} {
		fd, err := g.ExportDMABuf(s[0], s[1])
		require.NoError(t, err)
		require.Positive(t, fd)
		require.Equal(t, [2]uint64{at + s[0], s[1]}, x.spans[len(x.spans)-1])
	}
	asked := len(x.spans)
	for _, c := range []struct {
		off, size uint64
		err       error
	}{
		{0, 0, vmm.ErrInvalid}, {0, 5 * page, vmm.ErrInvalid}, {4 * page, page, vmm.ErrInvalid}, {0, 64*page + 1, vmm.ErrBounds},
		{64 * page, page, vmm.ErrBounds}, {page, 1<<64 - page, vmm.ErrBounds},
	} {
		fd, err := g.ExportDMABuf(c.off, c.size)
		require.ErrorIs(t, err, c.err, "%d bytes at %d", c.size, c.off)
		require.Equal(t, -1, fd)
	}
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	_, err = g.ExportDMABuf(0, page)
	require.ErrorIs(t, err, vmm.ErrAsleep)
	require.NoError(t, vmm.Wake(g))
	w.refuse("ExportRange", 1, errInjected)
	fd, err := g.ExportDMABuf(0, page)
	require.ErrorIs(t, err, errInjected)
	require.Equal(t, -1, fd)
	require.Len(t, x.spans, asked)
	require.NoError(t, g.Close())
	_, err = g.ExportDMABuf(0, page)
	require.ErrorIs(t, err, vmm.ErrClosed)
	var none *vmm.Range
	_, err = none.ExportDMABuf(0, page)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.end()
}

// TestExportedMemoryIsNeverKept: contract 6. Memory that a card has used must not become
// another range's memory, so memory that may be kept is not exported.
func TestExportedMemoryIsNeverKept(t *testing.T) {
	w, x := exporting(t)
	d := w.devs[0]
	d.SetReleaseThreshold(64 * page)
	g := ranged(t, w, page)
	require.NoError(t, g.Append(pattern(page, 1)))
	_, err := g.ExportDMABuf(0, page)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.Empty(t, x.spans)
	require.NoError(t, g.Close())

	r, err := d.Reserve(4*page, vmm.ReserveOptions{})
	require.NoError(t, err)
	shared, err := d.Create(page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	private := chunk(t, w, page)
	require.NoError(t, r.Map(0, shared, private))
	require.NoError(t, r.Map(3*page, shared))
	require.NoError(t, shared.Close())
	require.NoError(t, private.Close())
	_, err = r.ExportDMABuf(0, page)
	require.NoError(t, err)
	_, err = r.ExportDMABuf(0, 2*page)
	require.ErrorIs(t, err, vmm.ErrInvalid, "the second chunk is private")
	_, err = r.ExportDMABuf(2*page, 2*page)
	require.ErrorIs(t, err, vmm.ErrInvalid, "a hole")
	_, err = r.ExportDMABuf(3*page, page)
	require.NoError(t, err)
	vmm.PretendPrivate(r.Segments()[0])
	_, err = r.ExportDMABuf(0, page)
	require.ErrorIs(t, err, vmm.ErrInvalid, "the control: it is the chunk that says so")
	require.NoError(t, r.Close())
	_, err = d.Trim(0)
	require.NoError(t, err)
	w.end()
}

func TestFabric(t *testing.T) {
	w, x := exporting(t)
	d := w.devs[0]
	d.SetReleaseThreshold(64 * page)
	c, err := d.Create(page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	name, err := c.ExportFabric()
	require.NoError(t, err)
	again, err := d.ImportFabric(name, page, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(t, err)
	require.EqualValues(t, page, again.Size())
	first, err := c.Properties()
	require.NoError(t, err)
	second, err := again.Properties()
	require.NoError(t, err)
	require.Equal(t, first.Location, second.Location)
	_, err = d.ImportFabric([64]byte{9}, page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.refuse("ExportFabric", 1, errInjected)
	_, err = c.ExportFabric()
	require.ErrorIs(t, err, errInjected)

	r, err := d.Reserve(2*page, vmm.ReserveOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, c, again))
	require.NoError(t, d.CopyIn(r.Ptr(), []byte{7}))
	got := make([]byte, 1)
	require.NoError(t, d.CopyOut(got, r.Ptr()+page))
	require.Equal(t, []byte{7}, got)
	require.NoError(t, c.Close())
	require.NoError(t, again.Close())
	require.NoError(t, r.Close())
	require.Zero(t, d.Stats().Cached, "contract 6: what was shared is not kept")
	_, err = c.ExportFabric()
	require.ErrorIs(t, err, vmm.ErrClosed)
	for _, fd := range x.names {
		require.NoError(t, os.NewFile(uintptr(fd), "exported").Close())
	}
	var none *vmm.Chunk
	_, err = none.ExportFabric()
	require.ErrorIs(t, err, vmm.ErrInvalid)
	var nilDev *vmm.Device
	_, err = nilDev.ImportFabric(name, page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	w.end()
	_, err = d.ImportFabric(name, page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// TestNothingToExportWith: an interface that is missing and one that returns
// ErrNotSupported mean the same.
func TestNothingToExportWith(t *testing.T) {
	h := host.New(host.Config{Devices: 1})
	for _, drv := range []driver.Driver{h, plainDriver{host.New(host.Config{Devices: 1})}} {
		d, err := vmm.OpenDriver(drv, 0)
		require.NoError(t, err)
		g, err := d.NewRange(vmm.RangeOptions{Max: 4 << 20, Share: vmm.ShareFD})
		require.NoError(t, err)
		require.NoError(t, g.Append([]byte{1}))
		_, err = g.ExportDMABuf(0, 4096)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		c, err := d.Create(2<<20, vmm.Prop{})
		require.NoError(t, err)
		_, err = c.ExportFabric()
		require.ErrorIs(t, err, vmm.ErrNotSupported)
		_, err = d.ImportFabric([64]byte{}, 2<<20, vmm.Prop{})
		require.ErrorIs(t, err, vmm.ErrNotSupported)
		require.NoError(t, c.Close())
		require.NoError(t, g.Close())
		require.NoError(t, d.Close())
	}
}
