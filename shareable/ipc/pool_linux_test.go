package ipc_test

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// world is a pool, and the same pool imported in this process, as the host driver lets it be.
type world struct {
	t    *testing.T
	devs []*vmm.Device
	s    *vmm.Stream
	own  *pool.DriverPool
	in   *ipc.Pool
}

func newWorld(t *testing.T, hooks ...func(drivertest.Call) error) *world {
	t.Helper()
	w := &world{t: t, devs: vmmtest.Devices(t, 2, hooks...)}
	w.s = w.stream(0)
	w.own = w.pool(pool.Options{Share: vmm.ShareFD})
	w.in = w.imported(w.own)
	return w
}

func (w *world) stream(dev int) *vmm.Stream {
	w.t.Helper()
	s, err := w.devs[dev].NewStream()
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, s.Close()) })
	return s
}

func (w *world) pool(o pool.Options) *pool.DriverPool {
	w.t.Helper()
	p, err := pool.NewDriver(w.devs[0], o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, p.Close()) })
	return p
}

// imported imports a pool by its device.
func (w *world) imported(p *pool.DriverPool) *ipc.Pool {
	w.t.Helper()
	return w.importedBy(p.Device(), p)
}

func (w *world) importedBy(dev *vmm.Device, p *pool.DriverPool) *ipc.Pool {
	w.t.Helper()
	fd, err := ipc.ExportPool(p)
	require.NoError(w.t, err)
	f := os.NewFile(uintptr(fd), "pool")
	defer f.Close() //nolint:errcheck // in a test
	in, err := ipc.ImportPool(dev, fd)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, in.Close()) })
	return in
}

// block allocates a block that is v everywhere, and exports it.
func (w *world) block(v uint32) (pool.Block, ipc.Token) {
	w.t.Helper()
	b, err := w.own.Alloc(w.s, mib)
	require.NoError(w.t, err)
	require.NoError(w.t, w.s.Fill(b.Ptr(), v, 1, mib))
	require.NoError(w.t, w.s.Sync())
	token, err := ipc.ExportPointer(w.own, b)
	require.NoError(w.t, err)
	return b, token
}

func (w *world) imports(token ipc.Token) *ipc.Block {
	w.t.Helper()
	b, err := w.in.Import(token)
	require.NoError(w.t, err)
	return b
}

// first is the first byte at an address.
func first(t *testing.T, dev *vmm.Device, at vmm.Ptr) byte {
	t.Helper()
	b := make([]byte, 1)
	require.NoError(t, dev.CopyOut(b, at))
	return b[0]
}

func TestImportedPool(t *testing.T) {
	w := newWorld(t)
	b, token := w.block(5)
	require.EqualValues(t, mib, token.Size)
	require.Equal(t, w.devs[0], w.in.Device())
	require.NotZero(t, w.in.Raw())

	i := w.imports(token)
	require.EqualValues(t, mib, i.Size())
	require.NotEqual(t, b.Ptr(), i.Ptr())
	require.Equal(t, byte(5), first(t, w.devs[0], i.Ptr()))
	require.NoError(t, w.s.Fill(i.Ptr(), 6, 1, mib))
	require.NoError(t, w.s.Sync())
	require.Equal(t, byte(6), first(t, w.devs[0], b.Ptr()))
	var arg vmm.MemoryArg
	i.MemoryArg(&arg)
	require.Equal(t, vmm.Span{Addr: i.Ptr(), Size: mib, Access: vmm.AccessReadWrite}, arg.Span)

	other, otherToken := w.block(1)
	j := w.imports(otherToken)

	// The importer frees first: where both are one process that is seen.
	require.ErrorIs(t, w.in.Close(), vmm.ErrBusy)
	require.ErrorIs(t, w.own.Free(w.s, b), vmm.ErrBusy)
	require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
	require.ErrorIs(t, w.devs[0].Close(), vmm.ErrBusy)
	require.NoError(t, i.Free(w.s))
	require.ErrorIs(t, i.Free(w.s), ipc.ErrFreed)
	require.ErrorIs(t, i.FreeNow(), ipc.ErrFreed)
	require.NoError(t, w.s.Sync())
	require.NoError(t, j.FreeNow())
	require.NoError(t, w.own.Free(w.s, b))
	require.NoError(t, w.own.Free(w.s, other))

	_, err := w.in.Import(token)
	require.ErrorIs(t, err, vmm.ErrInvalid, "it has been freed")
}

