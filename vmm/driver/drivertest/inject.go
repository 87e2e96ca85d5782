package drivertest

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

//go:generate go run ../../../internal/injectgen

// Call is a call that is about to be made through an [Injected] driver.
type Call struct {
	N    int    // counts every call through the wrapper, from 1
	Name string // the seam's verb: "Create", "SetAccess", "CopyIn"
	Dev  int    // the device it names (of a pair: from); -1 where it names none or several
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

var _ driver.Wrapper = (*Injected)(nil)

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

// pass asks the hook, makes the call c with f if inner has the interface I, and counts the
// outcome.
func pass[I any](d *Injected, inner any, c Call, f func(I) error) error {
	d.mu.Lock()
	d.calls++
	c.N = d.calls
	d.mu.Unlock()

	err := d.hook(c)
	if err != nil {
		err = refusal(c.Name, err)
	} else if i, ok := inner.(I); ok {
		err = f(i)
	} else {
		err = &driver.CallError{Call: c.Name, Kind: driver.ErrNotSupported}
	}
	d.count(c.Name, c.Size, err)
	return err
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

// ordinalOfOnly is the device of a single grant; -1 if there are several or none.
func ordinalOfOnly(grants []driver.Grant) int {
	if len(grants) != 1 {
		return -1
	}
	return ordinal(grants[0].To)
}

// Name is the wrapped driver's. It is no call, so the hook does not see it.
func (d *Injected) Name() string { return d.inner.Name() }

// Wraps implements driver.Wrapper.
func (d *Injected) Wraps() driver.Identity { return driver.IdentityOf(d.inner) }

// Open implements driver.Driver. The Device is wrapped as well.
func (d *Injected) Open(dev int) (v driver.Device, err error) {
	err = pass(d, d.inner, Call{Name: "Open", Dev: dev}, func(i driver.Driver) error {
		inner, err := i.Open(dev)
		if err == nil {
			v = &device{of: d, n: dev, inner: inner}
		}
		return err
	})
	return v, err
}

// device is a Device of an Injected driver.
type device struct {
	of    *Injected
	n     int
	inner driver.Device

	closing sync.Mutex
	closed  bool // a second Close is allowed, and must not count
}

var _ driver.Wrapper = (*device)(nil)

func (d *device) Wraps() driver.Identity { return driver.IdentityOf(d.inner) }

// CopyStream cannot fail, so the hook does not see it.
func (d *device) CopyStream() driver.Stream { return d.inner.CopyStream() }

func (d *device) Close() error {
	d.closing.Lock()
	defer d.closing.Unlock()
	if d.closed {
		return d.inner.Close()
	}
	err := pass(d.of, d.inner, Call{Name: "Close", Dev: d.n}, driver.Device.Close)
	d.closed = err == nil
	return err
}
