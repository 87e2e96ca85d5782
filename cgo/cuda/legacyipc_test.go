//go:build cgo && linux

package cuda_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestOpenMemCounts: libcuda opens once, and closes with the last close.
func TestOpenMemCounts(t *testing.T) {
	_, v, fake := opened(t)
	others := fake.Foreign(0, 64)
	p, err := v.OpenMem(others.Memory)
	require.NoError(t, err)
	require.NoError(t, v.CopyIn(p, []byte{1, 2, 3}))
	again, err := v.OpenMem(others.Memory)
	require.NoError(t, err)
	require.Equal(t, p, again)
	require.Equal(t, 1, fake.Calls("cuIpcOpenMemHandle_v2"))
	isOnly(t, v.FreePlain(p), driver.ErrInvalid)
	isOnly(t, v.CloseMem(p+1), driver.ErrInvalid)
	require.NoError(t, v.CloseMem(p))
	require.Zero(t, fake.Calls("cuIpcCloseMemHandle"))
	// A close that fails can be made again.
	fake.Fail("cuIpcCloseMemHandle", 1, 2)
	isOnly(t, v.CloseMem(p), driver.ErrOutOfMemory)
	require.NoError(t, v.CloseMem(p))
	isOnly(t, v.CloseMem(p), driver.ErrInvalid)
	require.Equal(t, 2, fake.Calls("cuIpcCloseMemHandle"), "what is not open does not reach libcuda")

	fake.Fail("cuIpcOpenMemHandle_v2", 1, 2)
	_, err = v.OpenMem(others.Memory)
	isOnly(t, err, driver.ErrOutOfMemory)
	q, err := v.OpenMem(others.Memory)
	require.NoError(t, err)
	got := make([]byte, 3)
	require.NoError(t, v.CopyOut(got, q))
	require.Equal(t, []byte{1, 2, 3}, got)
	require.NoError(t, v.CloseMem(q))
}

// TestOpenMemConcurrently: each open is closed once.
func TestOpenMemConcurrently(t *testing.T) {
	_, v, fake := opened(t)
	others := fake.Foreign(0, 64)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				p, err := v.OpenMem(others.Memory)
				if err == nil {
					err = v.CloseMem(p)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, fake.Calls("cuIpcOpenMemHandle_v2"), fake.Calls("cuIpcCloseMemHandle"))
}

// TestLegacyIPCRefuses: what is refused, by us or by libcuda.
func TestLegacyIPCRefuses(t *testing.T) {
	d, v, fake := opened(t)
	others := fake.Foreign(1, 64)
	_, err := v.OpenMem(driver.IPCHandle{})
	isOnly(t, err, driver.ErrInvalid)
	_, err = v.OpenEvent(driver.IPCHandle{})
	isOnly(t, err, driver.ErrInvalid)
	_, err = v.OpenMem(others.Event)
	isOnly(t, err, driver.ErrInvalid)

	p, err := v.AllocPlain(4096)
	require.NoError(t, err)
	own, err := v.MemHandle(p)
	require.NoError(t, err)
	_, err = v.OpenMem(own)
	isOnly(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "a process cannot open a handle of its own")
	block, err := v.AllocAsync(64, v.CopyStream())
	require.NoError(t, err)
	for _, bad := range []driver.Ptr{0, 1, p + 256, block} {
		_, err := v.MemHandle(bad)
		isOnly(t, err, driver.ErrInvalid, bad)
	}
	require.NoError(t, v.FreePlain(block))
	require.NoError(t, v.FreePlain(p))

	e, err := v.NewEvent(driver.EventInterprocess)
	require.NoError(t, err)
	handle, err := v.EventHandle(e)
	require.NoError(t, err)
	_, err = v.OpenEvent(handle)
	isOnly(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "a process cannot open a handle of its own")
	require.NoError(t, v.FreeEvent(e))
	private, err := v.NewEvent(0)
	require.NoError(t, err)
	for _, bad := range []driver.Event{0, 1, e, private} {
		_, err := v.EventHandle(bad)
		isOnly(t, err, driver.ErrInvalid, bad)
	}
	require.NoError(t, v.FreeEvent(private))

	fake.Link(0, 1, fakecuda.NoPath)
	_, err = v.OpenMem(others.Memory)
	isOnly(t, err, driver.ErrNotSupported, "no path")
	w := openOn(t, d, 1)
	fake.End()
	_, err = w.OpenMem(others.Memory)
	isOnly(t, err, driver.ErrInvalid, "its maker has ended")
	opened, err := w.OpenEvent(others.Event)
	require.NoError(t, err, "as measured")
	_, err = w.EventHandle(opened)
	isOnly(t, err, driver.ErrInvalid)
	require.NoError(t, w.Record(opened, w.CopyStream()))
	require.NoError(t, v.Wait(v.CopyStream(), opened))
	require.NoError(t, w.SyncEvent(opened))
	done, err := w.Done(opened)
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, w.FreeEvent(opened))
	isOnly(t, w.FreeEvent(opened), driver.ErrInvalid)
	require.NoError(t, w.Close())
}

