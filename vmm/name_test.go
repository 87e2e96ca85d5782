package vmm_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// hostile is a name that would break a line, a text or JSON, and how texts quote it.
const (
	hostile       = "a\n\x00\xff\"<b>\u202e"
	hostileQuoted = `"a\n\x00\xff\"<b>\u202e"`
)

func named(t testing.TB, d *vmm.Device, name string) *vmm.Range {
	t.Helper()
	g, err := d.NewRange(vmm.RangeOptions{Name: name, Max: 64 * page, Chunk: page})
	require.NoError(t, err)
	return g
}

// TestNameIsBounded: 64 bytes are a name, 65 are none.
func TestNameIsBounded(t *testing.T) {
	d := newWorld(t, 1).devs[0]
	longest := strings.Repeat("n", 64)
	g := named(t, d, longest)
	require.Equal(t, longest, g.Options().Name)
	require.NoError(t, g.Close())
	r, err := d.Reserve(page, vmm.ReserveOptions{Name: longest})
	require.NoError(t, err)
	require.NoError(t, r.Close())

	_, err = d.NewRange(vmm.RangeOptions{Name: longest + "n"})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorContains(t, err, "a name of 65 bytes, of at most 64")
	_, err = d.Reserve(page, vmm.ReserveOptions{Name: longest + "n"})
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// TestNameInErrors: an error has the name as it is, and quotes it in its text. Without a name the text has
// none.
func TestNameInErrors(t *testing.T) {
	d := newWorld(t, 1).devs[0]
	d.SetLimit(2 * page)
	for name, of := range map[string]string{"": "", "seq-17": ` of "seq-17"`, hostile: " of " + hostileQuoted} {
		g := named(t, d, name)
		for op, err := range map[string]error{"grow": g.Grow(3 * page), "append": g.Append(make([]byte, 3*page))} {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			var e *vmm.OpError
			require.ErrorAs(t, err, &e)
			require.Equal(t, name, e.Name)
			require.True(t, strings.HasPrefix(err.Error(), op+" "), err)
			require.Contains(t, err.Error(), " at "+g.Ptr().String()+of+" on "+d.String()+": ")
		}
		require.NoError(t, g.Close())
	}
	_, err := d.NewRange(vmm.RangeOptions{Name: "seq-17", Chunk: 3})
	require.ErrorContains(t, err, `make range of "seq-17" on `)
	_, err = d.Reserve(1, vmm.ReserveOptions{Name: "seq-17", Align: 3})
	require.ErrorContains(t, err, ` of "seq-17" on `)
}

// TestNameOfWhatIsOpen: Close and Report of a device, and a range's String, have the names.
func TestNameOfWhatIsOpen(t *testing.T) {
	w := newWorld(t, 2)
	d := w.devs[0]
	g := named(t, d, hostile)
	r, err := d.Reserve(page, vmm.ReserveOptions{Name: "ring"})
	require.NoError(t, err)
	require.NoError(t, g.Grant(vmm.AccessReadWrite, w.devs[1]))
	err = d.Close()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorContains(t, err, "range "+hostileQuoted+" at "+g.Ptr().String())
	require.ErrorContains(t, err, `reservation "ring" at `)
	require.ErrorContains(t, w.devs[1].Close(), "at "+g.Ptr().String()+" "+hostileQuoted)
	have := map[string]string{}
	for _, o := range d.Report().Open {
		have[o.Kind] = o.Name
	}
	require.Equal(t, map[string]string{"range": hostile, "reservation": "ring"}, have)
	require.Contains(t, g.String(), "range "+hostileQuoted+" on ")
	require.NoError(t, r.Close())
	require.NoError(t, g.Close())
}

// TestNameInHistory: all events of a range have its name, and so do those of what was created for it.
func TestNameInHistory(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	hog := chunk(t, w, 8*page)
	d.SetHistory(vmm.HistoryOptions{Events: 100})
	g := named(t, d, hostile)
	require.NoError(t, g.Append(make([]byte, 3*page)))
	require.NoError(t, g.SetLen(page))
	require.NoError(t, g.Clip())
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, g))
	require.NoError(t, vmm.Wake(g))
	d.SetLimit(d.Stats().Committed + page)
	stop := d.OnPressure(func(error) bool { return false })
	require.ErrorIs(t, g.Grow(2*page), vmm.ErrOutOfMemory)
	stop()
	require.NoError(t, errors.Join(g.Close(), hog.Close()))
	var kinds []string
	for _, e := range d.History(0) {
		if e.Kind == "release" {
			continue // it may have been cached for long
		}
		if e.Kind == "pressure" && e.Name == "" {
			continue // the device's cache
		}
		require.Equal(t, hostile, e.Name, e.Kind)
		if !slices.Contains(kinds, e.Kind) {
			kinds = append(kinds, e.Kind)
		}
	}
	require.ElementsMatch(t, []string{"reserve", "create", "map", "grow", "clip", "unmap", "sleep", "wake", "pressure", "refused", "close"}, kinds)
}

