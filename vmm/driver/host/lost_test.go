//go:build linux

package host

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStormOfCopiesAndUnmaps unmaps memory under copies and kernels in every state. If a
// copy touched one page too late, the process would end with SIGSEGV.
func TestStormOfCopiesAndUnmaps(t *testing.T) {
	const size, copiers = 4 * mib, 3
	lost := 0
	for round := range testgate.Effort(9, 24, 24) {
		d := New(Config{Devices: 2, Memory: 64 * mib})
		p := chunk(t, d, size)
		require.NoError(t, d.SetAccess(p, size, grant(1, driver.AccessReadWrite)))
		stop := make(chan struct{})
		var started, ended sync.WaitGroup
		for i := range copiers {
			v := open(t, d, i%2)
			s, err := v.NewStream()
			require.NoError(t, err)
			f := kernel(t, v, func(*driver.Launch) error {
				clear(bytesAt(uint64(p), size))
				return nil
			})
			started.Add(1)
			ended.Go(func() {
				buf := make([]byte, size)
				for n := 0; ; n++ {
					var err error
					switch (n + i) % 5 {
					case 0:
						err = v.CopyIn(p, buf)
					case 1:
						err = v.CopyOut(buf, p)
					case 2:
						err = v.Fill(p, uint32(n), 4, size/4, s)
					case 3:
						err = v.Copy(p+size/2, p, size/2, s)
					case 4:
						err = v.Launch(f, uses(p, 0, driver.AccessReadWrite), s)
					}
					if n == 0 {
						started.Done()
					}
					if err != nil && !errors.Is(err, driver.ErrDeviceLost) && !errors.Is(err, driver.ErrInvalid) {
						t.Error(err)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		started.Wait()
		switch round % 3 {
		case 0:
			require.NoError(t, d.Unmap(p, size))
		case 1:
			require.NoError(t, d.SetAccess(p, size, []driver.Grant{{To: on(0)}, {To: on(1)}}))
		case 2:
			require.NoError(t, d.SetAccess(p, size, []driver.Grant{{To: on(0), Access: driver.AccessRead}, {To: on(1)}}))
		}
		close(stop)
		ended.Wait()
		if d.lost.Load() {
			lost++
		}
	}
	require.NotZero(t, lost, "no unmap met running work: this test tests nothing")
}

// TestLostDeviceGivesBack holds that memory can be freed, that nothing of
// the system is kept, and that no goroutine still waits at a closed gate.
func TestLostDeviceGivesBack(t *testing.T) {
	before := holds(t)
	d := New(Config{Devices: 2, Memory: 64 * mib})
	v, err := d.Open(0)
	require.NoError(t, err)
	other := open(t, d, 1)
	p := reserved(t, d, 8*mib)
	h := create(t, d, 4*mib, home)
	for i := range driver.Ptr(2) {
		require.NoError(t, d.Map(p+i*4*mib, 4*mib, h))
	}
	both := []driver.Grant{{To: on(0), Access: driver.AccessReadWrite}, {To: on(1), Access: driver.AccessRead}}
	require.NoError(t, d.SetAccess(p, 8*mib, both))
	s, err := v.NewStream()
	require.NoError(t, err)
	gate(t, v.(*device), s)
	require.NoError(t, v.Fill(p, 1, 4, mib, s))
	e, err := v.NewEvent(0)
	require.NoError(t, err)
	require.NoError(t, v.Record(e, s))
	require.NoError(t, other.Wait(0, e))
	m, _, err := v.(*device).LoadModule(driver.Code{Host: map[string]driver.HostKernel{"k": {Run: fillKernel(p, 1, 1)}}})
	require.NoError(t, err)
	g, x := captured(t, v.(*device), func(s driver.Stream) { require.NoError(t, v.Fill(p, 1, 1, 1, s)) })

	require.NoError(t, d.SetAccess(p, 8*mib, grant(0, driver.AccessRead)), "nothing is queued that may not read")
	require.ErrorIs(t, v.SyncStream(s), driver.ErrDeviceLost)
	require.ErrorIs(t, other.Sync(), driver.ErrDeviceLost, "one lost device is a lost process, and a wait for lost work ends")
	require.ErrorIs(t, other.CopyOut(make([]byte, 1), p), driver.ErrDeviceLost)
	require.ErrorIs(t, other.SyncEvent(e), driver.ErrDeviceLost)

	for name, err := range map[string]error{
		"SetAccess":    d.SetAccess(p, 4*mib, grant(0, driver.AccessRead)),
		"Map":          d.Map(p, 4*mib, h),
		"SyncIfActive": d.SyncIfActive(0),
		"Supports":     d.Supports(0, driver.FeatureVMM),
		"CopyOut":      v.CopyOut(make([]byte, 1), p),
		"Sync":         v.Sync(),
	} {
		require.ErrorIs(t, err, driver.ErrDeviceLost, name)
	}
	_, err = d.Open(0)
	require.ErrorIs(t, err, driver.ErrDeviceLost)

	require.NoError(t, d.SetAccess(p, 4*mib, []driver.Grant{{To: on(0)}}))
	require.NoError(t, d.Unmap(p, 8*mib))
	require.NoError(t, d.Release(h))
	require.NoError(t, d.Free(p, 8*mib))
	require.NoError(t, v.FreeEvent(e))
	require.NoError(t, v.FreeStream(s))
	require.NoError(t, v.(*device).UnloadModule(m))
	require.NoError(t, v.(*device).FreeGraph(g))
	require.NoError(t, v.(*device).FreeGraphExec(x))
	require.ErrorIs(t, v.(*device).FreeGraphExec(x), driver.ErrInvalid)
	require.NoError(t, v.Close())
	require.NoError(t, v.Close())
	require.Zero(t, d.states[0].used)
	require.Equal(t, before, holds(t))
	require.Zero(t, d.mappings, "the gate went with its context")
}

// TestCloseEndsQueuedWork closes the last Device while work is queued after a closed
// gate, during a wait for that work.
func TestCloseEndsQueuedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Memory: 64 * mib})
		a, err := d.Open(0)
		require.NoError(t, err)
		b, err := d.Open(0)
		require.NoError(t, err)
		require.NotEqual(t, a.CopyStream(), b.CopyStream())
		p := chunk(t, d, 4*mib)
		gate(t, a.(*device), b.CopyStream())
		require.NoError(t, b.Fill(p, 1, 1, 4*mib, b.CopyStream()))
		synced := make(chan error, 1)
		go func() { synced <- b.SyncStream(b.CopyStream()) }()

		require.NoError(t, a.Close())
		require.ErrorIs(t, a.Sync(), driver.ErrClosed)
		synctest.Wait()
		require.Empty(t, synced, "a Device is still open")
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-synced, driver.ErrClosed)
		require.NoError(t, d.SyncIfActive(0), "it is not open")
		require.Equal(t, 1, d.mappings, "the chunk is left, the gate's block is not")
		require.NoError(t, d.Unmap(p, 4*mib))
		require.False(t, d.lost.Load())
	})
}

