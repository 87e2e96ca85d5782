//go:build cgo && linux

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// twice is two bindings on one fake driver: to each the other one is another library.
func twice(t *testing.T) (d, other *cuda.Driver, fake *fakecuda.Library) {
	t.Helper()
	path := fakecuda.Build(t)
	fake = fakecuda.Open(t, path)
	t.Cleanup(fake.Clean)
	for _, x := range []**cuda.Driver{&d, &other} {
		var err error
		*x, err = cuda.Loaded(path)
		require.NoError(t, err)
	}
	return d, other, fake
}

// Of an older driver nothing is asked that it does not know.
func TestPoolVersions(t *testing.T) {
	for _, c := range []struct {
		version            int
		pools, share, most bool
	}{
		{11010, false, false, false}, {11020, true, false, false}, {11030, true, true, false}, {12010, true, true, false}, {12020, true, true, true},
	} {
		d, _ := onFake(t, fakecuda.Version(c.version))
		v := openOn(t, d, 0)
		expect := func(yes bool, err error, what string) {
			t.Helper()
			if yes {
				require.NoError(t, err, "%s of %d", what, c.version)
			} else {
				isOnly(t, err, driver.ErrNotSupported, what, c.version)
			}
		}
		expect(c.pools, d.Supports(0, driver.FeaturePools), "pools")
		expect(c.share, d.Supports(0, driver.FeaturePoolShareFD), "to share them")
		expect(false, d.Supports(0, driver.FeaturePoolShareFabric), "to share them in a fabric")
		ways, err := v.PoolShares()
		require.NoError(t, err)
		require.Equal(t, c.share, ways == driver.ShareFD)
		_, err = v.CreatePool(driver.PoolProps{Share: driver.ShareFD})
		expect(c.share, err, "a pool to share")
		_, err = v.CreatePool(driver.PoolProps{Max: 1 << 20})
		expect(c.most, err, "a pool with a limit")
		require.NoError(t, v.Close(), "it destroys the pools")
	}
}

// A driver without one of the symbols has no such call.
func TestPoolSymbols(t *testing.T) {
	d, _ := onFake(t, fakecuda.Missing("cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool", "cuDeviceSetMemPool", "cuMemPoolCreate", "cuMemPoolDestroy",
		"cuMemAllocFromPoolAsync", "cuMemPoolTrimTo", "cuMemPoolGetAttribute", "cuMemPoolSetAttribute",
		"cuMemPoolGetAccess", "cuMemPoolSetAccess", "cuMemcpyPeerAsync", "cuStreamGetCtx"))
	v := openOn(t, d, 0)
	isOnly(t, d.Supports(0, driver.FeaturePools), driver.ErrNotSupported)
	isOnly(t, d.Supports(0, driver.FeaturePoolShareFD), driver.ErrNotSupported)
	_, err := v.DefaultPool()
	isOnly(t, err, driver.ErrNotSupported)
	_, err = v.CurrentPool()
	isOnly(t, err, driver.ErrNotSupported)
	_, err = v.CreatePool(driver.PoolProps{})
	isOnly(t, err, driver.ErrNotSupported)
	isOnly(t, v.TrimPool(1, 0), driver.ErrNotSupported)
	p, err := v.AllocPlain(1)
	require.NoError(t, err)
	of, dev, err := v.PoolOf(p)
	require.NoError(t, err)
	require.Equal(t, driver.Pool(0), of)
	require.Equal(t, 0, dev)
	isOnly(t, v.CopyPeer(p, 0, p, 0, 1, v.CopyStream()), driver.ErrNotSupported)
	require.NoError(t, v.FreePlain(p))
	require.NoError(t, v.Close())
}

