//go:build cgo && linux

package cuda_test

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// faults are the symbols that are made to fail under package vmm. Left out are those
// that end another call and are not tried again: the pop, the exchange of the capture
// mode, the release of a context that was retained for one wait.
var faults = []string{
	"cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
	"cuMemGetAllocationGranularity", "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
	"cuCtxSynchronize", "cuPointerGetAttribute", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpy2DAsync_v2", "cuStreamSynchronize",
	"cuStreamCreate", "cuStreamIsCapturing", "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventQuery",
	"cuMemGetInfo_v2", "cuDeviceGet", "cuDeviceGetName", "cuDeviceCanAccessPeer",
}

// watched is an object whose state is compared.
type watched interface {
	Segments() []vmm.Segment
	Generation() uint64
}

// state is what a failed operation must leave as it was.
type state struct {
	Len, Cap, Gen uint64
	Segments      [][2]uint64
	Access        [][2]driver.Access
	Contents      uint64 // their hash
}

var hashSeed = maphash.MakeSeed()

func stateOf(t *testing.T, d *cuda.Driver, o watched) state {
	t.Helper()
	s := state{Gen: o.Generation()}
	for _, g := range o.Segments() {
		s.Segments = append(s.Segments, [2]uint64{uint64(g.Addr), g.Size})
		var who [2]driver.Access
		for i := range who {
			a, err := d.Access(g.Addr, onDevice(i))
			require.NoError(t, err)
			who[i] = a
		}
		s.Access = append(s.Access, who)
	}
	if g, ok := o.(*vmm.Range); ok {
		b := make([]byte, g.Len())
		require.NoError(t, g.Device().CopyOut(b, g.Ptr()))
		s.Len, s.Cap, s.Contents = g.Len(), g.Cap(), maphash.Bytes(hashSeed, b)
	}
	return s
}

// scene is an operation that is about to be made on obj. obj is nil where there is
// nothing to compare yet.
type scene struct {
	do, close func() error
	obj       watched
}

type operation struct {
	name   string
	roomy  bool // may leave more capacity
	ending bool // may leave an object on which only Close works
	scene  func(*testing.T, [2]*vmm.Device) scene
}

func operations() []operation {
	grown := func(t *testing.T, dev *vmm.Device) *vmm.Range {
		g, err := dev.NewRange(vmm.RangeOptions{Max: 64 * granule, Chunk: granule})
		require.NoError(t, err)
		require.NoError(t, g.Append(bytes.Repeat([]byte("cuvmm"), granule/4)))
		return g
	}
	onRange := func(f func(*vmm.Range) error) func(*testing.T, [2]*vmm.Device) scene {
		return func(t *testing.T, devs [2]*vmm.Device) scene {
			g := grown(t, devs[0])
			return scene{func() error { return f(g) }, g.Close, g}
		}
	}
	chunk := func(t *testing.T, dev *vmm.Device, n uint64) *vmm.Chunk {
		c, err := dev.Create(n*granule, vmm.Prop{})
		require.NoError(t, err)
		return c
	}
	onMapped := func(peer bool, f func(*vmm.Reservation, *vmm.Device) error) func(*testing.T, [2]*vmm.Device) scene {
		return func(t *testing.T, devs [2]*vmm.Device) scene {
			r, err := devs[0].Reserve(16*granule, vmm.ReserveOptions{})
			require.NoError(t, err)
			for _, off := range []uint64{0, 8 * granule} {
				a, b := chunk(t, devs[0], 1), chunk(t, devs[0], 2)
				require.NoError(t, r.Map(off, a, b))
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
			}
			if peer {
				require.NoError(t, r.Grant(vmm.AccessReadWrite, devs[1]))
			}
			return scene{func() error { return f(r, devs[1]) }, r.Close, r}
		}
	}
	return []operation{
		{name: "Range.Grow", scene: onRange(func(g *vmm.Range) error { return g.Grow(3 * granule) })},
		{name: "Range.Append", roomy: true, scene: onRange(func(g *vmm.Range) error { return g.Append(make([]byte, 2*granule)) })},
		{name: "Range.AppendRows", roomy: true, scene: onRange(func(g *vmm.Range) error { return g.AppendRows(make([]byte, 2*granule), 512, 1024) })},
		{name: "Range.Clip", scene: func(t *testing.T, devs [2]*vmm.Device) scene {
			g := grown(t, devs[0])
			require.NoError(t, g.Grow(3*granule))
			return scene{g.Clip, g.Close, g}
		}},
		{name: "Range.Close", ending: true, scene: onRange((*vmm.Range).Close)},
		{name: "Reservation.Map", scene: func(t *testing.T, devs [2]*vmm.Device) scene {
			s := onMapped(false, nil)(t, devs)
			r := s.obj.(*vmm.Reservation)
			a, b := chunk(t, devs[0], 1), chunk(t, devs[0], 1)
			s.do = func() error { return r.Map(3*granule, a, b, a) }
			s.close = func() error {
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
				return r.Close()
			}
			return s
		}},
		{name: "Reservation.Unmap", scene: onMapped(false, func(r *vmm.Reservation, _ *vmm.Device) error { return r.Unmap(8*granule, 3*granule) })},
		{name: "Reservation.Grant", scene: onMapped(false, func(r *vmm.Reservation, peer *vmm.Device) error { return r.Grant(vmm.AccessReadWrite, peer) })},
		{name: "Reservation.Grant of less", scene: onMapped(true, func(r *vmm.Reservation, peer *vmm.Device) error { return r.Grant(vmm.AccessRead, peer) })},
		{name: "Reservation.Revoke", scene: onMapped(true, func(r *vmm.Reservation, peer *vmm.Device) error { return r.Revoke(peer) })},
		{name: "Reservation.Close", ending: true, scene: onMapped(false, func(r *vmm.Reservation, _ *vmm.Device) error { return r.Close() })},
		{name: "Device.Alloc", scene: func(_ *testing.T, devs [2]*vmm.Device) scene {
			var g *vmm.Range
			return scene{do: func() (err error) { g, err = devs[0].Alloc(5 * granule); return err }, close: func() error { return g.Close() }}
		}},
	}
}