// Close closes the memory that is left open, and destroys the imported pools. If that
// fails it can be called again.
func TestCloseEndsWhatIsOthers(t *testing.T) {
	for _, symbol := range []string{"cuIpcCloseMemHandle", "cuMemPoolDestroy"} {
		d, fake := onFake(t)
		v := openOn(t, d, 0)
		x := makeBetween(t, v, fake)
		require.NoError(t, v.FreePlain(x.block))
		_, err := v.OpenMem(x.closed.Memory)
		require.NoError(t, err)
		_, err = v.OpenMem(x.closed.Memory)
		require.NoError(t, err)
		require.NoError(t, v.FreeEvent(x.ready))
		fake.Fail(symbol, 2, 999)
		isOnly(t, v.Close(), nil, symbol)
		require.NoError(t, v.Close())
	}
}

// After a reset of the context what was open is gone, and a Device opened anew opens it.
func TestOpenMemAfterReset(t *testing.T) {
	d, fake, reset := onReset(t)
	v := openOn(t, d, 0)
	others := fake.Foreign(0, 64)
	_, err := v.OpenMem(others.Memory)
	require.NoError(t, err)
	reset(0)
	_, err = v.OpenMem(others.Memory)
	if err == nil { // it is counted without a call
		_, err = v.OpenMem(fake.Foreign(0, 64).Memory)
	}
	isOnly(t, err, driver.ErrContextReset)
	w := openOn(t, d, 0)
	p, err := w.OpenMem(others.Memory)
	require.NoError(t, err)
	require.NoError(t, v.Close())
	require.NoError(t, w.CopyIn(p, []byte{1}), "another Device's is open still")
	require.NoError(t, w.CloseMem(p))
	require.NoError(t, w.Close())
}

// A driver without one of the symbols has no such call.
func TestLegacyIPCSymbols(t *testing.T) {
	d, _ := onFake(t, fakecuda.Missing("cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuIpcGetEventHandle", "cuIpcOpenEventHandle"))
	v := openOn(t, d, 0)
	e, err := v.NewEvent(driver.EventInterprocess)
	require.NoError(t, err)
	_, err = v.MemHandle(1)
	isOnly(t, err, driver.ErrNotSupported)
	_, err = v.OpenMem(driver.IPCHandle{})
	isOnly(t, err, driver.ErrNotSupported)
	_, err = v.EventHandle(e)
	isOnly(t, err, driver.ErrNotSupported)
	_, err = v.OpenEvent(driver.IPCHandle{})
	isOnly(t, err, driver.ErrNotSupported)
	require.NoError(t, v.FreeEvent(e))
	require.NoError(t, v.Close())
}