// The attribute promises fabric handles that creating a pool refuses.
func TestPoolShares(t *testing.T) {
	for _, c := range []struct {
		changes []fakelib.Change
		ways    driver.Share
		fabric  error
	}{
		{nil, driver.ShareFD, driver.ErrNotSupported},
		{[]fakelib.Change{fakecuda.Fabric()}, driver.ShareFD | driver.ShareFabric, nil},
	} {
		d, fake := onFake(t, c.changes...)
		v := openOn(t, d, 0)
		ways, err := v.PoolShares()
		require.NoError(t, err)
		require.Equal(t, c.ways, ways)
		require.ErrorIs(t, d.Supports(1, driver.FeaturePoolShareFabric), c.fabric)
		fake.Fail("cuMemPoolCreate", 1, 2)
		isOnly(t, d.Supports(1, driver.FeaturePoolShareFD), driver.ErrOutOfMemory)
		fake.Fail("cuMemPoolCreate", 1, 2)
		_, err = v.PoolShares()
		isOnly(t, err, driver.ErrOutOfMemory)
		_, err = v.CreatePool(driver.PoolProps{Share: driver.ShareReadOnly})
		isOnly(t, err, driver.ErrNotSupported)
		_, err = v.CreatePool(driver.PoolProps{Share: 1 << 7})
		isOnly(t, err, driver.ErrInvalid)
		require.NoError(t, v.Close())
	}
}

// What is no pool, or was one, does not reach libcuda, which would crash on it.
func TestPoolHandles(t *testing.T) {
	d, fake := onFake(t)
	v, w := openOn(t, d, 0), openOn(t, d, 1)
	s, err := v.NewStream()
	require.NoError(t, err)
	p, err := v.CreatePool(driver.PoolProps{})
	require.NoError(t, err)
	block, err := v.AllocFromPool(p, 1000, s)
	require.NoError(t, err)
	require.NoError(t, v.SetCurrentPool(p))
	require.NoError(t, v.DestroyPool(p))
	own, err := v.DefaultPool()
	require.NoError(t, err)
	current, err := v.CurrentPool()
	require.NoError(t, err)
	require.Equal(t, own, current)

	pools := []string{"cuMemAllocFromPoolAsync", "cuMemPoolTrimTo", "cuMemPoolGetAttribute", "cuMemPoolSetAttribute", "cuMemPoolSetAccess",
		"cuMemPoolGetAccess", "cuDeviceSetMemPool", "cuMemPoolDestroy"}
	reached := func() (n int) {
		for _, symbol := range pools {
			n += fake.Calls(symbol)
		}
		return n
	}
	before := reached()
	for _, bad := range []driver.Pool{0, 1, p} {
		_, err := v.AllocFromPool(bad, 1, s)
		isOnly(t, err, driver.ErrInvalid)
		isOnly(t, v.TrimPool(bad, 0), driver.ErrInvalid)
		_, err = v.PoolAttribute(bad, driver.PoolUsed)
		isOnly(t, err, driver.ErrInvalid)
		isOnly(t, v.SetPoolAttribute(bad, driver.PoolReleaseThreshold, 1), driver.ErrInvalid)
		isOnly(t, v.SetPoolAccess(bad, []driver.Grant{{To: onDevice(1)}}), driver.ErrInvalid)
		_, err = v.PoolAccess(bad, onDevice(1))
		isOnly(t, err, driver.ErrInvalid)
		isOnly(t, v.SetCurrentPool(bad), driver.ErrInvalid)
		isOnly(t, v.DestroyPool(bad), driver.ErrInvalid)
	}
	// So does not what breaks a rule.
	others, err := w.DefaultPool()
	require.NoError(t, err)
	isOnly(t, v.SetCurrentPool(others), driver.ErrInvalid)
	isOnly(t, v.DestroyPool(own), driver.ErrInvalid)
	isOnly(t, v.SetPoolAccess(own, nil), driver.ErrInvalid)
	isOnly(t, v.SetPoolAccess(own, []driver.Grant{{To: onDevice(0)}}), driver.ErrInvalid)
	isOnly(t, v.SetPoolAccess(others, []driver.Grant{{To: onDevice(1)}}), driver.ErrInvalid)
	isOnly(t, v.SetPoolAccess(own, []driver.Grant{{To: onDevice(1), Access: 9}}), driver.ErrInvalid)
	isOnly(t, v.SetPoolAccess(own, []driver.Grant{{To: onDevice(2), Access: driver.AccessRead}}), driver.ErrNoDevice)
	_, err = v.PoolAttribute(own, 0)
	isOnly(t, err, driver.ErrInvalid)
	_, err = v.PoolAttribute(own, 9)
	isOnly(t, err, driver.ErrInvalid)
	for a, value := range map[driver.PoolAttribute]uint64{driver.PoolReuseOpportunistic: 2, driver.PoolReserved: 0, driver.PoolUsedPeak: 1, 0: 0, 9: 0} {
		isOnly(t, v.SetPoolAttribute(own, a, value), driver.ErrInvalid)
	}
	require.Equal(t, before, reached(), "libcuda was asked")

	used, err := v.PoolAttribute(others, driver.PoolUsed)
	require.NoError(t, err, "another device's default pool is known")
	require.Zero(t, used)
	require.NoError(t, v.FreeAsync(block, s))
	_, _, err = v.PoolOf(block)
	isOnly(t, err, driver.ErrInvalid)
	require.NoError(t, v.FreeStream(s))
	require.NoError(t, v.Close())
	require.NoError(t, w.Close())
}

