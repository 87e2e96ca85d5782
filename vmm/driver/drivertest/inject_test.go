package drivertest_test

import (
	"errors"
	"io"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// bare is a driver without optional interfaces. It does nothing, and counts
// the calls that reach it.
type bare struct {
	driver.Driver
	mu      sync.Mutex
	reached int
}

func (b *bare) hit() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reached++
	return nil
}

func (b *bare) Name() string                                      { return "bare" }
func (b *bare) Reserve(_, _ uint64) (driver.Ptr, error)           { return 64, b.hit() }
func (b *bare) Free(driver.Ptr, uint64) error                     { return b.hit() }
func (b *bare) Create(uint64, driver.Prop) (driver.Handle, error) { return 7, b.hit() }
func (b *bare) Map(driver.Ptr, uint64, driver.Handle) error       { return b.hit() }
func (b *bare) Unmap(driver.Ptr, uint64) error                    { return b.hit() }
func (b *bare) SetAccess(driver.Ptr, uint64, []driver.Grant) error {
	return b.hit()
}
func (b *bare) Open(int) (driver.Device, error) { return &bareDevice{b: b}, b.hit() }

type bareDevice struct {
	driver.Device
	b *bare
}

func (d *bareDevice) CopyIn(driver.Ptr, []byte) error { return d.b.hit() }
func (d *bareDevice) Close() error                    { return d.b.hit() }

func onDevice(n int) driver.Location { return driver.Location{Kind: driver.LocationDevice, ID: n} }

func TestInjectShowsEachCall(t *testing.T) {
	var seen []drivertest.Call
	d := drivertest.Inject(&bare{}, func(c drivertest.Call) error { seen = append(seen, c); return nil })
	p, err := d.Reserve(4096, 0)
	require.NoError(t, err)
	require.Equal(t, driver.Ptr(64), p)
	h, err := d.Create(100, driver.Prop{Location: onDevice(2)})
	require.NoError(t, err)
	require.Equal(t, driver.Handle(7), h)
	require.NoError(t, d.SetAccess(p, 100, []driver.Grant{{To: onDevice(1)}}))
	require.NoError(t, d.SetAccess(p, 100, []driver.Grant{{To: onDevice(1)}, {To: onDevice(2)}}))
	dev, err := d.Open(3)
	require.NoError(t, err)
	require.NoError(t, dev.CopyIn(p, make([]byte, 10)))
	require.Equal(t, []drivertest.Call{
		{N: 1, Name: "Reserve", Dev: -1, Size: 4096},
		{N: 2, Name: "Create", Dev: 2, Size: 100},
		{N: 3, Name: "SetAccess", Dev: 1, Size: 100},
		{N: 4, Name: "SetAccess", Dev: -1, Size: 100},
		{N: 5, Name: "Open", Dev: 3},
		{N: 6, Name: "CopyIn", Dev: 3, Size: 10},
	}, seen)
}

func TestInjectRefusesWithoutCalling(t *testing.T) {
	cases := map[string]struct{ hook, kind error }{
		"sentinel": {driver.ErrOutOfMemory, driver.ErrOutOfMemory},
		"wrapped":  {&driver.CallError{Call: "cuMemMap", Kind: driver.ErrLimit, Err: io.EOF}, driver.ErrLimit},
		"foreign":  {io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inner := &bare{}
			d := drivertest.Inject(inner, drivertest.FailNth("Map", 1, tc.hook))
			err := d.Map(64, 4096, 7)
			require.ErrorIs(t, err, tc.hook)
			var call *driver.CallError
			require.ErrorAs(t, err, &call)
			require.Equal(t, "Map", call.Call)
			require.Equal(t, tc.kind, call.Kind)
			require.Zero(t, inner.reached)
			require.NoError(t, d.Map(64, 4096, 7))
			require.Equal(t, 1, inner.reached)
			require.Equal(t, map[string]drivertest.Count{"Map": {Made: 1, Failed: 1, Bytes: 4096}}, d.Counts())
		})
	}
}

func TestFailNth(t *testing.T) {
	boom := errors.New("boom")
	for _, tc := range []struct {
		name string
		n    int
		want string // one letter for each call: . passes, x fails
	}{
		{"Map", 2, "...x.."}, {"", 3, "..x..."}, {"", 6, ".....x"}, {"Unmap", 1, "......"}, {"Map", 0, "......"},
	} {
		hook := drivertest.FailNth(tc.name, tc.n, boom)
		got := ""
		for _, call := range []string{"Reserve", "Map", "SetAccess", "Map", "SetAccess", "Map"} {
			if hook(drivertest.Call{Name: call}) == nil {
				got += "."
			} else {
				got += "x"
			}
		}
		require.Equal(t, tc.want, got, "FailNth(%q, %d)", tc.name, tc.n)
	}
}