func TestImportedPool(t *testing.T) {
	d, v, fake := opened(t)
	x := makeBetween(t, v, fake)
	p, err := v.ImportPointer(x.imported, x.others.Token)
	require.NoError(t, err)
	again, err := v.ImportPointer(x.imported, x.others.Token)
	require.NoError(t, err)
	require.Equal(t, p, again)
	require.NoError(t, v.CopyIn(p, []byte{1}))
	of, dev, err := v.PoolOf(p)
	require.NoError(t, err)
	require.Equal(t, x.imported, of)
	require.Equal(t, 0, dev)
	_, err = v.PoolAttribute(x.imported, driver.PoolUsed)
	isOnly(t, err, driver.ErrInvalid)
	isOnly(t, v.SetPoolAttribute(x.imported, driver.PoolReleaseThreshold, 1), driver.ErrInvalid)
	isOnly(t, v.TrimPool(x.imported, 0), driver.ErrInvalid)
	isOnly(t, v.DestroyPool(x.imported), driver.ErrInvalid, "memory of it is imported")
	w := openOn(t, d, 1)
	isOnly(t, w.CopyIn(p, []byte{1}), driver.ErrInvalid, "only its own device has access at first")
	require.NoError(t, w.SetPoolAccess(x.imported, []driver.Grant{{To: onDevice(1), Access: driver.AccessReadWrite}}))
	require.NoError(t, w.CopyIn(p, []byte{1}))
	isOnly(t, v.SetPoolAccess(x.imported, []driver.Grant{{To: onDevice(0)}}), driver.ErrInvalid, "its own device")

	// The device that imports has of another one's pool what it is given.
	others := fake.Foreign(1, 64)
	defer others.Pool.Close() //nolint:errcheck // in a test
	away, err := v.ImportPool(int(others.Pool.Fd()))
	require.NoError(t, err)
	q, err := v.ImportPointer(away, others.Token)
	require.NoError(t, err)
	for _, a := range []driver.Access{driver.AccessNone, driver.AccessReadWrite, driver.AccessNone} {
		require.NoError(t, v.SetPoolAccess(away, []driver.Grant{{To: onDevice(0), Access: a}}))
		has, err := v.PoolAccess(away, onDevice(0))
		require.NoError(t, err)
		require.Equal(t, a, has)
		require.Equal(t, a == driver.AccessReadWrite, v.CopyIn(q, []byte{1}) == nil)
	}
	require.NoError(t, v.FreePlain(q))
	require.NoError(t, v.DestroyPool(away))

	// What the driver may do worse with than refuse does not reach it.
	s := v.CopyStream()
	_, err = v.AllocFromPool(x.imported, 1, s)
	isOnly(t, err, driver.ErrInvalid)
	isOnly(t, v.SetCurrentPool(x.imported), driver.ErrInvalid)
	_, err = v.ExportPool(x.imported)
	isOnly(t, err, driver.ErrInvalid)
	own, err := v.DefaultPool()
	require.NoError(t, err)
	private, err := v.CreatePool(driver.PoolProps{})
	require.NoError(t, err)
	for _, bad := range []driver.Pool{0, 1, own, private} {
		_, err = v.ExportPool(bad)
		isOnly(t, err, driver.ErrInvalid, bad)
	}
	for _, bad := range []driver.Pool{0, 1, own, x.shared} {
		_, err = v.ImportPointer(bad, x.others.Token)
		isOnly(t, err, driver.ErrInvalid, bad)
	}
	token, err := v.ExportPointer(x.block)
	require.NoError(t, err)
	for _, bad := range []driver.PoolToken{{}, token, x.closed.Token} {
		_, err = v.ImportPointer(x.imported, bad)
		isOnly(t, err, driver.ErrInvalid)
	}
	for _, bad := range []driver.Ptr{0, 1, p, x.block + 1} {
		_, err = v.ExportPointer(bad)
		isOnly(t, err, driver.ErrInvalid, bad)
	}

	require.NoError(t, v.FreeAsync(p, s))
	isOnly(t, v.FreeAsync(p, s), driver.ErrInvalid, "the first free ends both")
	require.NoError(t, v.FreePlain(x.block))
	x.giveBack(t)
	require.NoError(t, w.Close())
	require.NoError(t, v.CloseMem(x.opened))
}

