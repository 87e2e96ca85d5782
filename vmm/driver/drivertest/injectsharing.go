package drivertest

import "github.com/cuvmm/cuvmm/vmm/driver"

var (
	_ driver.LegacyIPC  = (*device)(nil)
	_ driver.PoolSharer = (*device)(nil)
)

func (v *device) MemHandle(p driver.Ptr) (h driver.IPCHandle, err error) {
	err = ask(v, "MemHandle", 0, func(i driver.LegacyIPC) (err error) { h, err = i.MemHandle(p); return err })
	return h, err
}

func (v *device) OpenMem(h driver.IPCHandle) (p driver.Ptr, err error) {
	err = ask(v, "OpenMem", 0, func(i driver.LegacyIPC) (err error) { p, err = i.OpenMem(h); return err })
	return p, err
}

func (v *device) CloseMem(p driver.Ptr) error {
	return ask(v, "CloseMem", 0, func(i driver.LegacyIPC) error { return i.CloseMem(p) })
}

func (v *device) EventHandle(e driver.Event) (h driver.IPCHandle, err error) {
	err = ask(v, "EventHandle", 0, func(i driver.LegacyIPC) (err error) { h, err = i.EventHandle(e); return err })
	return h, err
}

func (v *device) OpenEvent(h driver.IPCHandle) (e driver.Event, err error) {
	err = ask(v, "OpenEvent", 0, func(i driver.LegacyIPC) (err error) { e, err = i.OpenEvent(h); return err })
	return e, err
}

func (v *device) ExportPool(p driver.Pool) (fd int, err error) {
	fd = -1
	err = ask(v, "ExportPool", 0, func(i driver.PoolSharer) (err error) { fd, err = i.ExportPool(p); return err })
	return fd, err
}

func (v *device) ImportPool(fd int) (p driver.Pool, err error) {
	err = ask(v, "ImportPool", 0, func(i driver.PoolSharer) (err error) { p, err = i.ImportPool(fd); return err })
	return p, err
}

func (v *device) ExportPointer(p driver.Ptr) (t driver.PoolToken, err error) {
	err = ask(v, "ExportPointer", 0, func(i driver.PoolSharer) (err error) { t, err = i.ExportPointer(p); return err })
	return t, err
}

func (v *device) ImportPointer(from driver.Pool, t driver.PoolToken) (p driver.Ptr, err error) {
	err = ask(v, "ImportPointer", 0, func(i driver.PoolSharer) (err error) { p, err = i.ImportPointer(from, t); return err })
	return p, err
}