func TestInjectWithoutOptionalInterfaces(t *testing.T) {
	d := drivertest.Inject(&bare{}, nil)
	dev, err := d.Open(0)
	require.NoError(t, err)
	check := func(wrapper any, interfaces map[string]reflect.Type) {
		for name, i := range interfaces {
			if name == "Driver" || name == "Device" || name == "Wrapper" {
				continue
			}
			for m := range i.NumMethod() {
				name := i.Method(m).Name
				out, err := callWithZeros(reflect.ValueOf(wrapper).MethodByName(name))
				require.ErrorIs(t, err, driver.ErrNotSupported, name)
				require.Equal(t, drivertest.Count{Failed: 1}, d.Counts()[name], name)
				if name == "ExportRange" || name == "ExportPool" {
					require.Equal(t, -1, out[0].Interface(), name)
				}
			}
		}
	}
	check(d, driverInterfaces)
	check(dev, deviceInterfaces)
}

func TestInjectBalance(t *testing.T) {
	d := drivertest.Inject(&bare{}, drivertest.FailNth("Unmap", 1, driver.ErrInvalid))
	require.NoError(t, d.Balanced())
	p, _ := d.Reserve(8192, 0)
	require.NoError(t, d.Map(p, 4096, 7))
	require.NoError(t, d.Map(p+4096, 4096, 8))
	require.Error(t, d.Unmap(p, 8192), "what is refused gives nothing back")
	require.EqualError(t, d.Balanced(), "not given back: Reserve 1 calls, Free 0; Reserve 8192 bytes, Free 0; Map 8192 bytes, Unmap 0")
	require.NoError(t, d.Unmap(p, 8192))
	require.NoError(t, d.Free(p, 8192))
	require.NoError(t, d.Balanced())

	dev, err := d.Open(0)
	require.NoError(t, err)
	require.EqualError(t, d.Balanced(), "not given back: Open 1 calls, Close 0")
	require.NoError(t, dev.Close())
	require.NoError(t, dev.Close(), "twice is fine, and counts once")
	require.NoError(t, d.Balanced())
}

// peered is a bare driver with PeerInfo and LegacyPeers.
type peered struct{ bare }

func (p *peered) Peering(from, to int) (driver.Peering, error) {
	return driver.Peering{Access: true, Rank: 10*from + to}, p.hit()
}

func (p *peered) Open(int) (driver.Device, error) {
	return &peeredDevice{bareDevice{b: &p.bare}}, p.hit()
}

type peeredDevice struct{ bareDevice }

func (d *peeredDevice) EnablePeer(int) error  { return d.b.hit() }
func (d *peeredDevice) DisablePeer(int) error { return d.b.hit() }

func TestInjectPeers(t *testing.T) {
	var seen []drivertest.Call
	refuse := drivertest.FailNth("EnablePeer", 2, driver.ErrPeerEnabled)
	d := drivertest.Inject(&peered{}, func(c drivertest.Call) error { seen = append(seen, c); return refuse(c) })
	got, err := d.Peering(3, 1)
	require.NoError(t, err)
	require.Equal(t, driver.Peering{Access: true, Rank: 31}, got)
	dev, err := d.Open(2)
	require.NoError(t, err)
	i, ok := dev.(driver.LegacyPeers)
	require.True(t, ok)
	require.NoError(t, i.EnablePeer(1))
	require.ErrorIs(t, i.EnablePeer(1), driver.ErrPeerEnabled)
	require.EqualError(t, d.Balanced(), "not given back: Open 1 calls, Close 0; EnablePeer 1 calls, DisablePeer 0")
	require.NoError(t, i.DisablePeer(1))
	require.NoError(t, dev.Close())
	require.NoError(t, d.Balanced())
	require.Equal(t, []drivertest.Call{
		{N: 1, Name: "Peering", Dev: 3},
		{N: 2, Name: "Open", Dev: 2},
		{N: 3, Name: "EnablePeer", Dev: 2},
		{N: 4, Name: "EnablePeer", Dev: 2},
		{N: 5, Name: "DisablePeer", Dev: 2},
		{N: 6, Name: "Close", Dev: 2},
	}, seen)
	require.Equal(t, drivertest.Count{Made: 1, Failed: 1}, d.Counts()["EnablePeer"])
}

func TestInjectIsSafeForConcurrentUse(t *testing.T) {
	const goroutines, rounds = 8, 500
	inner := &bare{}
	var mu sync.Mutex
	numbers := map[int]bool{}
	d := drivertest.Inject(inner, func(c drivertest.Call) error {
		mu.Lock()
		defer mu.Unlock()
		numbers[c.N] = true
		return nil
	})
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				p, _ := d.Reserve(4096, 0)
				_ = d.Free(p, 4096)
			}
		})
	}
	wg.Wait()
	require.NoError(t, d.Balanced())
	require.Len(t, numbers, 2*goroutines*rounds)
	require.Equal(t, 2*goroutines*rounds, inner.reached)
	require.Equal(t, drivertest.Count{Made: goroutines * rounds, Bytes: goroutines * rounds * 4096}, d.Counts()["Reserve"])
}

func TestRulesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range drivertest.Rules() {
		require.False(t, seen[r.Name], r.Name)
		seen[r.Name] = true
		require.NotEmpty(t, r.Says, r.Name)
		require.NotEmpty(t, r.Source, r.Name)
		require.Contains(t, []string{"Memory", "Async"}, r.Suite, r.Name)
	}
}