// stats checks the statistics of an imported pool.
func stats(t *testing.T, in *ipc.Pool, used, peak uint64) {
	t.Helper()
	st, err := in.Stats()
	require.NoError(t, err)
	require.Equal(t, pool.Stats{Reserved: used, ReservedPeak: peak, Used: used, UsedPeak: peak}, st)
}

// The statistics count what this process has imported, once for each token, and ask the driver
// for nothing.
func TestImportedStats(t *testing.T) {
	w := newWorld(t, refuses)
	b, token := w.block(5)
	c, otherToken := w.block(1)
	stats(t, w.in, 0, 0)
	i, again := w.imports(token), w.imports(token)
	stats(t, w.in, mib, mib)
	j := w.imports(otherToken)
	stats(t, w.in, 2*mib, 2*mib)
	require.NoError(t, i.FreeNow())
	stats(t, w.in, 2*mib, 2*mib)
	require.NoError(t, again.Free(w.s))
	stats(t, w.in, mib, 2*mib)
	require.NoError(t, w.in.ResetPeaks())
	stats(t, w.in, mib, mib)
	require.NoError(t, j.FreeNow())
	stats(t, w.in, 0, mib)
	_, err := w.in.Import(ipc.Token{Raw: raw(1), Size: 10})
	require.ErrorIs(t, err, ipc.ErrHandle)
	stats(t, w.in, 0, mib)
	require.NoError(t, w.s.Sync())
	require.NoError(t, w.own.FreeNow(b))
	require.NoError(t, w.own.FreeNow(c))
}

// refuses makes calls with a pool fail as CUDA's do of one that was imported.
func refuses(c drivertest.Call) error {
	switch c.Name {
	case "PoolAttribute", "TrimPool":
		return vmm.ErrInvalid
	}
	return nil
}

// Where the driver refuses to trim an imported pool, and to read or set its attributes, that
// is ErrImported. Only attributes refused, a trim works.
func TestImportedPoolCannotBeTrimmed(t *testing.T) {
	var on atomic.Bool
	var trims atomic.Bool
	w := newWorld(t, func(c drivertest.Call) error {
		switch c.Name {
		case "PoolAttribute", "SetPoolAttribute", "TrimPool":
			if on.Load() && (c.Name != "TrimPool" || !trims.Load()) {
				return vmm.ErrInvalid
			}
		}
		return nil
	})
	on.Store(true)
	_, err := w.in.TrimTo(0)
	require.ErrorIs(t, err, ipc.ErrImported)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorIs(t, w.in.SetReleaseThreshold(1), ipc.ErrImported)
	_, err = w.in.ReleaseThreshold()
	require.ErrorIs(t, err, ipc.ErrImported)
	trims.Store(true)
	freed, err := w.in.TrimTo(0)
	require.NoError(t, err)
	require.Zero(t, freed)
	require.NoError(t, w.in.Close())
	for _, err := range []error{second(w.in.TrimTo(0)), w.in.SetReleaseThreshold(1), second(w.in.ReleaseThreshold()), second(w.in.Stats()), w.in.ResetPeaks()} {
		require.ErrorIs(t, err, vmm.ErrClosed)
		require.NotErrorIs(t, err, ipc.ErrImported)
	}
	on.Store(false)
}

