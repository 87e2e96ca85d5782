//go:build linux

package host

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

// kernel loads a Go function without parameters.
func kernel(t testing.TB, v *device, run func(*driver.Launch) error) driver.Function {
	t.Helper()
	m, log, err := v.LoadModule(driver.Code{Host: map[string]driver.HostKernel{"k": {Run: run}}})
	require.NoError(t, err)
	require.Empty(t, log)
	f, err := v.Function(m, "k")
	require.NoError(t, err)
	return f
}

// fillKernel writes b over n bytes at p.
func fillKernel(p driver.Ptr, n uint64, b byte) func(*driver.Launch) error {
	return func(*driver.Launch) error {
		for i := range bytesAt(uint64(p), n) {
			bytesAt(uint64(p), n)[i] = b
		}
		return nil
	}
}

// uses is what a launch names as its memory.
func uses(p driver.Ptr, n uint64, a driver.Access) *driver.Launch {
	return &driver.Launch{Memory: []driver.Span{{Addr: p, Size: n, Access: a}}}
}

// A kernel that faults, whatever it does, loses all devices and ends neither the
// process nor its stream's goroutine. The error says what it was.
func TestKernelFaults(t *testing.T) {
	none := func(d *Driver) driver.Ptr { p, _ := d.Reserve(2*mib, 0); return p }
	for name, c := range map[string]struct {
		run  func(*Driver, driver.Ptr) error
		says string
	}{
		"error":   {func(*Driver, driver.Ptr) error { return errors.New("no luck") }, "no luck"},
		"panic":   {func(*Driver, driver.Ptr) error { panic("oh") }, "panic: oh"},
		"nil":     {func(*Driver, driver.Ptr) error { store(0, 1, 4); return nil }, "nil pointer dereference"},
		"index":   {func(_ *Driver, p driver.Ptr) error { _ = bytesAt(uint64(p), 0)[int(p&1)]; return nil }, "index out of range"},
		"store":   {func(_ *Driver, p driver.Ptr) error { bytesAt(uint64(p), 1)[0] = 1; return nil }, "invalid memory access at 0x"},
		"copy":    {func(_ *Driver, p driver.Ptr) error { copy(make([]byte, 4096), bytesAt(uint64(p), 4096)); return nil }, "invalid memory access at 0x"},
		"atomic":  {func(_ *Driver, p driver.Ptr) error { store(uint64(p), 1, 4); return nil }, "invalid memory access at 0x"},
		"Goexit":  {func(*Driver, driver.Ptr) error { runtime.Goexit(); return nil }, "ended its goroutine"},
		"FailNow": {func(*Driver, driver.Ptr) error { new(testing.T).SkipNow(); return nil }, "ended its goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(Config{Devices: 2, Memory: 64 * mib})
			v, other := open(t, d, 0), open(t, d, 1)
			p := none(d)
			require.NotZero(t, p)
			f := kernel(t, v, func(*driver.Launch) error { return c.run(d, p) })
			s, err := v.NewStream()
			require.NoError(t, err)
			require.NoError(t, v.Launch(f, &driver.Launch{}, s))
			err = v.SyncStream(s)
			require.ErrorIs(t, err, driver.ErrDeviceLost)
			require.ErrorContains(t, err, `kernel "k" on host:0`)
			require.ErrorContains(t, err, c.says)
			err = other.Sync()
			require.ErrorIs(t, err, driver.ErrDeviceLost)
			require.ErrorContains(t, err, c.says)
			require.NoError(t, d.Free(p, 2*mib))
		})
	}
}

