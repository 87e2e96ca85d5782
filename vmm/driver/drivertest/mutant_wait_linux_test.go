package drivertest_test

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// waitsIn is a Device on which one call waits for queued work that it must not wait
// for.
type waitsIn struct {
	full
	call string
}

func (d *waitsIn) wait(call string, f func() error) error {
	if d.call != call {
		return nil
	}
	return f()
}

func (d *waitsIn) Fill(dst driver.Ptr, pattern uint32, width int, n uint64, s driver.Stream) error {
	err := d.full.Fill(dst, pattern, width, n, s)
	return errors.Join(err, d.wait("Fill", func() error { return d.SyncStream(s) }))
}

func (d *waitsIn) Copy(dst, src driver.Ptr, n uint64, s driver.Stream) error {
	err := d.full.Copy(dst, src, n, s)
	return errors.Join(err, d.wait("Copy", func() error { return d.SyncStream(s) }))
}

func (d *waitsIn) CopyIn(dst driver.Ptr, src []byte) error {
	return errors.Join(d.wait("CopyIn", d.Sync), d.full.CopyIn(dst, src))
}

func (d *waitsIn) CopyOut(dst []byte, src driver.Ptr) error {
	return errors.Join(d.wait("CopyOut", d.Sync), d.full.CopyOut(dst, src))
}

func (d *waitsIn) Record(e driver.Event, s driver.Stream) error {
	err := d.full.Record(e, s)
	return errors.Join(err, d.wait("Record", func() error { return d.SyncStream(s) }))
}

func (d *waitsIn) Wait(s driver.Stream, e driver.Event) error {
	return errors.Join(d.wait("Wait", func() error { return d.SyncEvent(e) }), d.full.Wait(s, e))
}

func (d *waitsIn) FreeAsync(p driver.Ptr, s driver.Stream) error {
	return errors.Join(d.wait("FreeAsync", func() error { return d.SyncStream(s) }), d.full.FreeAsync(p, s))
}

func (d *waitsIn) DestroyPool(p driver.Pool) error {
	return errors.Join(d.wait("DestroyPool", d.Sync), d.full.DestroyPool(p))
}

func (d *waitsIn) FreeStream(s driver.Stream) error {
	return errors.Join(d.wait("FreeStream", func() error { return d.SyncStream(s) }), d.full.FreeStream(s))
}

func (d *waitsIn) FreeEvent(e driver.Event) error {
	return errors.Join(d.wait("FreeEvent", func() error { return d.SyncEvent(e) }), d.full.FreeEvent(e))
}