func TestImportedPoolRefuses(t *testing.T) {
	w := newWorld(t)
	b, token := w.block(5)
	def, err := pool.DriverDefault(w.devs[0])
	require.NoError(t, err)
	private := w.pool(pool.Options{})
	same, err := door.Through[door.Pool[*vmm.Device, *pool.DriverPool]]().WrapDriver(w.devs[0], w.in.Raw())
	require.NoError(t, err)
	for name, p := range map[string]*pool.DriverPool{"default": def, "without Share": private, "imported": same} {
		fd, err := ipc.ExportPool(p)
		require.ErrorIs(t, err, ipc.ErrNotShared, name)
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		require.Equal(t, -1, fd)
	}
	c, err := private.Alloc(w.s, 10)
	require.NoError(t, err)
	_, err = ipc.ExportPointer(private, c)
	require.ErrorIs(t, err, ipc.ErrNotShared)
	_, err = ipc.ExportPointer(private, b)
	require.ErrorIs(t, err, pool.ErrForeignBlock)
	require.NoError(t, private.FreeNow(c))
	_, err = ipc.ExportPointer(private, c)
	require.ErrorIs(t, err, pool.ErrDoubleFree)
	none, err := w.own.Alloc(w.s, 0)
	require.NoError(t, err)
	_, err = ipc.ExportPointer(w.own, none)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, same.Close())
	require.NoError(t, def.Close())
	_, err = ipc.ExportPool(def)
	require.ErrorIs(t, err, vmm.ErrClosed)

	ours := w.own
	w.own = w.pool(pool.Options{Share: vmm.ShareFD})
	foreign, foreignToken := w.block(1)
	for name, bad := range map[string]ipc.Token{
		"nothing": {}, "zero bytes": {Size: 10}, "garbage": {Raw: raw(1), Size: 10}, "another pool's": foreignToken,
	} {
		_, err := w.in.Import(bad)
		require.ErrorIs(t, err, ipc.ErrHandle, name)
	}
	_, err = w.in.Import(ipc.Token{Raw: token.Raw})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorContains(t, err, "set Token.Size")
	require.NoError(t, w.own.FreeNow(foreign))
	w.own = ours

	for _, file := range []string{os.DevNull, "/dev/zero", "/proc/self/exe"} {
		f, err := os.Open(file)
		require.NoError(t, err)
		_, err = ipc.ImportPool(w.devs[0], int(f.Fd()))
		require.ErrorIs(t, err, vmm.ErrInvalid, file)
		require.NoError(t, f.Close())
	}
	_, err = ipc.ImportPool(w.devs[0], -1)
	require.ErrorIs(t, err, vmm.ErrInvalid)

	// A block is imported through one Pool, else the first free could end both.
	second := w.imported(w.own)
	i := w.imports(token)
	_, err = second.Import(token)
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.NoError(t, i.FreeNow())
	j, err := second.Import(token)
	require.NoError(t, err)
	require.NoError(t, j.FreeNow())
	require.NoError(t, w.own.FreeNow(b))

	require.NoError(t, w.in.Close())
	require.NoError(t, w.in.Close())
	_, err = w.in.Import(token)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = w.in.Stats()
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// Several imports of one token are one mapping, which goes with the last of them.
func TestImportTwice(t *testing.T) {
	calls := map[string]int{}
	w := newWorld(t, func(c drivertest.Call) error {
		calls[c.Name]++ // the test makes one call at a time
		return nil
	})
	b, token := w.block(5)
	i, j := w.imports(token), w.imports(token)
	require.Equal(t, i.Ptr(), j.Ptr())
	require.Equal(t, 1, calls["ImportPointer"])
	require.NoError(t, i.FreeNow())
	require.Equal(t, byte(5), first(t, w.devs[0], j.Ptr()))
	require.ErrorIs(t, i.FreeNow(), ipc.ErrFreed, "j is not freed by it")
	var m vmm.MemoryArg
	i.MemoryArg(&m)
	require.ErrorIs(t, m.Err(), ipc.ErrFreed, "though it is mapped")
	j.MemoryArg(&m)
	require.NoError(t, m.Err())
	require.ErrorIs(t, w.own.FreeNow(b), vmm.ErrBusy)
	require.NoError(t, j.FreeNow())
	require.Equal(t, 1, calls["FreePlain"])
	require.Error(t, w.devs[0].CopyOut(make([]byte, 1), j.Ptr()))

	// Freed in two streams: the mapping goes after the work of both.
	other := w.stream(1)
	require.NoError(t, w.in.Grant(vmm.AccessReadWrite, w.devs[1]))
	for range 10 {
		i, j = w.imports(token), w.imports(token)
		for range 20 {
			require.NoError(t, other.Fill(i.Ptr(), 7, 1, mib))
		}
		require.NoError(t, i.Free(other))
		require.NoError(t, j.Free(w.s))
		// Import waits until the stream has unmapped it.
		i = w.imports(token)
		require.Equal(t, byte(7), first(t, w.devs[0], i.Ptr()))
		require.NoError(t, w.s.Fill(i.Ptr(), 1, 1, mib))
		require.NoError(t, w.s.Sync())
		require.NoError(t, i.FreeNow())
	}
	// The last is freed at once, after the streams of the others.
	i, j = w.imports(token), w.imports(token)
	for range 20 {
		require.NoError(t, other.Fill(i.Ptr(), 9, 1, mib))
	}
	require.NoError(t, i.Free(other))
	require.NoError(t, j.FreeNow())
	require.Equal(t, byte(9), first(t, w.devs[0], b.Ptr()))
	require.NoError(t, other.Sync(), "the device is not lost")
	require.NoError(t, w.own.FreeNow(b))
}