// attempt makes the operation while call k of a symbol fails, or without a failure if
// k is 0. It checks contract 2 and frees everything. It returns how often the operation
// called each symbol.
func attempt(t *testing.T, path string, fake *fakecuda.Library, op operation, symbol string, k int) map[string]int {
	t.Helper()
	const code = 2
	fake.Reset()
	d, err := cuda.Loaded(path)
	require.NoError(t, err)
	var devs [2]*vmm.Device
	for i := range devs {
		devs[i], err = vmm.OpenDriver(d, i)
		require.NoError(t, err)
		_, _, err = devs[i].MemInfo() // makes the context
		require.NoError(t, err)
	}
	s := op.scene(t, devs)
	var before state
	if s.obj != nil {
		before = stateOf(t, d, s.obj)
	}
	calls := map[string]int{}
	for _, name := range faults {
		calls[name] = -fake.Calls(name)
	}
	if k > 0 {
		fake.Fail(symbol, k, code)
	}
	err = s.do()
	for _, name := range faults {
		calls[name] += fake.Calls(name)
	}
	what := fmt.Sprintf("%s with call %d of %s failing: %v", op.name, k, symbol, err)
	switch {
	case k == 0:
		require.NoError(t, err)
	case err == nil && symbol == "cuMemAddressReserve": // a reservation instead of an arena
	case err == nil: // the operation is complete, and memory that could not be released is counted
		require.Equal(t, "cuMemRelease", symbol, what)
		require.NotZero(t, devs[0].Stats().Quarantined, what)
	default:
		var r cuda.Result
		require.ErrorAs(t, err, &r, what)
		require.Equal(t, cuda.Result(code), r, what)
		if s.obj != nil && !op.ending {
			now := stateOf(t, d, s.obj)
			if op.roomy {
				require.GreaterOrEqual(t, now.Cap, before.Cap, what)
				n := len(before.Segments)
				now.Cap, now.Segments, now.Access = before.Cap, now.Segments[:n], now.Access[:n]
			}
			require.Equal(t, before, now, what)
			require.Zero(t, devs[0].Stats().Quarantined, what)
		}
		require.NoError(t, s.do(), "again: "+what)
	}
	require.NoError(t, s.close(), what)
	for _, dev := range devs {
		require.NoError(t, dev.Close(), what)
	}
	require.Empty(t, fake.Violations(), what)
	require.Equal(t, fakecuda.Live{}, fake.Live(), what)
	return calls
}

// TestFaults fails each call to libcuda of each operation of package vmm.
func TestFaults(t *testing.T) {
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			n := 0
			for symbol, calls := range attempt(t, path, fake, op, "", 0) {
				for k := 1; k <= calls; k++ {
					attempt(t, path, fake, op, symbol, k)
					n++
				}
			}
			require.Greater(t, n, 1, "an operation of several calls")
			t.Logf("%d calls failed, one at a time", n)
		})
	}
}
