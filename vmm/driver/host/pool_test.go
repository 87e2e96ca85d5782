//go:build linux

package host_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// poolDevice is a Device with what pools need.
type poolDevice interface {
	driver.Device
	driver.Allocator
	driver.HostAllocator
	driver.Grapher
	driver.Pooler
	driver.PeerCopier
	driver.StreamMemOps
}

func openPools(t *testing.T, d *host.Driver, n int) poolDevice {
	t.Helper()
	v, err := d.Open(n)
	require.NoError(t, err)
	return v.(poolDevice)
}

const page = 64 << 10

// pooled is n pages of a pool.
func pooled(t *testing.T, v poolDevice, p driver.Pool, n uint64, s driver.Stream) driver.Ptr {
	t.Helper()
	at, err := v.AllocFromPool(p, n*page, s)
	require.NoError(t, err)
	return at
}

func newPool(t *testing.T, v poolDevice, props driver.PoolProps) driver.Pool {
	t.Helper()
	p, err := v.CreatePool(props)
	require.NoError(t, err)
	return p
}

func newStream(t *testing.T, v poolDevice) driver.Stream {
	t.Helper()
	s, err := v.NewStream()
	require.NoError(t, err)
	return s
}

// holdStream makes a stream wait until open is called.
func holdStream(t *testing.T, v poolDevice, s driver.Stream) (open func()) {
	t.Helper()
	word, _, err := v.AllocHost(8)
	require.NoError(t, err)
	require.NoError(t, v.WaitValue(s, word, 1, 8))
	other := newStream(t, v)
	return func() { require.NoError(t, v.WriteValue(other, word, 1, 8)) }
}

func attribute(t *testing.T, v poolDevice, p driver.Pool, a driver.PoolAttribute) uint64 {
	t.Helper()
	n, err := v.PoolAttribute(p, a)
	require.NoError(t, err)
	return n
}

// Memory is one stream's at once, and another's when its free has run; without the
// opportunistic policy, when a wait has shown that.
func TestPoolReuse(t *testing.T) {
	d := host.New(host.Config{Memory: 64 << 20})
	v := openPools(t, d, 0)
	s, other := newStream(t, v), newStream(t, v)
	p := newPool(t, v, driver.PoolProps{})
	require.NoError(t, v.SetPoolAttribute(p, driver.PoolReleaseThreshold, math.MaxUint64))
	at := pooled(t, v, p, 2, s)
	open := holdStream(t, v, s)
	require.NoError(t, v.FreeAsync(at, s))
	require.EqualValues(t, 2*page, attribute(t, v, p, driver.PoolUsed), "the free has not run")
	require.Equal(t, at, pooled(t, v, p, 2, s), "in the same stream")
	require.NoError(t, v.FreeAsync(at, s))
	elsewhere := pooled(t, v, p, 2, other)
	require.NotEqual(t, at, elsewhere)
	require.NoError(t, v.FreePlain(elsewhere))
	require.Equal(t, elsewhere, pooled(t, v, p, 1, other), "half of it is enough")
	require.NoError(t, v.FreePlain(elsewhere))
	_, err := v.AllocFromPool(p, page/2, other)
	require.NoError(t, err)
	require.EqualValues(t, 4*page+page/2, attribute(t, v, p, driver.PoolReserved), "a quarter is not")

	require.NoError(t, v.SetPoolAttribute(p, driver.PoolReuseOpportunistic, 0))
	require.NoError(t, v.FreePlain(pooled(t, v, p, 2, other)))
	taken := pooled(t, v, p, 2, other)
	require.Equal(t, elsewhere, taken, "nothing uses what was freed at once")
	open()
	require.Eventually(t, func() bool { done, err := v.StreamDone(s); return err == nil && done }, time.Minute, time.Millisecond)
	fresh := pooled(t, v, p, 2, other)
	require.NotEqual(t, at, fresh, "no wait has shown that the free has run")
	require.NoError(t, v.SyncStream(s))
	require.Equal(t, at, pooled(t, v, p, 2, other))
	require.NoError(t, v.Close())
}