func TestImportedAccess(t *testing.T) {
	w := newWorld(t)
	b, token := w.block(5)
	require.NoError(t, w.own.Grant(vmm.AccessReadWrite, w.devs[1]))
	a, err := w.in.Access(w.devs[1])
	require.NoError(t, err)
	require.Equal(t, vmm.AccessNone, a, "nothing is inherited")
	a, err = w.in.Access(w.devs[0])
	require.NoError(t, err)
	require.Equal(t, vmm.AccessReadWrite, a)
	i := w.imports(token)
	s := w.stream(1)
	require.ErrorIs(t, s.Fill(i.Ptr(), 1, 1, 1), vmm.ErrInvalid)
	require.NoError(t, w.in.Grant(vmm.AccessReadWrite, w.devs[1]))
	require.NoError(t, s.Fill(i.Ptr(), 1, 1, 1))
	require.NoError(t, w.in.Revoke(w.devs[1]))
	require.ErrorIs(t, s.Fill(i.Ptr(), 1, 1, 1), vmm.ErrInvalid)
	require.ErrorIs(t, w.in.Revoke(w.devs[0]), vmm.ErrInvalid)
	a, err = w.own.Access(w.devs[1])
	require.NoError(t, err)
	require.Equal(t, vmm.AccessReadWrite, a, "and none goes back")
	require.NoError(t, i.FreeNow())

	// Imported by a device that is not the pool's, which has the access that it is granted.
	w.in = w.importedBy(w.devs[1], w.own)
	has := func(want vmm.Access) {
		t.Helper()
		a, err := w.in.Access(w.devs[1])
		require.NoError(t, err)
		require.Equal(t, want, a)
	}
	has(vmm.AccessNone)
	i = w.imports(token)
	require.Error(t, w.devs[1].CopyOut(make([]byte, 1), i.Ptr()))
	require.NoError(t, w.in.Grant(vmm.AccessReadWrite, w.devs[1]))
	has(vmm.AccessReadWrite)
	require.Equal(t, byte(1), first(t, w.devs[1], i.Ptr()))
	require.NoError(t, w.in.Revoke(w.devs[1]))
	has(vmm.AccessNone)
	require.ErrorIs(t, w.in.Revoke(w.devs[0]), vmm.ErrInvalid)
	require.NoError(t, i.FreeNow())
	require.NoError(t, w.own.FreeNow(b))
}

