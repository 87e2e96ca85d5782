//go:build linux

package host

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

// captured captures what f queues and makes it executable.
func captured(t testing.TB, v *device, f func(driver.Stream)) (driver.Graph, driver.GraphExec) {
	t.Helper()
	s, err := v.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
	f(s)
	g, err := v.EndCapture(s)
	require.NoError(t, err)
	x, err := v.Instantiate(g)
	require.NoError(t, err)
	require.NoError(t, v.FreeStream(s))
	return g, x
}

// A launch of a graph whose memory is not there any more, or not accessible, loses the devices, as
// on the card, and writes nothing.
func TestGraphMemory(t *testing.T) {
	takes := map[string]func(*Driver, *device, driver.Ptr) error{
		"narrowed": func(d *Driver, _ *device, p driver.Ptr) error {
			return d.SetAccess(p, 4*mib, grant(0, driver.AccessRead))
		},
		"unmapped": func(d *Driver, _ *device, p driver.Ptr) error { return d.Unmap(p, 4*mib) },
		"freed":    func(_ *Driver, v *device, p driver.Ptr) error { return v.FreePlain(p) },
		"freed in order": func(_ *Driver, v *device, p driver.Ptr) error {
			return cmp.Or(v.FreeAsync(p, 0), v.Sync())
		},
	}
	for how, take := range takes {
		for _, kernels := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s kernels=%v", how, kernels), func(t *testing.T) {
				d := New(Config{Memory: 64 * mib})
				v := open(t, d, 0)
				a := chunk(t, d, 4*mib)
				b := plain(t, v, 4*mib, 0)
				if how == "narrowed" || how == "unmapped" {
					b = chunk(t, d, 4*mib)
				}
				f := kernel(t, v, fillKernel(b, 10, 2))
				_, x := captured(t, v, func(s driver.Stream) {
					require.NoError(t, v.Fill(a, 1, 1, 4*mib, s))
					if kernels {
						require.NoError(t, v.Launch(f, uses(b, 10, driver.AccessReadWrite), s))
					} else {
						require.NoError(t, v.Copy(b, a, mib, s))
					}
				})
				require.NoError(t, v.LaunchGraph(x, 0))
				require.NoError(t, v.Sync())
				want := byte(1)
				if kernels {
					want = 2
				}
				require.Equal(t, want, bytesAt(uint64(b), 10)[9])
				require.NoError(t, v.Fill(a, 0, 1, 4*mib, 0))
				require.NoError(t, v.Sync())
				require.NoError(t, take(d, v, b))
				require.False(t, d.lost.Load())
				require.NoError(t, v.LaunchGraph(x, 0))
				err := v.Sync()
				require.ErrorIs(t, err, driver.ErrDeviceLost)
				require.ErrorContains(t, err, "a graph was launched whose memory is not there")
				require.Zero(t, bytesAt(uint64(a), 1)[0])
			})
		}
	}
}

// A kernel that uses all memory from an address on uses what is there at each launch.
func TestGraphMemoryEnds(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	f := kernel(t, v, func(*driver.Launch) error { return nil })
	p := reserved(t, d, 4*mib)
	h := create(t, d, 2*mib, home)
	grow := func(at driver.Ptr) {
		require.NoError(t, d.Map(p+at, 2*mib, h))
		require.NoError(t, d.SetAccess(p+at, 2*mib, grant(0, driver.AccessReadWrite)))
	}
	grow(0)
	grow(2 * mib)
	_, x := captured(t, v, func(s driver.Stream) {
		require.NoError(t, v.Launch(f, uses(p, 0, driver.AccessReadWrite), s))
	})
	require.NoError(t, v.LaunchGraph(x, 0))
	require.NoError(t, v.Sync())
	require.NoError(t, d.Unmap(p+2*mib, 2*mib))
	require.NoError(t, v.LaunchGraph(x, 0), "less than was captured")
	require.NoError(t, v.Sync())
	grow(2 * mib)
	gate(t, v, 0)
	require.NoError(t, v.LaunchGraph(x, 0))
	require.NoError(t, d.Unmap(p+2*mib, 2*mib))
	require.True(t, d.lost.Load(), "the second chunk is used again")
	require.NoError(t, d.Unmap(p, 2*mib))
	require.NoError(t, d.Release(h))
	require.NoError(t, d.Free(p, 4*mib))
}

