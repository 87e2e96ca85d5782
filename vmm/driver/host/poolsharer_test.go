//go:build linux

package host

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// sharedPool is a pool of v that can be shared, and a descriptor of it.
func sharedPool(t testing.TB, v *device) (driver.Pool, *os.File) {
	t.Helper()
	p, err := v.CreatePool(driver.PoolProps{Share: driver.ShareFD})
	require.NoError(t, err)
	fd, err := v.ExportPool(p)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "pool")
	t.Cleanup(func() { _ = f.Close() })
	return p, f
}

// allocated is n bytes of a pool that begin with b, and their token.
func allocated(t testing.TB, v *device, p driver.Pool, n uint64, b byte) (driver.Ptr, driver.PoolToken) {
	t.Helper()
	at, err := v.AllocFromPool(p, n, v.CopyStream())
	require.NoError(t, err)
	require.NoError(t, v.CopyIn(at, []byte{b}))
	token, err := v.ExportPointer(at)
	require.NoError(t, err)
	again, err := v.ExportPointer(at)
	require.NoError(t, err)
	require.Equal(t, token, again)
	return at, token
}

func poolAttribute(t testing.TB, v *device, p driver.Pool, a driver.PoolAttribute) uint64 {
	t.Helper()
	n, err := v.PoolAttribute(p, a)
	require.NoError(t, err)
	return n
}

// TestImportPool: two Drivers are as two processes. All memory is back at the end.
func TestImportPool(t *testing.T) {
	before := holds(t)
	one, two := New(Config{Devices: 2, Memory: mib}), New(Config{Devices: 2, Memory: mib})
	v, w := open(t, one, 1), open(t, two, 1)
	p, fd := sharedPool(t, v)
	at, token := allocated(t, v, p, 5000, 1)
	q, err := w.ImportPool(int(fd.Fd()))
	require.NoError(t, err)
	require.NoError(t, fd.Close())
	there, err := w.ImportPointer(q, token)
	require.NoError(t, err)
	require.Equal(t, byte(1), first(t, w, there))
	require.NoError(t, w.CopyIn(there, []byte{8}))
	require.Equal(t, byte(8), first(t, v, at))
	require.ErrorIs(t, w.CopyIn(there+4999, []byte{1, 2}), driver.ErrInvalid, "past the end")
	require.EqualValues(t, mib, free(t, w), "it counts for its maker alone")
	of, dev, err := w.PoolOf(there)
	require.NoError(t, err)
	require.Equal(t, q, of)
	require.Equal(t, 1, dev)
	for _, a := range []driver.PoolAttribute{driver.PoolReserved, driver.PoolReservedPeak, driver.PoolUsed, driver.PoolUsedPeak} {
		require.EqualValues(t, 8192, poolAttribute(t, w, q, a), a)
	}

	// Only its own device has access until it is granted.
	other := open(t, two, 0)
	require.ErrorIs(t, other.Copy(there, there, 1, other.CopyStream()), driver.ErrInvalid)
	require.NoError(t, w.SetPoolAccess(q, grant(0, driver.AccessRead)))
	require.NoError(t, other.Copy(mustAlloc(t, other), there, 1, other.CopyStream()))
	require.NoError(t, other.Sync())

	again, err := w.ImportPointer(q, token)
	require.NoError(t, err)
	require.Equal(t, there, again)
	require.ErrorIs(t, w.DestroyPool(q), driver.ErrInvalid, "memory of it is imported")
	require.Equal(t, byte(8), first(t, w, there))
	require.NoError(t, w.FreePlain(there))
	require.ErrorIs(t, w.FreePlain(there), driver.ErrInvalid, "the first free ends both")
	require.Zero(t, poolAttribute(t, w, q, driver.PoolReserved))
	there, err = w.ImportPointer(q, token)
	require.NoError(t, err)
	require.NoError(t, w.FreeAsync(there, w.CopyStream()))
	require.NoError(t, v.FreeAsync(at, v.CopyStream()))
	_, err = w.ImportPointer(q, token)
	require.ErrorIs(t, err, driver.ErrInvalid, "it was freed")

	require.NoError(t, v.DestroyPool(p))
	require.EqualValues(t, mib, free(t, v))
	require.NoError(t, w.DestroyPool(q))
	for _, x := range []*device{v, w, other} {
		require.NoError(t, x.Close())
	}
	require.Equal(t, before, holds(t))
	require.Zero(t, one.mappings+two.mappings)
}

func mustAlloc(t testing.TB, v *device) driver.Ptr {
	t.Helper()
	p, err := v.AllocPlain(1)
	require.NoError(t, err)
	return p
}