// An unmap waits for a running kernel: it cannot be cut short, and must not find its
// memory gone.
func TestUnmapWaitsForKernel(t *testing.T) {
	for name, change := range map[string]func(*Driver, driver.Ptr) error{
		"Unmap":     func(d *Driver, p driver.Ptr) error { return d.Unmap(p, 4*mib) },
		"SetAccess": func(d *Driver, p driver.Ptr) error { return d.SetAccess(p, 4*mib, []driver.Grant{{To: on(0)}}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := New(Config{Memory: 64 * mib})
				v := open(t, d, 0)
				p := chunk(t, d, 4*mib)
				running, goOn := make(chan bool), make(chan bool)
				f := kernel(t, v, func(*driver.Launch) error {
					close(running)
					<-goOn
					return fillKernel(p, 4*mib, 1)(nil)
				})
				require.NoError(t, v.Launch(f, uses(p+2*mib, 0, driver.AccessReadWrite), 0))
				<-running
				changed := make(chan error, 1)
				go func() { changed <- change(d, p) }()
				synctest.Wait()
				require.Empty(t, changed, "under a running kernel")
				close(goOn)
				require.NoError(t, <-changed)
				err := v.Sync()
				require.ErrorIs(t, err, driver.ErrDeviceLost)
				require.ErrorContains(t, err, "memory was taken away")
			})
		})
	}
}

// The memory of a launch is checked when it is queued.
func TestLaunchMemory(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	v := open(t, d, 0)
	f := kernel(t, v, func(*driver.Launch) error { return nil })
	p := chunk(t, d, 4*mib)
	require.NoError(t, d.SetAccess(p, 4*mib, grant(0, driver.AccessRead)))
	hole := reserved(t, d, 4*mib)
	defer func() { require.NoError(t, d.Free(hole, 4*mib)) }()
	far := chunk(t, d, 4*mib)
	require.NoError(t, d.SetAccess(far, 4*mib, []driver.Grant{{To: on(0)}, {To: on(1), Access: driver.AccessReadWrite}}))
	plain, err := v.AllocPlain(100)
	require.NoError(t, err)
	pinned, _, err := v.AllocHost(100)
	require.NoError(t, err)
	launch := func(all ...driver.Span) error { return v.Launch(f, &driver.Launch{Memory: all}, 0) }

	good := []driver.Span{
		{Addr: p, Size: 4 * mib, Access: driver.AccessRead}, {Addr: p + 5, Access: driver.AccessRead},
		{Addr: plain, Size: 100, Access: driver.AccessReadWrite}, {Addr: plain + 99, Access: driver.AccessReadWrite},
		{Addr: pinned, Access: driver.AccessReadWrite}, {Addr: p + 4*mib - 1, Size: 1},
	}
	require.NoError(t, launch(good...))
	for _, bad := range []driver.Span{
		{Addr: p, Size: 4 * mib, Access: driver.AccessReadWrite}, {Addr: p, Access: driver.AccessReadWrite},
		{Addr: p, Size: 4*mib + 1, Access: driver.AccessRead}, {Addr: p + 4*mib, Access: driver.AccessRead},
		{Addr: p, Size: 1 << 63, Access: driver.AccessRead}, {Addr: p, Size: 1<<64 - 1, Access: driver.AccessRead},
		{Addr: hole, Size: 1, Access: driver.AccessRead}, {Addr: hole, Access: driver.AccessRead}, {Addr: hole},
		{Addr: far, Size: 1, Access: driver.AccessRead}, {Addr: far, Access: driver.AccessRead},
		{Addr: plain, Size: 101, Access: driver.AccessRead}, {Addr: plain + 100, Access: driver.AccessRead},
		{Addr: 64, Size: 8, Access: driver.AccessRead}, {Addr: 0, Access: driver.AccessRead}, {Addr: p, Access: 7},
	} {
		require.ErrorIs(t, launch(bad), driver.ErrInvalid, "%+v", bad)
		require.ErrorIs(t, launch(append(good, bad)...), driver.ErrInvalid, "%+v after others", bad)
	}
	require.NoError(t, v.Sync())
	require.NoError(t, v.FreePlain(plain))
	require.NoError(t, v.FreeHost(pinned))
}