// A stream of any device of the process can order memory of a pool, also one that the
// binding did not make.
func TestPoolElsewhere(t *testing.T) {
	d, other, _ := twice(t)
	v, w, foreign := openOn(t, d, 0), openOn(t, d, 1), openOn(t, other, 1)
	p, err := v.CreatePool(driver.PoolProps{})
	require.NoError(t, err)
	require.NoError(t, v.SetPoolAccess(p, []driver.Grant{{To: onDevice(1), Access: driver.AccessReadWrite}}))
	for _, s := range []driver.Stream{v.CopyStream(), w.CopyStream(), foreign.CopyStream(), 0} {
		block, err := v.AllocFromPool(p, 4096, s)
		require.NoError(t, err)
		of, dev, err := w.PoolOf(block + 4095)
		require.NoError(t, err)
		require.Equal(t, p, of)
		require.Equal(t, 0, dev)
		require.NoError(t, w.CopyIn(block, []byte{1}), "it has access")
		require.NoError(t, v.FreeAsync(block, s))
	}
	a, err := w.PoolAccess(p, onDevice(1))
	require.NoError(t, err)
	require.Equal(t, driver.AccessReadWrite, a)
	isOnly(t, w.SetCurrentPool(p), driver.ErrInvalid)
	require.NoError(t, w.DestroyPool(p))
	for _, x := range []*cuda.Device{v, w, foreign} {
		require.NoError(t, x.Close())
	}
}