// A graph's work is seen by an unmap as other work is.
func TestUnmapUnderGraph(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	_, x := captured(t, v, func(s driver.Stream) {
		require.NoError(t, v.Fill(p, 1, 1, 8, s))
		require.NoError(t, v.WriteValue(s, p, 1, 4))
	})
	gate(t, v, 0)
	require.NoError(t, v.LaunchGraph(x, 0))
	require.NoError(t, v.FreeGraphExec(x))
	require.NoError(t, d.Unmap(p, 4*mib))
	require.ErrorIs(t, v.Sync(), driver.ErrDeviceLost)
}

// Work of another device joins a capture too. Each piece is checked as that of its own
// device, also when it waits in a stream of the first.
func TestGraphOfTwoDevices(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	v := open(t, d, 0)
	dev, err := d.Open(1)
	require.NoError(t, err)
	other := dev.(*device)
	p := chunk(t, d, 4*mib) // device 0's
	q := chunk(t, d, 4*mib)
	require.NoError(t, d.SetAccess(q, 4*mib, []driver.Grant{{To: on(0)}, {To: on(1), Access: driver.AccessReadWrite}}))
	far, err := other.NewStream()
	require.NoError(t, err)
	e, err := v.NewEvent(0)
	require.NoError(t, err)
	back, err := other.NewEvent(0)
	require.NoError(t, err)
	_, x := captured(t, v, func(s driver.Stream) {
		require.NoError(t, v.Fill(p, 1, 1, 8, s))
		require.NoError(t, v.Record(e, s))
		require.NoError(t, other.Wait(far, e))
		require.NoError(t, other.Fill(q, 2, 1, 8, far))
		require.NoError(t, other.Record(back, far))
		require.NoError(t, v.Wait(s, back))
	})
	captures, err := other.Capturing(far)
	require.NoError(t, err)
	require.False(t, captures)
	require.NoError(t, v.LaunchGraph(x, 0))
	require.NoError(t, v.Sync())
	require.Equal(t, []byte{1, 2}, []byte{bytesAt(uint64(p), 1)[0], bytesAt(uint64(q), 1)[0]})

	require.NoError(t, other.Close())
	require.ErrorIs(t, v.LaunchGraph(x, 0), driver.ErrInvalid)

	again := open(t, d, 1)
	far, err = again.NewStream()
	require.NoError(t, err)
	back, err = again.NewEvent(0)
	require.NoError(t, err)
	_, x = captured(t, v, func(s driver.Stream) {
		require.NoError(t, v.Record(e, s))
		require.NoError(t, again.Wait(far, e))
		require.NoError(t, again.Fill(q, 2, 1, 8, far))
		require.NoError(t, again.Record(back, far))
		require.NoError(t, v.Wait(s, back))
	})
	gate(t, v, 0)
	require.NoError(t, v.LaunchGraph(x, 0))
	require.NoError(t, d.SetAccess(q, 4*mib, grant(0, driver.AccessNone)))
	require.False(t, d.lost.Load(), "device 0 does not use it")
	require.NoError(t, d.SetAccess(q, 4*mib, grant(1, driver.AccessRead)))
	require.True(t, d.lost.Load(), "device 1 does")
}

// TestGraphIsCheckedAsOfItsDevice: work of another device needs that device's access.
func TestGraphIsCheckedAsOfItsDevice(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	v, other := open(t, d, 0), open(t, d, 1)
	q := chunk(t, d, 4*mib)
	require.NoError(t, d.SetAccess(q, 4*mib, []driver.Grant{{To: on(0)}, {To: on(1), Access: driver.AccessReadWrite}}))
	far, err := other.NewStream()
	require.NoError(t, err)
	e, err := v.NewEvent(0)
	require.NoError(t, err)
	back, err := other.NewEvent(0)
	require.NoError(t, err)
	_, x := captured(t, v, func(s driver.Stream) {
		require.NoError(t, v.Record(e, s))
		require.NoError(t, other.Wait(far, e))
		require.NoError(t, other.Fill(q, 2, 1, 8, far))
		require.NoError(t, other.Record(back, far))
		require.NoError(t, v.Wait(s, back))
	})
	require.NoError(t, v.LaunchGraph(x, 0))
	require.NoError(t, v.Sync())
	require.NoError(t, d.SetAccess(q, 4*mib, grant(1, driver.AccessRead)))
	require.NoError(t, v.LaunchGraph(x, 0))
	require.ErrorIs(t, v.Sync(), driver.ErrDeviceLost)
}

