//go:build cgo && linux

package cuda_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// between is what device 0 shares with other processes, and has of them.
type between struct {
	v              *cuda.Device
	ready          driver.Event
	shared         driver.Pool
	block          driver.Ptr        // of shared
	others, closed *fakecuda.Foreign // nothing of the second is open
	opened         driver.Ptr
	imported       driver.Pool
}

func makeBetween(t *testing.T, v *cuda.Device, fake *fakecuda.Library) *between {
	t.Helper()
	x := &between{v: v, others: fake.Foreign(0, 4096), closed: fake.Foreign(0, 4096)}
	t.Cleanup(func() { // each is a terminal, of which a system has few
		require.NoError(t, x.others.Pool.Close())
		require.NoError(t, x.closed.Pool.Close())
	})
	var err error
	x.ready, err = v.NewEvent(driver.EventInterprocess)
	require.NoError(t, err)
	x.shared, err = v.CreatePool(driver.PoolProps{Share: driver.ShareFD})
	require.NoError(t, err)
	x.block, err = v.AllocFromPool(x.shared, 1, v.CopyStream())
	require.NoError(t, err)
	x.opened, err = v.OpenMem(x.others.Memory)
	require.NoError(t, err)
	x.imported, err = v.ImportPool(int(x.others.Pool.Fd()))
	require.NoError(t, err)
	return x
}

// exportPool exports the pool and closes the descriptor.
func (x *between) exportPool() error {
	fd, err := x.v.ExportPool(x.shared)
	if err != nil {
		return err
	}
	return os.NewFile(uintptr(fd), "pool").Close()
}

// calls are those of calls with other processes. plain is plain memory.
func (x *between) calls(plain driver.Ptr) []call {
	v, f := x.v, fmt.Sprintf
	mem := func() error { _, err := v.MemHandle(plain); return err }
	open := func() error { _, err := v.OpenMem(x.closed.Memory); return err }
	event := func() error { _, err := v.EventHandle(x.ready); return err }
	openEvent := func() error { _, err := v.OpenEvent(x.closed.Event); return err }
	importPool := func() error { _, err := v.ImportPool(int(x.closed.Pool.Fd())); return err }
	token := func() error { _, err := v.ExportPointer(x.block); return err }
	pointer := func() error { _, err := v.ImportPointer(x.imported, x.others.Token); return err }
	closeMem := func() error { return v.CloseMem(x.opened) }
	const mode, exchange = "mode=0", "cuThreadExchangeStreamCaptureMode"
	return []call{
		{"MemHandle", "cuIpcGetMemHandle", f("p=%#x", uint64(plain)), mem, false},
		{"MemHandle", "cuPointerGetAttribute", f("attribute=11 p=%#x", uint64(plain)), mem, false},
		{"OpenMem", "cuIpcOpenMemHandle_v2", "kind=0x1c flags=1", open, false},
		{"OpenMem", exchange, mode, open, false},
		{"CloseMem", "cuIpcCloseMemHandle", f("p=%#x", uint64(x.opened)), closeMem, false},
		{"CloseMem", exchange, mode, closeMem, false},
		{"Close", "cuIpcCloseMemHandle", f("p=%#x", uint64(x.opened)), v.Close, false},
		{"EventHandle", "cuIpcGetEventHandle", f("event=%#x", uint64(x.ready)), event, false},
		{"OpenEvent", "cuIpcOpenEventHandle", "kind=0x2c", openEvent, false},
		{"OpenEvent", exchange, mode, openEvent, false},
		{"ExportPool", "cuMemPoolExportToShareableHandle", f("pool=%#x type=1 flags=0", uint64(x.shared)), x.exportPool, false},
		{"ImportPool", "cuMemPoolImportFromShareableHandle", f("fd=%d type=1 flags=0", x.closed.Pool.Fd()), importPool, false},
		{"ImportPool", exchange, mode, importPool, false},
		{"ExportPointer", "cuMemPoolExportPointer", f("p=%#x", uint64(x.block)), token, false},
		{"ImportPointer", "cuMemPoolImportPointer", f("pool=%#x kind=0x3c", uint64(x.imported)), pointer, false},
		{"ImportPointer", exchange, mode, pointer, false},
	}
}

// uses are the calls with other processes that need device 0.
func (x *between) uses() map[string]func() error {
	v := x.v
	return map[string]func() error{
		"MemHandle":     func() error { _, err := v.MemHandle(x.block); return err },
		"OpenMem":       func() error { _, err := v.OpenMem(x.closed.Memory); return err },
		"CloseMem":      func() error { return v.CloseMem(x.opened) },
		"EventHandle":   func() error { _, err := v.EventHandle(x.ready); return err },
		"OpenEvent":     func() error { _, err := v.OpenEvent(x.closed.Event); return err },
		"ExportPool":    x.exportPool,
		"ImportPool":    func() error { _, err := v.ImportPool(int(x.closed.Pool.Fd())); return err },
		"ExportPointer": func() error { _, err := v.ExportPointer(x.block); return err },
		"ImportPointer": func() error { _, err := v.ImportPointer(x.imported, x.others.Token); return err },
	}
}

// giveBack frees all but the block and what is open, also on a lost device.
func (x *between) giveBack(t *testing.T) {
	t.Helper()
	require.NoError(t, x.v.FreeEvent(x.ready))
	require.NoError(t, x.v.DestroyPool(x.shared))
	require.NoError(t, x.v.DestroyPool(x.imported))
}
