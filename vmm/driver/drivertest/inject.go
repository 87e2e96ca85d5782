package drivertest

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Call is a call that is about to be made through an [Injected] driver.
type Call struct {
	N    int    // counts every call through the wrapper, from 1
	Name string // the seam's verb: "Create", "SetAccess", "CopyIn"
	Dev  int    // the device it names; -1 where it names none or several
	Size uint64 // bytes; 0 where it has none
}

// FailNth is a hook that fails the n-th call of that name, and only that one,
// with err. The name "" counts every call.
func FailNth(name string, n int, err error) func(Call) error {
	var seen atomic.Int64
	return func(c Call) error {
		if name != "" && c.Name != name {
			return nil
		}
		if seen.Add(1) == int64(n) {
			return err
		}
		return nil
	}
}

// Injected is a driver whose calls a hook can refuse, and which counts them. It is a
// driver.Wrapper: it has every optional interface and returns ErrNotSupported for
// those that the wrapped driver lacks. It owns nothing, so it needs no closing.
type Injected struct {
	inner driver.Driver
	hook  func(Call) error

	mu     sync.Mutex
	calls  int
	counts map[string]Count
}

var (
	_ driver.Driver        = (*Injected)(nil)
	_ driver.HostViewer    = (*Injected)(nil)
	_ driver.PeerInfo      = (*Injected)(nil)
	_ driver.RangeExporter = (*Injected)(nil)
	_ driver.FabricSharer  = (*Injected)(nil)
	_ driver.FreeReporter  = (*Injected)(nil)
	_ driver.Wrapper       = (*Injected)(nil)
)

// Inject wraps d and the devices it opens. The hook runs before each call. If it
// returns an error, the call is not made and returns that error in a
// *driver.CallError. A nil hook refuses nothing. The hook may run on several
// goroutines at once, and no lock is held while it does.
func Inject(d driver.Driver, hook func(Call) error) *Injected {
	if hook == nil {
		hook = func(Call) error { return nil }
	}
	return &Injected{inner: d, hook: hook, counts: make(map[string]Count)}
}

// call asks the hook, makes the call with f, and counts its outcome.
func (d *Injected) call(name string, dev int, size uint64, f func() error) error {
	d.mu.Lock()
	d.calls++
	n := d.calls
	d.mu.Unlock()

	err := d.hook(Call{N: n, Name: name, Dev: dev, Size: size})
	if err != nil {
		err = refusal(name, err)
	} else {
		err = f()
	}
	d.count(name, size, err)
	return err
}

// get is call for calls that return a value too.
func get[T any](d *Injected, name string, dev int, size uint64, f func() (T, error)) (T, error) {
	var v T
	err := d.call(name, dev, size, func() (err error) { v, err = f(); return err })
	return v, err
}

// refusal is the error that a driver would return for the hook's error.
func refusal(name string, err error) error {
	for _, kind := range sentinels() {
		if !errors.Is(err, kind) {
			continue
		}
		if err.Error() == kind.Error() { // the text would say the same twice
			return &driver.CallError{Call: name, Kind: kind}
		}
		return &driver.CallError{Call: name, Kind: kind, Err: err}
	}
	return &driver.CallError{Call: name, Kind: err, Err: err}
}

// absent is the error of a call of an optional interface that the driver lacks.
func absent(name string) error {
	return &driver.CallError{Call: name, Kind: driver.ErrNotSupported}
}

// sentinels are the kinds of error that the seam knows.
func sentinels() []error {
	return []error{
		driver.ErrOutOfMemory, driver.ErrAddressSpace, driver.ErrNotSupported, driver.ErrInvalid,
		driver.ErrPermission, driver.ErrClosed, driver.ErrNoDriver, driver.ErrNoDevice,
		driver.ErrContextReset, driver.ErrDeviceLost, driver.ErrCapturing, driver.ErrPeerEnabled,
		driver.ErrLimit, driver.ErrUnavailable,
	}
}

// ordinal is the device that a location names, -1 if it names none.
func ordinal(l driver.Location) int {
	if l.Kind == driver.LocationDevice {
		return l.ID
	}
	return -1
}

// Name is the wrapped driver's. It is no call, so the hook does not see it.
func (d *Injected) Name() string { return d.inner.Name() }

// Wraps implements driver.Wrapper.
func (d *Injected) Wraps() driver.Identity { return driver.IdentityOf(d.inner) }

// Devices implements driver.Driver.
func (d *Injected) Devices() ([]driver.Info, error) {
	return get(d, "Devices", -1, 0, d.inner.Devices)
}

// Supports implements driver.Driver.
func (d *Injected) Supports(dev int, f driver.Feature) error {
	return d.call("Supports", dev, 0, func() error { return d.inner.Supports(dev, f) })
}

// CanAccessPeer implements driver.Driver. Call.Dev is from.
func (d *Injected) CanAccessPeer(from, to int) (bool, error) {
	return get(d, "CanAccessPeer", from, 0, func() (bool, error) { return d.inner.CanAccessPeer(from, to) })
}

// Granularity implements driver.Driver.
func (d *Injected) Granularity(p driver.Prop) (uint64, error) {
	return get(d, "Granularity", ordinal(p.Location), 0, func() (uint64, error) { return d.inner.Granularity(p) })
}

// GranularityRecommended implements driver.Driver.
func (d *Injected) GranularityRecommended(p driver.Prop) (uint64, error) {
	return get(d, "GranularityRecommended", ordinal(p.Location), 0, func() (uint64, error) { return d.inner.GranularityRecommended(p) })
}