// TestImportedPoolLimits: nothing can be allocated from it, made of it, or exported of it.
func TestImportedPoolLimits(t *testing.T) {
	v, w := open(t, New(Config{}), 0), open(t, New(Config{}), 0)
	p, fd := sharedPool(t, v)
	_, token := allocated(t, v, p, 1, 1)
	q, err := w.ImportPool(int(fd.Fd()))
	require.NoError(t, err)
	there, err := w.ImportPointer(q, token)
	require.NoError(t, err)
	_, err = w.AllocFromPool(q, 1, w.CopyStream())
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorIs(t, w.SetCurrentPool(q), driver.ErrInvalid)
	_, err = w.ExportPool(q)
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = w.ExportPointer(there)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.NoError(t, w.SetPoolAttribute(q, driver.PoolReleaseThreshold, 1<<40))
	require.NoError(t, w.FreePlain(there))
	require.Zero(t, poolAttribute(t, w, q, driver.PoolReserved), "nothing can be allocated from it")
	require.NoError(t, w.TrimPool(q, 0))

	private, err := v.CreatePool(driver.PoolProps{})
	require.NoError(t, err)
	own, err := v.DefaultPool()
	require.NoError(t, err)
	for _, bad := range []driver.Pool{0, private, own} {
		fd, err := v.ExportPool(bad)
		require.ErrorIs(t, err, driver.ErrInvalid)
		require.Equal(t, -1, fd)
		_, err = v.ImportPointer(bad, token)
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	at, err := v.AllocFromPool(private, 1, v.CopyStream())
	require.NoError(t, err)
	for _, bad := range []driver.Ptr{0, at, mustAlloc(t, v)} {
		_, err := v.ExportPointer(bad)
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	other, _ := sharedPool(t, v)
	_, foreign := allocated(t, v, other, 1, 1)
	for i := range token {
		bad := token
		bad[i] ^= 0x81
		_, err := w.ImportPointer(q, bad)
		require.ErrorIs(t, err, driver.ErrInvalid, i)
	}
	for _, bad := range []driver.PoolToken{{}, foreign} {
		_, err := w.ImportPointer(q, bad)
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
}

// TestDestroyImportedPool: a queued free is enough, a lost device too, and Close needs
// neither.
func TestDestroyImportedPool(t *testing.T) {
	before := holds(t)
	v, d := open(t, New(Config{}), 0), New(Config{})
	p, fd := sharedPool(t, v)
	_, token := allocated(t, v, p, 1, 1)
	imported := func(w *device) (driver.Pool, driver.Ptr) {
		q, err := w.ImportPool(int(fd.Fd()))
		require.NoError(t, err)
		there, err := w.ImportPointer(q, token)
		require.NoError(t, err)
		require.ErrorIs(t, w.DestroyPool(q), driver.ErrInvalid)
		return q, there
	}
	w := open(t, d, 0)
	q, there := imported(w)
	let := gate(t, w, w.CopyStream())
	require.NoError(t, w.FreeAsync(there, w.CopyStream()))
	require.NoError(t, w.DestroyPool(q))
	require.ErrorIs(t, w.DestroyPool(q), driver.ErrInvalid)
	let()
	imported(w)
	require.NoError(t, w.Close())
	require.Zero(t, d.mappings)

	lost := New(Config{})
	w = open(t, lost, 0)
	q, there = imported(w)
	lost.workMu.Lock()
	lost.lose("a test")
	lost.workMu.Unlock()
	require.ErrorIs(t, w.FreePlain(there), driver.ErrDeviceLost)
	require.NoError(t, w.DestroyPool(q))
	require.NoError(t, w.Close())
	require.NoError(t, fd.Close())
	require.NoError(t, v.Close())
	require.Equal(t, before, holds(t))
}

// TestImportPoolRefusesOtherFiles: memory that is exported is a memory file too.
func TestImportPoolRefusesOtherFiles(t *testing.T) {
	d := New(Config{})
	v := open(t, d, 0)
	h := create(t, d, 2*mib, shared)
	chunk := export(t, d, h)
	require.NoError(t, d.Release(h))
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(null) })
	_, fd := sharedPool(t, v)
	readOnly, err := reopen(int(fd.Fd()), unix.O_RDONLY)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(readOnly) })
	for _, bad := range []int{-1, 1 << 30, null, chunk, readOnly} {
		_, err := v.ImportPool(bad)
		require.ErrorIs(t, err, driver.ErrInvalid, bad)
	}
	_, err = open(t, New(Config{}), 0).ImportPool(int(fd.Fd()))
	require.NoError(t, err)
}
