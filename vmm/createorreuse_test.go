package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// filled returns a reservation of one page on which the chunk is mapped.
func filled(t *testing.T, d *vmm.Device, c *vmm.Chunk, contents []byte) *vmm.Reservation {
	t.Helper()
	r, err := d.Reserve(c.Size(), vmm.ReserveOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Map(0, c))
	if contents != nil {
		require.NoError(t, d.CopyIn(r.Ptr(), contents))
	}
	return r
}

// TestMemoryGoesRound: what a range gives up serves CreateOrReuse, and what a Chunk gives up,
// mapped or not, serves a range; nothing is created twice.
func TestMemoryGoesRound(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(64 * page)
	g := newRange(t, d, vmm.RangeOptions{Max: 4 * page, Chunk: page})
	require.NoError(t, g.Append(pattern(page, 3)))
	require.NoError(t, g.Close())
	require.EqualValues(t, page, d.Stats().Cached)

	c, err := d.CreateOrReuse(page, vmm.Prop{})
	require.NoError(t, err)
	require.EqualValues(t, 1, d.Stats().Hits)
	require.Zero(t, d.Stats().Cached)
	r := filled(t, d, c, nil)
	got := make([]byte, page)
	require.NoError(t, d.CopyOut(got, r.Ptr()))
	require.Equal(t, pattern(page, 3), got, "what the range wrote")
	require.NoError(t, d.CopyIn(r.Ptr(), pattern(page, 4)))
	require.NoError(t, c.Close())
	require.Zero(t, d.Stats().Cached, "it is mapped")
	require.NoError(t, r.Close())
	require.EqualValues(t, page, d.Stats().Cached)

	g = newRange(t, d, vmm.RangeOptions{Max: 4 * page, Chunk: page})
	require.NoError(t, g.Grow(page))
	require.NoError(t, g.SetLen(page))
	require.Equal(t, pattern(page, 4), shown(t, g, 0), "what was written through the chunk")
	require.NoError(t, g.Close())
	g = newRange(t, d, vmm.RangeOptions{Max: 4 * page, Chunk: page, Zero: true})
	require.NoError(t, g.Grow(page))
	require.NoError(t, g.SetLen(page))
	require.Equal(t, make([]byte, page), shown(t, g, 0), "a range that promises zeros fills it")
	require.NoError(t, g.Close())
	require.Equal(t, 1, w.made("Create"))
	require.Zero(t, w.made("Release"))
	require.EqualValues(t, 1, d.Stats().Creates)
	w.end()
}

// TestCreateOrReuseTakesOnlyItsKind: cached memory of another size, property or device is
// left alone, and memory that can leave the process is neither taken nor cached.
func TestCreateOrReuseTakesOnlyItsKind(t *testing.T) {
	w := worldOn(t, 2, host.Config{Devices: 2, Memory: 64 * page, Granularity: page})
	d := w.devs[0]
	d.SetReleaseThreshold(64 * page)
	keepChunks(t, w, 1, 4)
	for name, c := range map[string]struct {
		dev    *vmm.Device
		pages  uint64
		prop   vmm.Prop
		cached uint64 // pages that come to the cache
	}{
		"another device":           {w.devs[1], 1, vmm.Prop{}, 0},
		"shareable":                {d, 1, vmm.Prop{Share: vmm.ShareFD}, 0},
		"memory of another device": {d, 1, vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice, ID: 1}}, 0},
		"another size":             {d, 2, vmm.Prop{}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := c.dev.CreateOrReuse(c.pages*page, c.prop)
			require.NoError(t, err)
			require.Equal(t, c.pages*page, x.Size())
			require.EqualValues(t, 5*page, d.Stats().Cached)
			require.Zero(t, d.Stats().Hits)
			require.NoError(t, x.Close())
			require.EqualValues(t, (5+c.cached)*page, d.Stats().Cached)
			d.SetReleaseThreshold(0)
			d.SetReleaseThreshold(64 * page)
			keepChunks(t, w, 1, 4)
		})
	}
	w.end()
}

// TestCreateOrReuseCreates where nothing is cached, within the limit, and with what
// OnPressure releases; an error leaves nothing behind.
func TestCreateOrReuseCreates(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(64 * page)
	w.refuse("Create", 1, errInjected)
	_, err := d.CreateOrReuse(page, vmm.Prop{})
	require.ErrorIs(t, err, errInjected)
	for _, size := range []uint64{0, page + 1} {
		_, err = d.CreateOrReuse(size, vmm.Prop{})
		require.ErrorIs(t, err, vmm.ErrInvalid)
	}
	hog := spent(t, w)
	_, err = d.CreateOrReuse(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	asked := 0
	stop := d.OnPressure(func(error) bool {
		asked++
		return asked == 1 && hog.Close() == nil
	})
	defer stop()
	c, err := d.CreateOrReuse(page, vmm.Prop{})
	require.NoError(t, err)
	require.Equal(t, 1, asked)
	require.NoError(t, c.Close())
	require.EqualValues(t, page, d.Stats().Cached)
	c, err = d.CreateOrReuse(page, vmm.Prop{Location: vmm.Location{Kind: vmm.LocationDevice}})
	require.NoError(t, err, "the location by its number")
	require.EqualValues(t, 1, d.Stats().Hits)
	r := filled(t, d, c, nil)
	again, err := r.Segments()[0].Chunk()
	require.NoError(t, err)
	for _, x := range []*vmm.Chunk{again, c} {
		require.NoError(t, x.Close())
	}
	require.Zero(t, d.Stats().Cached, "it is mapped")
	require.NoError(t, r.Close())
	require.EqualValues(t, page, d.Stats().Cached)
	w.end()
	_, err = d.CreateOrReuse(page, vmm.Prop{})
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// TestPartsAreNotListed: a chunk that is part of something is not named by itself, and keeps the
// device open all the same.
func TestPartsAreNotListed(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	for _, create := range []func(*vmm.Device, uint64, vmm.Prop, *memsample.Source) (*vmm.Chunk, error){inside.VMM.CreatePart, inside.VMM.TryCreatePart} {
		c, err := create(d, page, vmm.Prop{}, &memsample.Source{Kind: memsample.Pool})
		require.NoError(t, err)
		require.Empty(t, d.Report().Open)
		require.EqualValues(t, page, d.Stats().Committed)
		require.ErrorIs(t, d.Close(), vmm.ErrBusy)
		require.NoError(t, c.Close())
		require.Zero(t, d.Stats().Committed)
	}
	hog := spent(t, w)
	_, err := inside.VMM.TryCreatePart(d, page, vmm.Prop{}, &memsample.Source{Kind: memsample.Pool})
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, hog.Close())
	w.end()
	_, err = inside.VMM.CreatePart(d, page, vmm.Prop{}, &memsample.Source{Kind: memsample.Pool})
	require.ErrorIs(t, err, vmm.ErrClosed)
}