// A launch without a size uses what is mapped without a hole when it is queued, and no
// more.
func TestLaunchMemoryEnds(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	f := kernel(t, v, func(*driver.Launch) error { return nil })
	p := reserved(t, d, 12*mib)
	h := create(t, d, 2*mib, home)
	for _, at := range []driver.Ptr{0, 2 * mib, 6 * mib} { // and a hole, and later one behind that
		require.NoError(t, d.Map(p+at, 2*mib, h))
		require.NoError(t, d.SetAccess(p+at, 2*mib, grant(0, driver.AccessReadWrite)))
	}
	s, err := v.NewStream()
	require.NoError(t, err)
	pass := gate(t, v, s)
	require.NoError(t, v.Launch(f, uses(p, 0, driver.AccessReadWrite), s))
	require.NoError(t, d.Map(p+4*mib, 2*mib, h))
	require.NoError(t, d.Unmap(p+4*mib, 4*mib))
	require.False(t, d.lost.Load())
	pass()
	require.NoError(t, v.SyncStream(s))

	gate(t, v, s)
	require.NoError(t, v.Launch(f, uses(p, 0, driver.AccessReadWrite), s))
	require.NoError(t, d.Unmap(p+2*mib, 2*mib))
	require.True(t, d.lost.Load(), "the second chunk is part of it")
	require.NoError(t, d.Unmap(p, 2*mib))
	require.NoError(t, d.Release(h))
	require.NoError(t, d.Free(p, 12*mib))
}

// TestLaunchArguments: what a kernel gets, and that a launch with other arguments than
// its parameters is refused.
func TestLaunchArguments(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	var got driver.Launch
	params := []driver.Param{{Offset: 0, Size: 4}, {Offset: 8, Size: 8}}
	m, _, err := v.LoadModule(driver.Code{Host: map[string]driver.HostKernel{
		"k": {Params: params, Run: func(l *driver.Launch) error {
			got = *l
			clear(l.Args)
			return nil
		}},
		"none": {Run: func(*driver.Launch) error { return nil }},
	}})
	require.NoError(t, err)
	f, err := v.Function(m, "k")
	require.NoError(t, err)
	params[0].Size = 99
	known, err := v.Params(f)
	require.NoError(t, err)
	require.Equal(t, []driver.Param{{Offset: 0, Size: 4}, {Offset: 8, Size: 8}}, known)

	l := driver.Launch{Grid: driver.Dim{X: 3, Z: 2}, Shared: 10, Args: binary.NativeEndian.AppendUint64(make([]byte, 8), 77)}
	require.NoError(t, v.Launch(f, &l, 0))
	require.NoError(t, v.Sync())
	require.Equal(t, driver.Dim{X: 3, Y: 1, Z: 2}, got.Grid)
	require.Equal(t, driver.Dim{X: 1, Y: 1, Z: 1}, got.Block)
	require.EqualValues(t, 10, got.Shared)
	require.EqualValues(t, 77, l.Args[8], "the kernel has a copy")
	for _, n := range []int{0, 4, 15, 17} {
		l.Args = make([]byte, n)
		require.ErrorIs(t, v.Launch(f, &l, 0), driver.ErrInvalid, n)
	}
	none, err := v.Function(m, "none")
	require.NoError(t, err)
	require.NoError(t, v.Launch(none, &driver.Launch{}, 0))
	require.ErrorIs(t, v.Launch(none, &l, 0), driver.ErrInvalid)
}