// What pools cache is given up where the device, or the pool, has no more.
func TestPoolMemoryRunsOut(t *testing.T) {
	d := host.New(host.Config{Memory: 16 * page, Granularity: page})
	v := openPools(t, d, 0)
	s := v.CopyStream()
	one, two := newPool(t, v, driver.PoolProps{Max: 8 * page}), newPool(t, v, driver.PoolProps{})
	for _, p := range []driver.Pool{one, two} {
		require.NoError(t, v.SetPoolAttribute(p, driver.PoolReleaseThreshold, math.MaxUint64))
	}
	at := pooled(t, v, one, 8, s)
	_, err := v.AllocFromPool(one, page, s)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	require.NoError(t, v.FreeAsync(at, s))
	at = pooled(t, v, one, 1, s)
	require.EqualValues(t, page, attribute(t, v, one, driver.PoolReserved))
	require.EqualValues(t, 8*page, attribute(t, v, one, driver.PoolReservedPeak))
	require.NoError(t, v.FreeAsync(at, s))

	at = pooled(t, v, two, 16, s)
	require.Zero(t, attribute(t, v, one, driver.PoolReserved))
	_, err = v.AllocFromPool(one, page, s)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	_, err = d.Create(page, driver.Prop{Location: driver.Location{Kind: driver.LocationDevice}})
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	require.NoError(t, v.DestroyPool(two))
	require.NoError(t, v.FreeAsync(at, s))
	free, _, err := v.MemInfo()
	require.NoError(t, err)
	require.EqualValues(t, 16*page, free)
	require.NoError(t, v.Close())
}

// As on the card, what is not ordered with a free loses the devices, once the memory goes.
func TestPoolUseAfterFree(t *testing.T) {
	d := host.New(host.Config{Memory: 64 << 20})
	v := openPools(t, d, 0)
	s, other := newStream(t, v), newStream(t, v)
	p := newPool(t, v, driver.PoolProps{})
	at := pooled(t, v, p, 1, s)
	holdStream(t, v, other)
	require.NoError(t, v.Fill(at, 1, 1, page, other))
	require.NoError(t, v.FreeAsync(at, s))
	require.ErrorIs(t, v.Fill(at, 1, 1, page, s), driver.ErrInvalid, "nothing lies there any more")
	_, _, err := v.PoolOf(at)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.NoError(t, v.SyncStream(s))
	_, err = v.AllocFromPool(p, page, s)
	require.ErrorIs(t, err, driver.ErrDeviceLost)
	require.NoError(t, v.DestroyPool(p), "on a lost device too")
	require.NoError(t, v.Close())
}

// A device without access may not touch the memory, and memory that lost its access under
// work loses the devices.
func TestPoolAccess(t *testing.T) {
	d := host.New(host.Config{Devices: 2, Memory: 64 << 20})
	v, peer := openPools(t, d, 0), openPools(t, d, 1)
	s := newStream(t, peer)
	p := newPool(t, v, driver.PoolProps{})
	at := pooled(t, v, p, 1, s)
	grants := func(a driver.Access) []driver.Grant {
		return []driver.Grant{{To: driver.Location{Kind: driver.LocationDevice, ID: 1}, Access: a}}
	}
	require.ErrorIs(t, peer.CopyIn(at, []byte{1}), driver.ErrInvalid)
	require.NoError(t, v.SetPoolAccess(p, grants(driver.AccessRead)))
	require.ErrorIs(t, peer.CopyIn(at, []byte{1}), driver.ErrInvalid)
	require.NoError(t, peer.CopyOut([]byte{1}, at))
	require.NoError(t, v.SetPoolAccess(p, grants(driver.AccessReadWrite)))
	holdStream(t, peer, s)
	require.NoError(t, peer.Fill(at, 1, 1, page, s))
	require.NoError(t, v.SetPoolAccess(p, grants(driver.AccessNone)))
	require.ErrorIs(t, v.Sync(), driver.ErrDeviceLost)
	require.NoError(t, v.Close())
	require.NoError(t, peer.Close())
}

// A capture takes no part of a pool, and goes on.
func TestPoolInCapture(t *testing.T) {
	d := host.New(host.Config{Memory: 64 << 20})
	v := openPools(t, d, 0)
	s := newStream(t, v)
	at, err := v.AllocAsync(page, s)
	require.NoError(t, err)
	require.NoError(t, v.BeginCapture(s, driver.CaptureGlobal))
	_, err = v.AllocAsync(page, s)
	require.ErrorIs(t, err, driver.ErrNotSupported)
	require.ErrorIs(t, v.FreeAsync(at, s), driver.ErrNotSupported)
	require.NoError(t, v.Fill(at, 1, 1, page, s))
	g, err := v.EndCapture(s)
	require.NoError(t, err)
	require.NoError(t, v.FreeGraph(g))
	require.NoError(t, v.FreeAsync(at, s))
	require.NoError(t, v.Close())
}

