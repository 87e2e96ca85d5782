package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// tank is something that is built on a reservation, as a pool is.
type tank struct{ r *vmm.Reservation }

func (*tank) String() string { return "tank of the test" }

func (k *tank) Reservation() *vmm.Reservation {
	if k == nil {
		return nil
	}
	return k.r
}

// anyText is an owner whose text is the program's, or another one's.
type anyText string

func (a anyText) String() string { return string(a) }

// newTank returns one on the device with a page of memory.
func newTank(t *testing.T, d *vmm.Device) *tank {
	t.Helper()
	k := &tank{}
	var err error
	k.r, err = d.Reserve(4*page, vmm.ReserveOptions{Owner: k})
	require.NoError(t, err)
	c, err := d.Create(page, vmm.Prop{})
	require.NoError(t, err)
	require.NoError(t, k.r.Map(0, c))
	require.NoError(t, c.Close())
	return k
}

// TestOwner: what a reservation is part of is found by an address, and named where the
// reservation would be, if it has a name.
func TestOwner(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	k, g := newTank(t, d), newRange(t, d, vmm.RangeOptions{Max: page})
	plain, err := d.Reserve(page, vmm.ReserveOptions{})
	require.NoError(t, err)
	nameless, err := d.Reserve(page, vmm.ReserveOptions{Owner: 7})
	require.NoError(t, err)
	poses, err := d.Reserve(page, vmm.ReserveOptions{Owner: g})
	require.NoError(t, err)

	r, off, ok := d.Lookup(k.r.Ptr() + 5)
	require.True(t, ok)
	require.EqualValues(t, 5, off)
	require.Same(t, k, r.Owner())
	require.Same(t, g, g.Reservation().Owner())
	require.Nil(t, plain.Owner())
	require.Equal(t, 7, nameless.Owner())
	require.Nil(t, (*vmm.Reservation)(nil).Owner())
	_, _, ok = d.LookupRange(poses.Ptr())
	require.False(t, ok, "it belongs to a range, but is not inside it")
	require.NoError(t, poses.Close(), "nor does it behave like that")

	kinds := map[vmm.Ptr]string{}
	for _, o := range d.Report().Open {
		kinds[o.Addr] = o.Kind
	}
	require.Equal(t, map[vmm.Ptr]string{
		k.r.Ptr(): "tank of the test", g.Ptr(): "range", plain.Ptr(): "reservation", nameless.Ptr(): "reservation",
	}, kinds)
	err = d.Close()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.Contains(t, err.Error(), "tank of the test at ")
	odd, err := d.Reserve(page, vmm.ReserveOptions{Owner: anyText("a\n\x1b[2J\xff")})
	require.NoError(t, err)
	require.Contains(t, d.Close().Error(), `"a\n\x1b[2J\xff" at `)
	require.NoError(t, odd.Close())
	closeAll(t, g)
	for _, r := range []*vmm.Reservation{k.r, plain, nameless} {
		require.NoError(t, r.Close())
	}
	w.end()
}