// TestBadModules: what cannot be launched is not loaded.
func TestBadModules(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	run := func(*driver.Launch) error { return nil }
	_, _, err := v.LoadModule(driver.Code{Image: []byte("PTX")})
	require.ErrorIs(t, err, driver.ErrNotSupported)
	require.ErrorContains(t, err, "this module has no Go functions for host memory")
	for name, k := range map[string]driver.HostKernel{
		"":      {Run: run},
		"nil":   {},
		"empty": {Run: run, Params: []driver.Param{{Offset: 0, Size: 0}}},
		"over":  {Run: run, Params: []driver.Param{{Offset: 0, Size: 8}, {Offset: 4, Size: 8}}},
		"order": {Run: run, Params: []driver.Param{{Offset: 8, Size: 8}, {Offset: 0, Size: 8}}},
		"large": {Run: run, Params: []driver.Param{{Offset: 0, Size: 4097}}},
		"wrap":  {Run: run, Params: []driver.Param{{Offset: 1<<32 - 1, Size: 2}}},
	} {
		_, _, err := v.LoadModule(driver.Code{Host: map[string]driver.HostKernel{name: k, "good": {Run: run}}})
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
	require.Empty(t, v.context.modules)
	require.Empty(t, v.context.functions)
	for _, err := range []error{v.UnloadModule(0), v.UnloadModule(99), v.Launch(99, &driver.Launch{}, 0), v.SetMaxDynamicShared(99, 1)} {
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
}

// TestUnloadUnderWork: a launch that is queued still runs.
func TestUnloadUnderWork(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	m, _, err := v.LoadModule(driver.Code{Host: map[string]driver.HostKernel{"k": {Run: fillKernel(p, 10, 3)}}})
	require.NoError(t, err)
	f, err := v.Function(m, "k")
	require.NoError(t, err)
	s, err := v.NewStream()
	require.NoError(t, err)
	pass := gate(t, v, s)
	require.NoError(t, v.Launch(f, uses(p, 10, driver.AccessReadWrite), s))
	require.NoError(t, v.UnloadModule(m))
	pass()
	require.NoError(t, v.SyncStream(s))
	require.Equal(t, byte(3), bytesAt(uint64(p), 10)[9])
}

// TestSharedMemoryAndOccupancy: the limits go together.
func TestSharedMemoryAndOccupancy(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	f := kernel(t, v, func(*driver.Launch) error { return nil })
	for _, c := range []struct {
		threads, shared uint32
		blocks          int
	}{{1, 0, 32}, {64, 0, 32}, {256, 0, 8}, {1024, 0, 2}, {1025, 0, 0}, {64, anyShared, 4}, {64, anyShared + 1, 0}} {
		blocks, err := v.Occupancy(f, c.threads, c.shared)
		require.NoError(t, err)
		require.Equal(t, c.blocks, blocks, "%+v", c)
	}
	require.ErrorIs(t, v.Launch(f, &driver.Launch{Shared: anyShared + 1}, 0), driver.ErrInvalid)
	_, _, err := v.SuggestBlock(f, anyShared+1)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorIs(t, v.SetMaxDynamicShared(f, maxShared+1), driver.ErrInvalid)
	require.NoError(t, v.SetMaxDynamicShared(f, maxShared))
	require.NoError(t, v.Launch(f, &driver.Launch{Shared: maxShared}, 0))
	threads, blocks, err := v.SuggestBlock(f, maxShared)
	require.NoError(t, err)
	require.EqualValues(t, 256, threads)
	require.EqualValues(t, runtime.NumCPU(), blocks)

	// Blocks that wait for each other must all fit at once.
	all := driver.Launch{Grid: driver.Dim{X: blocks}, Block: driver.Dim{X: threads}, Shared: maxShared, Cooperative: true}
	require.NoError(t, v.Launch(f, &all, 0))
	all.Grid.Y = 2
	require.ErrorIs(t, v.Launch(f, &all, 0), driver.ErrInvalid)
	for _, c := range []struct {
		cluster driver.Dim
		kind    error
	}{
		{driver.Dim{X: 8}, nil}, {driver.Dim{X: 2, Y: 2, Z: 2}, nil}, {driver.Dim{X: 16}, driver.ErrInvalid},
		{driver.Dim{X: 3}, driver.ErrInvalid}, {driver.Dim{Z: 3}, driver.ErrInvalid}, {driver.Dim{X: 4, Y: 2, Z: 2}, driver.ErrInvalid},
	} {
		err := v.Launch(f, &driver.Launch{Grid: driver.Dim{X: 16, Y: 2, Z: 2}, Cluster: c.cluster}, 0)
		require.ErrorIs(t, err, c.kind, "%+v", c.cluster)
	}
	require.NoError(t, v.Sync())
}

// A kernel that another one waits for keeps other streams from nothing.
func TestKernelsOfTwoStreams(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	meet := make(chan bool)
	f := kernel(t, v, func(l *driver.Launch) error {
		if l.Grid.X == 1 {
			meet <- true
			return nil
		}
		<-meet
		return nil
	})
	for i := range uint32(2) {
		s, err := v.NewStream()
		require.NoError(t, err)
		require.NoError(t, v.Launch(f, &driver.Launch{Grid: driver.Dim{X: i + 1}}, s))
	}
	require.NoError(t, v.Sync())
}
