package drivertest_test

import (
	"errors"
	"syscall"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// ipcMutants are the mutants for what other processes open. Both processes of a rule have
// the fault.
func ipcMutants(device func(rule string, wrap func(full) driver.Device) mutant) map[string]mutant {
	return map[string]mutant{
		"opened memory is a copy":                device("ipc-memory", func(f full) driver.Device { return &opensCopies{f} }),
		"memory has a new handle each time":      device("ipc-memory", func(f full) driver.Device { return &newHandles{full: f} }),
		"one close ends all":                     device("ipc-memory", func(f full) driver.Device { return &closesAll{f} }),
		"what is open can be freed":              device("ipc-memory", func(f full) driver.Device { return &freesOpened{f} }),
		"opening again maps again":               device("ipc-memory", func(f full) driver.Device { return &opensAnew{full: f} }),
		"one's own memory is opened":             device("ipc-own", func(f full) driver.Device { return &opensOwn{f} }),
		"one's own event is opened":              device("ipc-own", func(f full) driver.Device { return &opensAnyEvent{f} }),
		"zeros are a handle":                     device("ipc-refused", func(f full) driver.Device { return &opensOwn{f} }),
		"zeros are an event":                     device("ipc-refused", func(f full) driver.Device { return &opensAnyEvent{f} }),
		"an address inside has a handle":         device("ipc-refused", func(f full) driver.Device { return &handlesInside{f} }),
		"any memory has a handle":                device("ipc-refused", func(f full) driver.Device { return &handlesAny{f} }),
		"any event has a handle":                 device("ipc-refused", func(f full) driver.Device { return &handlesAnyEvent{f} }),
		"freed memory can be opened":             device("ipc-freed", func(f full) driver.Device { return &freesNothing{f} }),
		"memory outlives its maker":              device("ipc-dead", func(f full) driver.Device { return &opensOwn{f} }),
		"events end with their maker":            device("ipc-dead", func(f full) driver.Device { return &noDeadEvents{f} }),
		"another process's event is done":        device("ipc-event", func(f full) driver.Device { return &alwaysDone{f} }),
		"no stream waits for another process":    device("ipc-event", func(f full) driver.Device { return &noWait{f} }),
		"an opened event has a handle":           device("ipc-event", func(f full) driver.Device { return &handlesAnyEvent{f} }),
		"a closed device opens memory":           device("ipc-close", func(f full) driver.Device { return &opensClosed{f} }),
		"a pool's descriptor is inherited":       device("pool-export", func(f full) driver.Device { return &inheritablePool{f} }),
		"any pool is exported":                   device("pool-export", func(f full) driver.Device { return &exportsAny{f} }),
		"memory of any pool is exported":         device("pool-export", func(f full) driver.Device { return &exportsAnyPointer{f} }),
		"imported memory is a copy":              device("pool-import", func(f full) driver.Device { return &importsCopies{f} }),
		"importing again maps again":             device("pool-import", func(f full) driver.Device { return &importsAnew{full: f, seen: map[driver.PoolToken]bool{}} }),
		"zeros are a token":                      device("pool-import", func(f full) driver.Device { return &importsAnyToken{f} }),
		"an imported pool has nothing":           device("pool-import", func(f full) driver.Device { return &countsNothing{f} }),
		"an imported pool has memory":            device("pool-import-limits", func(f full) driver.Device { return &allocatesAny{f} }),
		"an imported pool is the current one":    device("pool-import-limits", func(f full) driver.Device { return &anyCurrent{f} }),
		"an imported pool is exported":           device("pool-import-limits", func(f full) driver.Device { return &exportsAny{f} }),
		"the default pool imports":               device("pool-import-limits", func(f full) driver.Device { return &importsAnyToken{f} }),
		"any descriptor is a pool":               device("pool-import-foreign", func(f full) driver.Device { return &importsAnyPool{f} }),
		"a trim takes what is imported":          device("pool-import", func(f full) driver.Device { return &trimsImports{endsWithPool{full: f}} }),
		"an imported pool forgets attributes":    device("pool-import", func(f full) driver.Device { return &forgetsAttributes{f} }),
		"what is freed counts as imported":       device("pool-import", func(f full) driver.Device { return &countsAlways{f} }),
		"reading an imported pool is denied":     device("pool-import", func(f full) driver.Device { return &deniesAttributes{f} }),
		"imported memory ends with its pool":     device("pool-import-destroy", func(f full) driver.Device { return &endsWithPool{full: f} }),
		"a refused destroy ends imported memory": device("pool-import-destroy", func(f full) driver.Device { return &refusesAndEnds{endsWithPool{full: f}} }),
		"an imported pool is never destroyed":    device("pool-import-destroy", func(f full) driver.Device { return &keepsPools{f} }),
		"opened memory enables its pair":         device("ipc-peers", func(f full) driver.Device { return &opensEnabling{f} }),
		"opened memory needs its pair":           device("ipc-peers", func(f full) driver.Device { return &closesDisabling{full: f} }),
		"a pool that was destroyed imports":      device("pool-import-destroy", func(f full) driver.Device { return &importsAnyToken{f} }),
		"an imported pool is open to all":        device("pool-import-access", func(f full) driver.Device { return &openToAll{f} }),
		"access to an imported pool is not kept": device("pool-import-access", func(f full) driver.Device { return &noPoolAccess{f} }),
	}
}

type opensCopies struct{ full }

func (d *opensCopies) OpenMem(h driver.IPCHandle) (driver.Ptr, error) {
	p, err := d.full.OpenMem(h)
	if err != nil {
		return 0, err
	}
	return copied(d.full, p)
}

// copied is other memory with the same first bytes.
func copied(d full, p driver.Ptr) (driver.Ptr, error) {
	q, err := d.AllocPlain(64 << 10)
	if err == nil {
		err = d.Copy(q, p, 64<<10, d.CopyStream())
	}
	return q, err
}

type newHandles struct {
	full
	n byte
}

func (d *newHandles) MemHandle(p driver.Ptr) (driver.IPCHandle, error) {
	h, err := d.full.MemHandle(p)
	d.n++
	h[63] ^= d.n
	return h, err
}

type closesAll struct{ full }

func (d *closesAll) CloseMem(p driver.Ptr) error {
	err := d.full.CloseMem(p)
	for more := err; more == nil; more = d.full.CloseMem(p) {
	}
	return err
}

type freesOpened struct{ full }

func (d *freesOpened) FreePlain(p driver.Ptr) error {
	return pass(d.full.FreePlain(p), driver.ErrInvalid)
}

type opensAnew struct {
	full
	opened bool
}

func (d *opensAnew) OpenMem(h driver.IPCHandle) (driver.Ptr, error) {
	if d.opened {
		return d.full.AllocPlain(64 << 10)
	}
	d.opened = true
	return d.full.OpenMem(h)
}

type opensOwn struct{ full }

func (d *opensOwn) OpenMem(h driver.IPCHandle) (driver.Ptr, error) {
	p, err := d.full.OpenMem(h)
	if err != nil {
		return d.full.AllocPlain(64 << 10)
	}
	return p, nil
}

type opensAnyEvent struct{ full }

func (d *opensAnyEvent) OpenEvent(h driver.IPCHandle) (driver.Event, error) {
	e, err := d.full.OpenEvent(h)
	if err != nil {
		return d.NewEvent(0)
	}
	return e, nil
}

type handlesInside struct{ full }

func (d *handlesInside) MemHandle(p driver.Ptr) (driver.IPCHandle, error) {
	return d.full.MemHandle(p &^ 4095)
}

type handlesAny struct{ full }

func (d *handlesAny) MemHandle(p driver.Ptr) (driver.IPCHandle, error) {
	h, err := d.full.MemHandle(p)
	return h, pass(err, driver.ErrInvalid)
}

type handlesAnyEvent struct{ full }

func (d *handlesAnyEvent) EventHandle(e driver.Event) (driver.IPCHandle, error) {
	h, err := d.full.EventHandle(e)
	return h, pass(err, driver.ErrInvalid)
}

type freesNothing struct{ full }

func (d *freesNothing) FreePlain(driver.Ptr) error { return nil }

type noDeadEvents struct{ full }

func (d *noDeadEvents) OpenEvent(driver.IPCHandle) (driver.Event, error) {
	return 0, &driver.CallError{Call: "open", Kind: driver.ErrInvalid}
}

type opensClosed struct{ full }

func (d *opensClosed) OpenMem(h driver.IPCHandle) (driver.Ptr, error) {
	p, err := d.full.OpenMem(h)
	return p, pass(err, driver.ErrClosed)
}

type inheritablePool struct{ full }

func (d *inheritablePool) ExportPool(p driver.Pool) (int, error) {
	fd, err := d.full.ExportPool(p)
	if err != nil {
		return fd, err
	}
	defer func() { _ = syscall.Close(fd) }()
	return syscall.Dup(fd)
}

type exportsAny struct{ full }

func (d *exportsAny) ExportPool(p driver.Pool) (int, error) {
	fd, err := d.full.ExportPool(p)
	return fd, pass(err, driver.ErrInvalid)
}

type exportsAnyPointer struct{ full }

func (d *exportsAnyPointer) ExportPointer(p driver.Ptr) (driver.PoolToken, error) {
	t, err := d.full.ExportPointer(p)
	return t, pass(err, driver.ErrInvalid)
}

type importsCopies struct{ full }

func (d *importsCopies) ImportPointer(from driver.Pool, t driver.PoolToken) (driver.Ptr, error) {
	p, err := d.full.ImportPointer(from, t)
	if err != nil {
		return 0, err
	}
	return copied(d.full, p)
}

// importsAnew imports into another pool when asked again.
type importsAnew struct {
	full
	fd   int
	seen map[driver.PoolToken]bool
}

func (d *importsAnew) ImportPool(fd int) (driver.Pool, error) {
	var err error
	if d.fd, err = syscall.Dup(fd); err != nil {
		return 0, err
	}
	return d.full.ImportPool(fd)
}

func (d *importsAnew) ImportPointer(from driver.Pool, t driver.PoolToken) (driver.Ptr, error) {
	if d.seen[t] {
		var err error
		if from, err = d.full.ImportPool(d.fd); err != nil {
			return 0, err
		}
	}
	d.seen[t] = true
	return d.full.ImportPointer(from, t)
}

type importsAnyToken struct{ full }

func (d *importsAnyToken) ImportPointer(from driver.Pool, t driver.PoolToken) (driver.Ptr, error) {
	p, err := d.full.ImportPointer(from, t)
	return p, pass(err, driver.ErrInvalid)
}

type countsNothing struct{ full }

func (d *countsNothing) PoolAttribute(driver.Pool, driver.PoolAttribute) (uint64, error) {
	return 0, nil
}

type allocatesAny struct{ full }

func (d *allocatesAny) AllocFromPool(p driver.Pool, n uint64, s driver.Stream) (driver.Ptr, error) {
	at, err := d.full.AllocFromPool(p, n, s)
	return at, pass(err, driver.ErrInvalid)
}

type importsAnyPool struct{ full }

func (d *importsAnyPool) ImportPool(fd int) (driver.Pool, error) {
	p, err := d.full.ImportPool(fd)
	if err != nil {
		return d.CreatePool(driver.PoolProps{})
	}
	return p, nil
}

// endsWithPool frees the memory that was imported when the pool goes.
type endsWithPool struct {
	full
	imported []driver.Ptr
}

func (d *endsWithPool) ImportPointer(from driver.Pool, t driver.PoolToken) (driver.Ptr, error) {
	p, err := d.full.ImportPointer(from, t)
	d.imported = append(d.imported, p)
	return p, err
}

func (d *endsWithPool) DestroyPool(p driver.Pool) error {
	d.end()
	return d.full.DestroyPool(p)
}

// end frees the memory that was imported.
func (d *endsWithPool) end() {
	for _, at := range d.imported {
		_ = d.full.FreePlain(at)
	}
}

// trimsImports frees the memory that was imported in a trim.
type trimsImports struct{ endsWithPool }

func (d *trimsImports) TrimPool(p driver.Pool, keep uint64) error {
	d.end()
	return d.full.TrimPool(p, keep)
}

// refusesAndEnds destroys no pool whose memory is imported, but frees that.
type refusesAndEnds struct{ endsWithPool }

func (d *refusesAndEnds) DestroyPool(p driver.Pool) error {
	err := d.full.DestroyPool(p)
	if err != nil {
		d.end()
	}
	return err
}

type countsAlways struct{ full }

func (d *countsAlways) PoolAttribute(p driver.Pool, a driver.PoolAttribute) (uint64, error) {
	n, err := d.full.PoolAttribute(p, a)
	if a == driver.PoolUsed {
		n += 64 << 10
	}
	return n, err
}

type deniesAttributes struct{ full }

func (d *deniesAttributes) PoolAttribute(driver.Pool, driver.PoolAttribute) (uint64, error) {
	return 0, &driver.CallError{Call: "PoolAttribute", Kind: driver.ErrPermission}
}

type opensEnabling struct{ full }

func (d *opensEnabling) OpenMem(h driver.IPCHandle) (driver.Ptr, error) {
	p, err := d.full.OpenMem(h)
	if err == nil {
		err = d.EnablePeer(0)
	}
	return p, err
}

// closesDisabling closes what was opened when a pair is disabled.
type closesDisabling struct {
	full
	opened driver.Ptr
}

func (d *closesDisabling) OpenMem(h driver.IPCHandle) (p driver.Ptr, err error) {
	d.opened, err = d.full.OpenMem(h)
	return d.opened, err
}

func (d *closesDisabling) DisablePeer(to int) error {
	return errors.Join(d.full.DisablePeer(to), d.full.CloseMem(d.opened))
}

type openToAll struct{ full }

func (d *openToAll) ImportPool(fd int) (driver.Pool, error) {
	p, err := d.full.ImportPool(fd)
	if err == nil {
		err = d.SetPoolAccess(p, []driver.Grant{{To: onDevice(1), Access: driver.AccessReadWrite}})
	}
	return p, err
}