// TestEnablePeersOfAnyMemory: ranges, reservations and what is built on them, all or nothing,
// also for what is mapped later.
func TestEnablePeersOfAnyMemory(t *testing.T) {
	w := newWorld(t, 3)
	d := w.devs[0]
	k, g, r := newTank(t, d), ranged(t, w, page), holed(t, w)
	of := []vmm.Memory{k, g, r}
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs[1:], of...))
	c := chunk(t, w, page)
	require.NoError(t, k.r.Map(page, c))
	require.NoError(t, c.Close())
	for _, m := range of {
		for _, s := range m.Reservation().Segments() {
			a, err := w.drv.Access(s.Addr, vmm.Location{Kind: vmm.LocationDevice, ID: 2})
			require.NoError(t, err)
			require.Equal(t, vmm.AccessRead, a)
		}
	}
	p, err := vmm.PlanPeers(vmm.AccessReadWrite, w.devs[1:], of...)
	require.NoError(t, err)
	require.Same(t, k, p.Memory[0].Of)
	require.Equal(t, 2, p.Memory[2].Calls, "once for each stretch")
	require.Contains(t, p.String(), "\ntank of the test 0 of ")
	require.Contains(t, p.String(), "\nrange 1 of ")
	require.Contains(t, p.String(), "\nreservation 2 of ")

	// One of them cannot be: the others are as before.
	require.NoError(t, r.Close())
	require.ErrorIs(t, p.Apply(), vmm.ErrClosed)
	require.Equal(t, vmm.AccessRead, k.r.Access(w.devs[1]))
	require.Equal(t, vmm.AccessRead, g.Access(w.devs[1]))
	require.NoError(t, vmm.EnablePeers(vmm.AccessNone, w.devs[1:], k, g))
	require.Equal(t, vmm.AccessNone, k.r.Access(w.devs[1]))
	require.NoError(t, k.r.Close())
	closeAll(t, g)
	w.end()
}

// TestMemoryThatIsNone: nil, typed nil, zero values, one memory under two names, and
// read-only memory that shall be written to.
func TestMemoryThatIsNone(t *testing.T) {
	w := newWorld(t, 2)
	k, g := newTank(t, w.devs[0]), ranged(t, w, page)
	before := w.picture(g)
	for name, of := range map[string][]vmm.Memory{
		"nil":                           {g, nil},
		"a nil range":                   {g, (*vmm.Range)(nil)},
		"a nil reservation":             {g, (*vmm.Reservation)(nil)},
		"a nil tank":                    {g, (*tank)(nil)},
		"an empty range":                {&vmm.Range{}},
		"an empty reservation":          {&vmm.Reservation{}},
		"a tank without memory":         {&tank{}},
		"a tank and its reservation":    {k, g, k.r},
		"a range and its reservation":   {g, g.Reservation()},
		"two tanks on one reservation":  {k, &tank{k.r}},
		"a reservation that is nothing": {g, &tank{&vmm.Reservation{}}},
	} {
		_, err := vmm.PlanPeers(vmm.AccessRead, w.devs[1:], of...)
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, name)
		require.ErrorIs(t, vmm.EnablePeers(vmm.AccessRead, w.devs[1:], of...), vmm.ErrInvalid, name)
		require.Equal(t, before, w.picture(g), name)
	}
	fixed, err := w.devs[0].Reserve(page, vmm.ReserveOptions{ReadOnly: true})
	require.NoError(t, err)
	p, err := vmm.PlanPeers(vmm.AccessReadWrite, w.devs[1:], g, fixed)
	require.NoError(t, err)
	require.ErrorIs(t, p.Err(), vmm.ErrInvalid)
	require.ErrorIs(t, p.Apply(), vmm.ErrInvalid)
	require.Equal(t, before, w.picture(g))
	require.NoError(t, vmm.EnablePeers(vmm.AccessRead, w.devs[1:], g, fixed))

	in := g.Reservation()
	require.Same(t, in, in.Reservation())
	for name, err := range map[string]error{
		"Map": in.Map(page), "Unmap": in.Unmap(0, page), "Close": in.Close(), "UnmapNow": in.UnmapNow(0, page),
	} {
		require.ErrorIs(t, err, vmm.ErrBusy, name)
	}
	require.Nil(t, (*vmm.Range)(nil).Reservation())
	require.NoError(t, fixed.Close())
	require.NoError(t, k.r.Close())
	closeAll(t, g)
	w.end()
}

// TestReserveAligned: a reservation begins at a multiple of what was asked for.
func TestReserveAligned(t *testing.T) {
	w := newWorld(t, 1)
	for align := uint64(page); align <= 64*page; align *= 2 {
		r, err := w.devs[0].Reserve(page, vmm.ReserveOptions{Align: align})
		require.NoError(t, err)
		require.Zero(t, r.Ptr()%vmm.Ptr(align))
		require.NoError(t, r.Close())
	}
	w.end()
}