// Pools go with the Device that made them, and all with their context.
func TestPoolEnds(t *testing.T) {
	d := host.New(host.Config{Devices: 2, Memory: 64 << 20})
	v, again, other := openPools(t, d, 0), openPools(t, d, 0), openPools(t, d, 1)
	p, q := newPool(t, v, driver.PoolProps{}), newPool(t, again, driver.PoolProps{})
	at := pooled(t, again, p, 1, again.CopyStream())
	require.NoError(t, v.Close())
	_, err := again.AllocFromPool(p, page, again.CopyStream())
	require.ErrorIs(t, err, driver.ErrInvalid, "its maker has closed")
	require.NoError(t, again.CopyIn(at, []byte{1}), "its memory is there")
	require.NoError(t, again.FreeAsync(at, again.CopyStream()))
	pooled(t, again, q, 1, other.CopyStream())

	require.NoError(t, d.ResetContext(0))
	_, err = again.PoolAttribute(q, driver.PoolUsed)
	require.ErrorIs(t, err, driver.ErrContextReset)
	_, err = other.PoolAttribute(q, driver.PoolUsed)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.NoError(t, again.DestroyPool(q))
	anew := openPools(t, d, 0)
	free, total, err := anew.MemInfo()
	require.NoError(t, err)
	require.Equal(t, total, free, "the memory went with the context")
	pooled(t, anew, newPool(t, anew, driver.PoolProps{}), 1, anew.CopyStream())
	require.NoError(t, again.Close())
	require.NoError(t, anew.Close())
	anew = openPools(t, d, 0)
	free, _, err = anew.MemInfo()
	require.NoError(t, err)
	require.Equal(t, total, free)
	require.NoError(t, anew.Close())
	require.NoError(t, other.Close())
}

// Mapped memory is copied between devices where each may use its own side alone.
func TestCopyPeerOfMappedMemory(t *testing.T) {
	d := host.New(host.Config{Devices: 3, Memory: 64 << 20, Granularity: page, NoPeer: [][2]int{{0, 1}}})
	v := openPools(t, d, 2)
	var at [2]driver.Ptr
	for i := range at {
		var err error
		at[i], err = d.Reserve(page, 0)
		require.NoError(t, err)
		to := driver.Location{Kind: driver.LocationDevice, ID: i}
		h, err := d.Create(page, driver.Prop{Location: to})
		require.NoError(t, err)
		require.NoError(t, d.Map(at[i], page, h))
		require.NoError(t, d.Release(h))
		require.NoError(t, d.SetAccess(at[i], page, []driver.Grant{{To: to, Access: driver.AccessReadWrite}}))
	}
	s := newStream(t, v)
	require.ErrorIs(t, v.Copy(at[1], at[0], page, s), driver.ErrInvalid)
	require.NoError(t, v.CopyPeer(at[1], 1, at[0], 0, page, s))
	require.NoError(t, v.SyncStream(s))
	require.ErrorIs(t, v.CopyPeer(at[0], 1, at[0], 0, page, s), driver.ErrInvalid)

	// Captured, it is checked again at each launch.
	require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
	require.NoError(t, v.CopyPeer(at[1], 1, at[0], 0, page, s))
	g, err := v.EndCapture(s)
	require.NoError(t, err)
	x, err := v.Instantiate(g)
	require.NoError(t, err)
	require.NoError(t, v.LaunchGraph(x, s))
	require.NoError(t, v.SyncStream(s))
	none := []driver.Grant{{To: driver.Location{Kind: driver.LocationDevice, ID: 1}}}
	require.NoError(t, d.SetAccess(at[1], page, none))
	require.ErrorIs(t, v.CopyPeer(at[1], 1, at[0], 0, page, s), driver.ErrInvalid)
	require.NoError(t, v.FreeGraphExec(x))
	require.NoError(t, v.FreeGraph(g))
	for i := range at {
		require.NoError(t, d.Unmap(at[i], page))
		require.NoError(t, d.Free(at[i], page))
	}
	require.NoError(t, v.Close())
}