// Work on a stream of another context is queued with that context current.
func TestForeignStream(t *testing.T) {
	d, other, fake := twice(t)
	v, foreign := openOn(t, d, 0), openOn(t, other, 1)
	s := foreign.CopyStream()
	host, b, err := v.AllocHost(64)
	require.NoError(t, err)
	p, err := v.AllocPlain(64)
	require.NoError(t, err)
	q, err := foreign.AllocPlain(64)
	require.NoError(t, err)
	b[5] = 5
	rows := func(p driver.Ptr) driver.PitchedPtr { return driver.PitchedPtr{Ptr: p, Pitch: 8} }
	for name, call := range map[string]func() error{
		"Copy":     func() error { return v.Copy(p, host, 64, s) },
		"Copy2D":   func() error { return v.Copy2D(rows(p), rows(host), 8, 8, s) },
		"Fill":     func() error { return v.Fill(q, 1, 1, 8, s) },
		"CopyPeer": func() error { return v.CopyPeer(q, 1, p, 0, 64, s) },
		"AllocAsync": func() error {
			p, err := v.AllocAsync(8, s)
			require.NoError(t, err)
			return v.FreeAsync(p, s)
		},
	} {
		asked := fake.Calls("cuStreamGetCtx")
		require.NoError(t, call(), name)
		require.Greater(t, fake.Calls("cuStreamGetCtx"), asked, name)
		require.Empty(t, fake.Violations(), name)
	}
	// Where the second context cannot be made current, none is left so.
	fake.Fail("cuCtxPushCurrent_v2", 2, 201)
	isOnly(t, v.Copy(p, host, 64, s), driver.ErrInvalid)
	require.Zero(t, fake.Live().Pushed)
	asked := fake.Calls("cuStreamGetCtx")
	require.NoError(t, v.Copy(p, host, 64, v.CopyStream()))
	require.NoError(t, v.Copy(p, host, 64, 0))
	require.NoError(t, v.Copy(p, host, 64, 2))
	require.Equal(t, asked, fake.Calls("cuStreamGetCtx"), "of what is known nothing is asked")
	require.NoError(t, v.FreePlain(p))
	require.NoError(t, v.FreeHost(host))
	require.NoError(t, foreign.FreePlain(q))
	require.NoError(t, v.Close())
	require.NoError(t, foreign.Close())
}

// Close destroys the pools that are left. If that fails it can be called again.
func TestPoolClose(t *testing.T) {
	d, fake := onFake(t)
	v := openOn(t, d, 0)
	for range 3 {
		_, err := v.CreatePool(driver.PoolProps{})
		require.NoError(t, err)
	}
	fake.Fail("cuMemPoolDestroy", 2, 999)
	isOnly(t, v.Close(), nil)
	require.Equal(t, 2, fake.Live().Pools)
	require.NoError(t, v.Close())
}

func TestCopyPeer(t *testing.T) {
	d, fake, reset := onReset(t)
	v, w := openOn(t, d, 0), openOn(t, d, 1)
	p, err := v.AllocPlain(64)
	require.NoError(t, err)
	q, err := w.AllocPlain(64)
	require.NoError(t, err)
	require.NoError(t, v.CopyIn(p, []byte{1, 2, 3}))
	s := v.CopyStream()
	require.NoError(t, v.CopyPeer(q, 1, p, 0, 3, s))
	require.NoError(t, v.CopyPeer(q+3, 1, p, 0, 3, s))
	got := make([]byte, 6)
	require.NoError(t, w.CopyOut(got, q))
	require.Equal(t, []byte{1, 2, 3, 1, 2, 3}, got)
	require.Equal(t, 3, fake.Live().Contexts, "the other one is retained once")

	require.NoError(t, v.CopyPeer(q, 1, p, 0, 0, s))
	for _, bad := range [][2]int{{0, 0}, {1, 1}, {0, 1}} {
		isOnly(t, v.CopyPeer(q, bad[0], p, bad[1], 3, s), driver.ErrInvalid)
	}
	isOnly(t, v.CopyPeer(q, 2, p, 0, 3, s), driver.ErrNoDevice)
	isOnly(t, v.CopyPeer(q, 1, p, -1, 3, s), driver.ErrNoDevice)
	isOnly(t, v.CopyPeer(q, 1, p, 0, 65, s), driver.ErrInvalid)
	isOnly(t, v.CopyPeer(q, 1, p, 0, 1<<63, s), driver.ErrInvalid)
	isOnly(t, v.CopyPeer(1, 1, p, 0, 1, s), driver.ErrInvalid)

	// After a reset of the other device its new context is taken.
	reset(1)
	again := openOn(t, d, 1)
	q, err = again.AllocPlain(64)
	require.NoError(t, err)
	require.NoError(t, v.CopyPeer(q, 1, p, 0, 3, s))
	require.NoError(t, again.FreePlain(q))
	require.NoError(t, again.Close())
	require.NoError(t, w.Close())
	require.NoError(t, v.FreePlain(p))
	require.NoError(t, v.Close())
}
