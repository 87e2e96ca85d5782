// Package nulldriver is a driver that does nothing and succeeds, for benchmarks of what the
// layers above it cost: only its memory has an end. It holds no bytes: a copy out leaves the
// slice as it was.
package nulldriver

import (
	"sync/atomic"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

const (
	granularity = 2 << 20
	memory      = 1 << 45
	firstPtr    = 1 << 40
)

// Driver has two devices, which can reach each other.
type Driver struct {
	ptr    atomic.Uint64 // the next reservation's
	last   atomic.Uint64 // handle, stream or event
	memory uint64        // of both devices together
	used   atomic.Uint64
}

// New makes a driver with 32 TiB of memory.
func New() *Driver { return NewSized(memory) }

// NewSized makes a driver whose devices have so much memory together, whole granules.
func NewSized(memory uint64) *Driver {
	d := &Driver{memory: memory}
	d.ptr.Store(firstPtr)
	return d
}

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Device = (*Device)(nil)
)

// Name is "null".
func (d *Driver) Name() string { return "null" }

// Devices lists both devices.
func (d *Driver) Devices() ([]driver.Info, error) {
	return []driver.Info{
		{Ordinal: 0, Open: "null:0", Name: "null", Memory: d.memory},
		{Ordinal: 1, Open: "null:1", Name: "null", Memory: d.memory},
	}, nil
}

// Supports is nil for the features that have a method here.
func (d *Driver) Supports(_ int, f driver.Feature) error {
	if f == driver.FeatureVMM || f == driver.FeatureReadOnlyMap || f == driver.FeatureKernels {
		return nil
	}
	return driver.ErrNotSupported
}

// CanAccessPeer is true of both.
func (d *Driver) CanAccessPeer(from, to int) (bool, error) { return from != to, nil }

// Granularity is 2 MiB.
func (d *Driver) Granularity(driver.Prop) (uint64, error) { return granularity, nil }

// GranularityRecommended is the same.
func (d *Driver) GranularityRecommended(driver.Prop) (uint64, error) { return granularity, nil }

// Reserve returns each address only once.
func (d *Driver) Reserve(size, align uint64) (driver.Ptr, error) {
	align = max(align, granularity)
	for {
		last := d.ptr.Load()
		p := (last + align - 1) &^ (align - 1)
		if p < last || p+size < p {
			return 0, driver.ErrAddressSpace
		}
		if d.ptr.CompareAndSwap(last, p+size) {
			return driver.Ptr(p), nil
		}
	}
}

// Free does nothing.
func (d *Driver) Free(driver.Ptr, uint64) error { return nil }

// Create returns a new number, which has the size in its upper half.
func (d *Driver) Create(size uint64, _ driver.Prop) (driver.Handle, error) {
	if d.used.Add(size) > d.memory {
		d.used.Add(-size)
		return 0, driver.ErrOutOfMemory
	}
	return driver.Handle(size/granularity<<32 | d.last.Add(1)&(1<<32-1)), nil
}

// Properties returns device 0, whatever Create was passed.
func (d *Driver) Properties(driver.Handle) (driver.Prop, error) {
	return driver.Prop{Location: driver.Location{Kind: driver.LocationDevice}}, nil
}

// Release makes room for other memory.
func (d *Driver) Release(h driver.Handle) error {
	d.used.Add(-(uint64(h) >> 32 * granularity))
	return nil
}

// Map does nothing.
func (d *Driver) Map(driver.Ptr, uint64, driver.Handle) error { return nil }

// Unmap does nothing.
func (d *Driver) Unmap(driver.Ptr, uint64) error { return nil }

// SetAccess does nothing.
func (d *Driver) SetAccess(driver.Ptr, uint64, []driver.Grant) error { return nil }

// Access is AccessReadWrite.
func (d *Driver) Access(driver.Ptr, driver.Location) (driver.Access, error) {
	return driver.AccessReadWrite, nil
}

// Export is not supported.
func (d *Driver) Export(driver.Handle) (int, error) { return -1, driver.ErrNotSupported }

// Import is not supported.
func (d *Driver) Import(int, uint64, driver.Prop) (driver.Handle, error) {
	return 0, driver.ErrNotSupported
}

// SyncIfActive does nothing.
func (d *Driver) SyncIfActive(int) error { return nil }

// Open opens either device.
func (d *Driver) Open(int) (driver.Device, error) { return &Device{d}, nil }

// Device is an opened device.
type Device struct{ d *Driver }

// MemInfo is what Create has left.
func (v *Device) MemInfo() (free, total uint64, err error) {
	return v.d.memory - v.d.used.Load(), v.d.memory, nil
}

// CopyIn does nothing.
func (v *Device) CopyIn(driver.Ptr, []byte) error { return nil }

// CopyOut does nothing.
func (v *Device) CopyOut([]byte, driver.Ptr) error { return nil }

// Copy does nothing.
func (v *Device) Copy(_, _ driver.Ptr, _ uint64, _ driver.Stream) error { return nil }

// Fill does nothing.
func (v *Device) Fill(driver.Ptr, uint32, int, uint64, driver.Stream) error { return nil }

// NewStream returns a new number.
func (v *Device) NewStream() (driver.Stream, error) { return driver.Stream(v.next()), nil }

// FreeStream does nothing.
func (v *Device) FreeStream(driver.Stream) error { return nil }

// SyncStream does nothing.
func (v *Device) SyncStream(driver.Stream) error { return nil }

// StreamDone is true.
func (v *Device) StreamDone(driver.Stream) (bool, error) { return true, nil }

// CopyStream is a stream whose number NewStream never returns.
func (v *Device) CopyStream() driver.Stream { return 1 << 63 }

// Capturing is false.
func (v *Device) Capturing(driver.Stream) (bool, error) { return false, nil }

// NewEvent returns a new number.
func (v *Device) NewEvent(driver.EventFlags) (driver.Event, error) {
	return driver.Event(v.next()), nil
}

// FreeEvent does nothing.
func (v *Device) FreeEvent(driver.Event) error { return nil }

// SyncEvent does nothing.
func (v *Device) SyncEvent(driver.Event) error { return nil }

// Record does nothing.
func (v *Device) Record(driver.Event, driver.Stream) error { return nil }

// Wait does nothing.
func (v *Device) Wait(driver.Stream, driver.Event) error { return nil }

// Done is true.
func (v *Device) Done(driver.Event) (bool, error) { return true, nil }

// Elapsed is no time.
func (v *Device) Elapsed(_, _ driver.Event) (time.Duration, error) { return 0, nil }

// Sync does nothing.
func (v *Device) Sync() error { return nil }

// Do runs f.
func (v *Device) Do(f func() error) error { return f() }

// Close does nothing.
func (v *Device) Close() error { return nil }

func (v *Device) next() uint64 { return v.d.last.Add(1) }