// TestCloseEndsSyncIfActive closes the last Device during a wait for
// the context, which is then not active.
func TestCloseEndsSyncIfActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Memory: 64 * mib})
		v, err := d.Open(0)
		require.NoError(t, err)
		p := chunk(t, d, 4*mib)
		gate(t, v.(*device), v.CopyStream())
		require.NoError(t, v.Fill(p, 1, 1, 4*mib, v.CopyStream()))
		synced := make(chan error, 1)
		go func() { synced <- d.SyncIfActive(0) }()
		synctest.Wait()
		require.NoError(t, v.Close())
		require.NoError(t, <-synced)
	})
}

// TestFreeWaits: pinned memory stays until queued work on it has ended, another
// device's too.
func TestFreeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{Devices: 2, Memory: 64 * mib})
		v, other := open(t, d, 0), open(t, d, 1)
		p := chunk(t, d, 4*mib)
		require.NoError(t, d.SetAccess(p, 4*mib, grant(1, driver.AccessReadWrite)))
		host, buf, err := v.AllocHost(4 * mib)
		require.NoError(t, err)
		copy(buf, pattern(4*mib))
		s, err := other.NewStream()
		require.NoError(t, err)
		pass := gate(t, other, s)
		require.NoError(t, other.Copy(p, host, 4*mib, s))

		freed := make(chan error, 1)
		go func() { freed <- v.FreeHost(host) }()
		synctest.Wait()
		require.Empty(t, freed, "freed under queued work")
		pass()
		require.NoError(t, <-freed)
		require.NoError(t, other.SyncStream(s))
		got := make([]byte, 4*mib)
		require.NoError(t, v.CopyOut(got, p))
		require.Equal(t, pattern(4*mib), got)
		require.ErrorIs(t, v.FreeHost(host), driver.ErrInvalid)
	})
}

// TestNothingDrifts runs whole cycles and compares what the process holds.
func TestNothingDrifts(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	cycle := func() {
		v, err := d.Open(0)
		require.NoError(t, err)
		p := reserved(t, d, 16*mib)
		h := create(t, d, 2*mib, shared)
		require.NoError(t, d.Map(p, 2*mib, h))
		require.NoError(t, d.Map(p+4*mib, 2*mib, h))
		require.NoError(t, d.SetAccess(p, 2*mib, grant(0, driver.AccessReadWrite)))
		require.NoError(t, v.CopyIn(p, pattern(2*mib)))
		fd, err := d.Export(h)
		require.NoError(t, err)
		i, err := d.Import(fd, 2*mib, shared)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		plain, err := v.(*device).AllocPlain(mib + 1)
		require.NoError(t, err)
		require.NoError(t, v.Copy(plain, p, mib, v.CopyStream()))
		require.NoError(t, v.(*device).FreePlain(plain))
		require.NoError(t, d.Unmap(p, 2*mib))
		require.NoError(t, d.Unmap(p+4*mib, 2*mib))
		require.NoError(t, d.Release(h))
		require.NoError(t, d.Release(i))
		require.NoError(t, d.Free(p, 16*mib))
		require.NoError(t, v.Close())
	}
	cycle()
	before, reservedBefore, mappingsBefore := holds(t), process.reserved, process.mappings
	for range testgate.Effort(10, 50, 50) {
		cycle()
	}
	require.Equal(t, before, holds(t))
	require.Zero(t, d.mappings)
	require.Equal(t, reservedBefore, process.reserved)
	require.Equal(t, mappingsBefore, process.mappings)
	require.Zero(t, d.states[0].used)
	require.Empty(t, d.created)
	require.Empty(t, d.orphans)
	require.Empty(t, d.events)
}