func TestFreeInStreamOrder(t *testing.T) {
	w := newWorld(t)
	b, token := w.block(5)
	i, j := w.imports(token), w.imports(token)
	require.ErrorIs(t, i.Free(nil), vmm.ErrInvalid)
	strange := vmmtest.Device(t)
	s, err := strange.NewStream()
	require.NoError(t, err)
	require.ErrorIs(t, i.Free(s), vmm.ErrInvalid, "of another driver")
	require.NoError(t, s.Close())
	require.ErrorIs(t, i.Free(s), vmm.ErrClosed)
	for _, x := range []*ipc.Block{i, j} {
		require.NoError(t, w.s.BeginCapture())
		require.ErrorIs(t, x.Free(w.s), vmm.ErrCapturing)
		g, err := w.s.EndCapture()
		require.NoError(t, err)
		require.NoError(t, g.Close())
		require.NoError(t, x.Free(w.s))
	}
	// What was freed in a stream keeps the pool from nothing.
	require.NoError(t, w.in.Close())
	require.NoError(t, w.s.Sync())
	require.NoError(t, w.own.FreeNow(b))
}

// Imports, frees and a close meet, and no block is unmapped that is imported.
func TestConcurrentImports(t *testing.T) {
	w := newWorld(t)
	const tokens = 3
	var blocks [tokens]pool.Block
	var all [tokens]ipc.Token
	for k := range all {
		blocks[k], all[k] = w.block(uint32(k + 1))
	}
	streams := []*vmm.Stream{w.s, w.stream(0), w.stream(0), w.stream(0)}
	var group sync.WaitGroup
	for g, s := range streams {
		group.Go(func() {
			for n := range 200 {
				k := (n + g) % tokens
				i, err := w.in.Import(all[k])
				if err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, 1)
				if err := w.devs[0].CopyOut(got, i.Ptr()); err != nil || got[0] != byte(k+1) {
					t.Errorf("%d of block %d: %v", got[0], k, err)
				}
				if n%2 == 0 {
					err = i.Free(s)
				} else {
					err = i.FreeNow()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for k := range blocks {
		require.NoError(t, w.own.FreeNow(blocks[k]))
	}
}

// After each call that fails, what was done is undone, or can be done once more.
func TestPoolFaults(t *testing.T) {
	for _, call := range []string{
		"ExportPool", "ImportPool", "PoolAccess", "ExportPointer", "ImportPointer", "FreeAsync", "FreePlain", "DestroyPool", "NewEvent", "Record", "Wait", "Done", "FreeEvent",
	} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprint(call, nth), func(t *testing.T) { poolFault(t, call, nth) })
		}
	}
}

func poolFault(t *testing.T, call string, nth int) {
	w := &world{t: t, devs: vmmtest.Devices(t, 2, drivertest.FailNth(call, nth, vmm.ErrOutOfMemory))}
	again := func(f func() error) {
		t.Helper()
		if err := f(); err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.NoError(t, f())
		}
	}
	s, err := w.devs[0].NewStream()
	require.NoError(t, err)
	own, err := pool.NewDriver(w.devs[0], pool.Options{Share: vmm.ShareFD})
	require.NoError(t, err)
	fd := -1
	again(func() (err error) {
		fd, err = ipc.ExportPool(own)
		return err
	})
	var in *ipc.Pool
	again(func() (err error) {
		in, err = ipc.ImportPool(w.devs[0], fd)
		return err
	})
	require.NoError(t, os.NewFile(uintptr(fd), "pool").Close())
	b, err := own.Alloc(s, mib)
	require.NoError(t, err)
	for range 2 {
		var token ipc.Token
		again(func() (err error) {
			token, err = ipc.ExportPointer(own, b)
			return err
		})
		var two [2]*ipc.Block
		for k := range two {
			again(func() (err error) {
				two[k], err = in.Import(token)
				return err
			})
		}
		again(func() error { return two[0].Free(s) })
		again(func() error { return two[1].Free(s) })
		var i *ipc.Block
		again(func() (err error) {
			i, err = in.Import(token)
			return err
		})
		again(i.FreeNow)
	}
	again(func() error { return own.FreeNow(b) })
	again(in.Close)
	again(own.Close)
	again(s.Close)
	for _, d := range w.devs { // what was refused is tried again
		if err := d.Close(); err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		}
	}
}