// TestGraphPairs: graphs that were freed or never made are unknown.
func TestGraphPairs(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	g, x := captured(t, v, func(driver.Stream) {})
	require.NoError(t, v.LaunchGraph(x, 0), "a graph of nothing")
	require.NoError(t, v.UpdateGraphExec(x, g))
	require.NoError(t, v.FreeGraph(g))
	require.ErrorIs(t, v.UpdateGraphExec(x, g), driver.ErrInvalid)
	require.NoError(t, v.FreeGraphExec(x))
	_, err := v.Instantiate(g)
	require.ErrorIs(t, err, driver.ErrInvalid)
	for _, err := range []error{v.FreeGraph(g), v.FreeGraphExec(x), v.LaunchGraph(x, 0), v.FreeGraph(0), v.FreeGraphExec(0)} {
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	require.Empty(t, v.context.graphs)
	require.Empty(t, v.context.execs)
}

// An update may not change what comes after what: on the card such a graph is another.
func TestUpdateKeepsOrder(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	side, err := v.NewStream()
	require.NoError(t, err)
	e, err := v.NewEvent(0)
	require.NoError(t, err)
	fork := func(joinFirst bool) func(driver.Stream) {
		return func(s driver.Stream) {
			require.NoError(t, v.Record(e, s))
			require.NoError(t, v.Wait(side, e))
			require.NoError(t, v.Fill(p, 1, 1, 8, side))
			require.NoError(t, v.Record(e, side))
			if joinFirst {
				require.NoError(t, v.Wait(s, e))
			}
			require.NoError(t, v.Fill(p+8, 1, 1, 8, s))
			require.NoError(t, v.Wait(s, e))
		}
	}
	_, x := captured(t, v, fork(true))
	g, _ := captured(t, v, fork(true))
	require.NoError(t, v.UpdateGraphExec(x, g))
	g, _ = captured(t, v, fork(false))
	require.ErrorIs(t, v.UpdateGraphExec(x, g), driver.ErrInvalid)
}

// A graph that is launched on a captured stream becomes part of that capture.
func TestGraphInGraph(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	var n int
	f := kernel(t, v, func(*driver.Launch) error { n++; return nil })
	_, inner := captured(t, v, func(s driver.Stream) {
		require.NoError(t, v.Launch(f, uses(p, 0, driver.AccessRead), s))
	})
	_, outer := captured(t, v, func(s driver.Stream) {
		require.NoError(t, v.LaunchGraph(inner, s))
		require.NoError(t, v.LaunchGraph(inner, s))
	})
	require.NoError(t, v.FreeGraphExec(inner))
	require.NoError(t, v.LaunchGraph(outer, 0))
	require.NoError(t, v.Sync())
	require.Equal(t, 2, n)
}

// A destroyed capture takes no work and no stream. A stream that goes away destroys its
// capture, or ends it if it began there.
func TestCaptureLosesStreams(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	e, err := v.NewEvent(0)
	require.NoError(t, err)
	fork := func() (s, side driver.Stream) {
		s, err := v.NewStream()
		require.NoError(t, err)
		side, err = v.NewStream()
		require.NoError(t, err)
		require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
		require.NoError(t, v.Record(e, s))
		require.NoError(t, v.Wait(side, e))
		return s, side
	}
	s, side := fork()
	require.NoError(t, v.FreeStream(side))
	_, err = v.EndCapture(s)
	require.ErrorIs(t, err, driver.ErrInvalid)

	s, side = fork()
	require.NoError(t, v.FreeStream(s))
	captures, err := v.Capturing(side)
	require.NoError(t, err)
	require.False(t, captures)
	require.NoError(t, v.Fill(p, 1, 1, 8, side))
	require.NoError(t, v.SyncStream(side))

	s, side = fork()
	require.ErrorIs(t, v.SyncStream(side), driver.ErrCapturing)
	require.ErrorIs(t, v.Fill(p, 1, 1, 8, s), driver.ErrCapturing, "one capture, so it is destroyed for both")
	third, err := v.NewStream()
	require.NoError(t, err)
	require.ErrorIs(t, v.Wait(third, e), driver.ErrCapturing)
	_, err = v.EndCapture(s)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.NoError(t, v.SyncStream(side))
	require.Zero(t, len(v.context.busy))
}