// Reserve implements driver.Driver.
func (d *Injected) Reserve(size, align uint64) (driver.Ptr, error) {
	return get(d, "Reserve", -1, size, func() (driver.Ptr, error) { return d.inner.Reserve(size, align) })
}

// Free implements driver.Driver.
func (d *Injected) Free(p driver.Ptr, size uint64) error {
	return d.call("Free", -1, size, func() error { return d.inner.Free(p, size) })
}

// Create implements driver.Driver.
func (d *Injected) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	return get(d, "Create", ordinal(p.Location), size, func() (driver.Handle, error) { return d.inner.Create(size, p) })
}

// Properties implements driver.Driver.
func (d *Injected) Properties(h driver.Handle) (driver.Prop, error) {
	return get(d, "Properties", -1, 0, func() (driver.Prop, error) { return d.inner.Properties(h) })
}

// Release implements driver.Driver.
func (d *Injected) Release(h driver.Handle) error {
	return d.call("Release", -1, 0, func() error { return d.inner.Release(h) })
}

// Map implements driver.Driver.
func (d *Injected) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	return d.call("Map", -1, size, func() error { return d.inner.Map(p, size, h) })
}

// Unmap implements driver.Driver.
func (d *Injected) Unmap(p driver.Ptr, size uint64) error {
	return d.call("Unmap", -1, size, func() error { return d.inner.Unmap(p, size) })
}

// SetAccess implements driver.Driver. Call.Dev is the device of a single grant.
func (d *Injected) SetAccess(p driver.Ptr, size uint64, who []driver.Grant) error {
	dev := -1
	if len(who) == 1 {
		dev = ordinal(who[0].To)
	}
	return d.call("SetAccess", dev, size, func() error { return d.inner.SetAccess(p, size, who) })
}

// Access implements driver.Driver.
func (d *Injected) Access(p driver.Ptr, who driver.Location) (driver.Access, error) {
	return get(d, "Access", ordinal(who), 0, func() (driver.Access, error) { return d.inner.Access(p, who) })
}

// Export implements driver.Driver.
func (d *Injected) Export(h driver.Handle) (int, error) {
	fd := -1 // never 0, which is standard input
	err := d.call("Export", -1, 0, func() (err error) { fd, err = d.inner.Export(h); return err })
	return fd, err
}

// Import implements driver.Driver.
func (d *Injected) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	return get(d, "Import", ordinal(p.Location), size, func() (driver.Handle, error) { return d.inner.Import(fd, size, p) })
}

// SyncIfActive implements driver.Driver.
func (d *Injected) SyncIfActive(dev int) error {
	return d.call("SyncIfActive", dev, 0, func() error { return d.inner.SyncIfActive(dev) })
}

// Open implements driver.Driver. The Device is wrapped as well.
func (d *Injected) Open(dev int) (driver.Device, error) {
	inner, err := get(d, "Open", dev, 0, func() (driver.Device, error) { return d.inner.Open(dev) })
	if err != nil {
		return nil, err
	}
	return &device{d: d, n: dev, inner: inner}, nil
}

// HostBytes implements driver.HostViewer.
func (d *Injected) HostBytes(p driver.Ptr, n uint64) ([]byte, error) {
	return get(d, "HostBytes", -1, n, func() ([]byte, error) {
		v, ok := d.inner.(driver.HostViewer)
		if !ok {
			return nil, absent("HostBytes")
		}
		return v.HostBytes(p, n)
	})
}

// Peering implements driver.PeerInfo. Call.Dev is from.
func (d *Injected) Peering(from, to int) (driver.Peering, error) {
	return get(d, "Peering", from, 0, func() (driver.Peering, error) {
		i, ok := d.inner.(driver.PeerInfo)
		if !ok {
			return driver.Peering{}, absent("Peering")
		}
		return i.Peering(from, to)
	})
}

// ExportRange implements driver.RangeExporter.
func (d *Injected) ExportRange(p driver.Ptr, size uint64, flags driver.DMABufFlags) (int, error) {
	fd := -1
	err := d.call("ExportRange", -1, size, func() (err error) {
		r, ok := d.inner.(driver.RangeExporter)
		if !ok {
			return absent("ExportRange")
		}
		fd, err = r.ExportRange(p, size, flags)
		return err
	})
	return fd, err
}

// Freed implements driver.FreeReporter.
func (d *Injected) Freed(h driver.Handle) (bool, error) {
	return get(d, "Freed", -1, 0, func() (bool, error) {
		r, ok := d.inner.(driver.FreeReporter)
		if !ok {
			return false, absent("Freed")
		}
		return r.Freed(h)
	})
}

// ExportFabric implements driver.FabricSharer.
func (d *Injected) ExportFabric(h driver.Handle) ([64]byte, error) {
	return get(d, "ExportFabric", -1, 0, func() ([64]byte, error) {
		s, ok := d.inner.(driver.FabricSharer)
		if !ok {
			return [64]byte{}, absent("ExportFabric")
		}
		return s.ExportFabric(h)
	})
}

// ImportFabric implements driver.FabricSharer.
func (d *Injected) ImportFabric(name [64]byte, size uint64, p driver.Prop) (driver.Handle, error) {
	return get(d, "ImportFabric", ordinal(p.Location), size, func() (driver.Handle, error) {
		s, ok := d.inner.(driver.FabricSharer)
		if !ok {
			return 0, absent("ImportFabric")
		}
		return s.ImportFabric(name, size, p)
	})
}