// TestPressureSaysWhoNeedsMemory: errors.As finds the operation, the device, the name and the bytes in what a
// function of OnPressure gets, and nothing is noted as refused that then succeeds.
func TestPressureSaysWhoNeedsMemory(t *testing.T) {
	for _, want := range []vmm.OpError{
		{Op: "append", Name: "seq-17", Size: 2 * page},
		{Op: "grow", Name: "seq-17", Size: 2 * page},
		{Op: "wake", Name: "seq-17", Size: 2 * page},
		{Op: "map", Name: "seq-17", Size: page},
		{Op: "create chunk", Size: 2 * page},
		{Op: "create or reuse chunk", Size: 2 * page},
		{Op: "allocate", Size: 2 * page},
	} {
		t.Run(want.Op, func(t *testing.T) {
			w := newWorld(t, 1)
			d := w.devs[0]
			g, other := named(t, d, "seq-17"), named(t, d, "another")
			var close func() error
			var c *vmm.Chunk
			var r *vmm.Reservation
			switch want.Op {
			case "wake":
				require.NoError(t, g.Grow(2*page))
				require.NoError(t, vmm.Sleep(vmm.SleepKeep, other, g))
			case "map":
				var err error
				r, err = d.Reserve(page, vmm.ReserveOptions{Name: "seq-17"})
				require.NoError(t, err)
				c = chunk(t, w, page)
			}
			do := func() (err error) {
				switch want.Op {
				case "append":
					return g.Append(make([]byte, 2*page))
				case "grow":
					return g.Grow(2 * page)
				case "wake":
					return vmm.Wake(other, g)
				case "map":
					return r.Map(0, c)
				case "create chunk":
					c, err = d.Create(2*page, vmm.Prop{})
				case "create or reuse chunk":
					c, err = d.CreateOrReuse(2*page, vmm.Prop{})
				case "allocate":
					var a *vmm.Range
					if a, err = d.Alloc(2 * page); err == nil {
						close = a.Close
					}
				}
				return err
			}
			hog := spent(t, w)
			if want.Op == "map" {
				w.refuse("Map", 1, vmm.ErrOutOfMemory)
			}
			d.SetHistory(vmm.HistoryOptions{Events: 100})
			calls := 0
			stop := d.OnPressure(func(need error) bool {
				calls++
				var e *vmm.OpError
				require.ErrorAs(t, need, &e)
				require.Equal(t, want.Op, e.Op)
				require.Equal(t, d.String(), e.Device)
				require.Equal(t, want.Name, e.Name)
				require.Equal(t, want.Size, e.Size)
				require.ErrorIs(t, need, vmm.ErrOutOfMemory)
				return hog.Close() == nil
			})
			require.NoError(t, do())
			require.Equal(t, 1, calls)
			require.NotContains(t, kindsOf(d.History(0)), "refused")
			stop()
			if close != nil {
				require.NoError(t, close())
			}
			if r != nil {
				require.NoError(t, r.Close())
			}
			require.NoError(t, errors.Join(c.Close(), g.Close(), other.Close()))
		})
	}
}

// TestWakeNamesTheRangeThatFailed, not the first of several.
func TestWakeNamesTheRangeThatFailed(t *testing.T) {
	d := newWorld(t, 1).devs[0]
	first, second := named(t, d, "first"), named(t, d, "second")
	require.NoError(t, first.Grow(page))
	require.NoError(t, second.Grow(2*page))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, first, second))
	d.SetLimit(2 * page)
	err := vmm.Wake(first, second)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	var e *vmm.OpError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "second", e.Name)
	require.EqualValues(t, 2*page, e.Size)
	require.NoError(t, errors.Join(first.Close(), second.Close()))
}