// TestCloseFreesImports: libcuda destroys no pool whose memory is imported, so Close frees that
// first, and tries again where the driver refuses.
func TestCloseFreesImports(t *testing.T) {
	for _, symbol := range []string{"", "cuMemFree_v2", "cuMemPoolDestroy"} {
		d, fake := onFake(t)
		v, w := openOn(t, d, 0), openOn(t, d, 1)
		x := makeBetween(t, v, fake)
		require.NoError(t, v.FreePlain(x.block))
		require.NoError(t, v.FreeEvent(x.ready))
		p, err := w.ImportPointer(x.imported, x.others.Token)
		require.NoError(t, err)
		other, err := v.ImportPool(int(x.closed.Pool.Fd()))
		require.NoError(t, err)
		q, err := v.ImportPointer(other, x.closed.Token)
		require.NoError(t, err)
		if symbol == "" {
			require.NoError(t, w.FreePlain(p))
			require.NoError(t, v.FreeAsync(q, v.CopyStream()))
		} else {
			fake.Fail(symbol, 1, 2)
			isOnly(t, v.Close(), driver.ErrOutOfMemory, symbol)
		}
		before := fake.Calls("cuMemFree_v2")
		require.NoError(t, v.Close())
		if symbol == "" {
			require.Equal(t, before, fake.Calls("cuMemFree_v2"), "each is freed once")
		}
		require.NoError(t, w.Close())
	}
}

// A free that fails leaves the memory to Close.
func TestImportStaysWhenFreeFails(t *testing.T) {
	d, fake := onFake(t)
	v := openOn(t, d, 0)
	x := makeBetween(t, v, fake)
	p, err := v.ImportPointer(x.imported, x.others.Token)
	require.NoError(t, err)
	fake.Fail("cuMemFree_v2", 1, 2)
	isOnly(t, v.FreePlain(p), driver.ErrOutOfMemory)
	fake.Fail("cuMemFreeAsync", 1, 2)
	isOnly(t, v.FreeAsync(p, v.CopyStream()), driver.ErrOutOfMemory)
	require.NoError(t, v.FreePlain(x.block))
	require.NoError(t, v.FreeEvent(x.ready))
	require.NoError(t, v.Close())
}

// TestImportsConcurrently: a free that meets an import of the same token leaves Close nothing
// that it cannot end.
func TestImportsConcurrently(t *testing.T) {
	d, fake := onFake(t)
	v := openOn(t, d, 0)
	x := makeBetween(t, v, fake)
	require.NoError(t, v.FreePlain(x.block))
	require.NoError(t, v.FreeEvent(x.ready))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				p, err := v.ImportPointer(x.imported, x.others.Token)
				if err != nil {
					t.Error(err)
					return
				}
				if err := v.FreePlain(p); err != nil && !errors.Is(err, driver.ErrInvalid) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	_, err := v.ImportPointer(x.imported, x.others.Token)
	require.NoError(t, err)
	require.NoError(t, v.Close())
}

// TestImportPoolRefuses: a file of another kind does not come as far as libcuda.
func TestImportPoolRefuses(t *testing.T) {
	_, v, fake := opened(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	regular, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	for _, f := range []*os.File{r, regular, null} {
		_, err := v.ImportPool(int(f.Fd()))
		isOnly(t, err, driver.ErrInvalid, f.Name())
		require.NoError(t, f.Close(), "import does not take the descriptor")
	}
	_, err = v.ImportPool(-1)
	isOnly(t, err, driver.ErrInvalid)
	require.Equal(t, 1, fake.Calls("cuMemPoolImportFromShareableHandle"), "only a device's descriptor comes that far")

	d, _ := onFake(t, fakecuda.Missing("cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemPoolExportPointer", "cuMemPoolImportPointer"))
	old := openOn(t, d, 0)
	isOnly(t, d.Supports(0, driver.FeaturePoolShareFD), driver.ErrNotSupported)
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	_, err = old.ImportPool(int(f.Fd()))
	isOnly(t, err, driver.ErrNotSupported)
	require.NoError(t, f.Close())
	_, err = old.ExportPointer(1)
	isOnly(t, err, driver.ErrNotSupported)
	require.NoError(t, old.Close())
}
