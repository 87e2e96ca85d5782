package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// patience is how long a call that must return may take before the case fails. It is
// less where the whole run has less time left.
const patience = time.Minute

// grace is how long a call that must not return is watched. A correct driver passes
// with any value.
const grace = 25 * time.Millisecond

// check is one running case: the driver under test and what the case has taken from
// it. Its methods that take something stop the case on an error. giveBack frees what
// is still held at the end.
type check struct {
	testing.TB
	rule Rule

	skipped string // the reason, if the case was skipped

	d    *Injected
	name string
	info []driver.Info
	gran uint64
	held held

	unbalanced bool // what was taken and what was freed do not balance, as the case says
	patience   time.Duration
}

// patienceOf is the patience of a case of t. It ends long before the deadline of the
// run, which would lose what was found.
func patienceOf(t *testing.T) time.Duration {
	if deadline, ok := t.Deadline(); ok {
		return min(patience, time.Until(deadline)/4)
	}
	return patience
}

// open opens the driver, and skips the case where it lacks what the rule needs.
func (c *check) open(open func(testing.TB) driver.Driver) {
	c.Helper()
	inner := open(c.TB)
	c.name = inner.Name()
	c.d = Inject(inner, nil)
	c.held = newHeld()
	var err error
	c.info, err = c.d.Devices()
	c.must(err, "list devices")
	// A rule that needs more than is there is skipped, and says what it needs.
	want := max(c.rule.devices, 1)
	if len(c.info) < want {
		c.skip("%d devices needed, %d here", want, len(c.info))
	}
	for dev := range want {
		for _, f := range append(c.rule.needs, driver.FeatureVMM) {
			if err := c.d.Supports(dev, f); errors.Is(err, driver.ErrNotSupported) {
				c.skip("%s:%d does not support %v", c.name, dev, f)
			} else if err != nil {
				c.Fatalf("ask %s:%d for %v: %v", c.name, dev, f, err)
			}
		}
		if can, err := c.d.CanAccessPeer(0, dev); dev > 0 && (err != nil || !can) {
			c.skip("%s:0 cannot reach %s:%d (%v)", c.name, c.name, dev, err)
		}
	}
	c.gran, err = c.d.Granularity(private(0))
	c.must(err, "ask for the granularity")
}

func (c *check) skip(format string, args ...any) {
	c.Helper()
	c.skipped = fmt.Sprintf(format, args...)
	c.Skip(c.skipped)
}

// optional skips the case when err says that an optional interface is absent.
func (c *check) optional(err error, what string) {
	c.Helper()
	if errors.Is(err, driver.ErrNotSupported) {
		c.skip("no %s", what)
	}
	c.must(err, "%s", what)
}

func (c *check) outcome() string {
	switch {
	case c.Failed():
		return "fail"
	case c.Skipped():
		return "skipped: " + c.skipped
	}
	return "pass"
}

func (c *check) must(err error, doing string, args ...any) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}

// want checks that err is a *driver.CallError of one of these kinds and of no other.
func (c *check) want(err error, doing string, kinds ...error) {
	c.Helper()
	if err == nil {
		c.Errorf("%s: no error, want %v", doing, kinds)
		return
	}
	var call *driver.CallError
	if !errors.As(err, &call) {
		c.Errorf("%s: %v (%T), want a *driver.CallError", doing, err, err)
	} else if call.Call == "" {
		c.Errorf("%s: %v does not name its call", doing, err)
	}
	matched := false
	for _, kind := range kinds {
		matched = matched || errors.Is(err, kind)
	}
	if !matched {
		c.Errorf("%s: %v, want %v", doing, err, kinds)
		return
	}
	n := 0
	for _, kind := range sentinels() {
		if errors.Is(err, kind) {
			n++
		}
	}
	reset := errors.Is(err, driver.ErrContextReset)
	if reset && !slices.Contains(kinds, driver.ErrContextReset) {
		c.Errorf("%s: %v is of one opened device, want %v", doing, err, kinds)
	}
	if reset {
		n-- // ErrContextReset is an ErrDeviceLost too
	}
	if n != 1 {
		c.Errorf("%s: %v is of %d kinds at once", doing, err, n)
	}
}

// result is what a call returned.
type result[T any] struct {
	value T
	err   error
}

func valueOf[T any](v T, err error) result[T] { return result[T]{v, err} }

// must is the value of a call that may not fail.
func (r result[T]) must(c *check, doing string, args ...any) T {
	c.Helper()
	c.must(r.err, doing, args...)
	return r.value
}

// optional is must of a call of an optional interface, without which the case is skipped.
func (r result[T]) optional(c *check, what string) T {
	c.Helper()
	c.optional(r.err, what)
	return r.value
}

// then is the error of the call, or that of f with its value.
func (r result[T]) then(f func(T) error) error {
	if r.err != nil {
		return r.err
	}
	return f(r.value)
}

// errOf is the error of a call whose value does not matter.
func errOf[T any](_ T, err error) error { return err }

// is checks that err is of a kind. It may be of others too.
func (c *check) is(err error, doing string, kind error) {
	c.Helper()
	if !errors.Is(err, kind) {
		c.Errorf("%s: %v, want %v", doing, err, kind)
	}
}

// returns runs f, which may wait for the device, and returns its error. A wait that
// never ends fails the case and not the whole run.
func (c *check) returns(doing string, f func() error) error {
	c.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(c.patience):
		c.Fatalf("%s: still waiting after %v", doing, c.patience)
		return nil
	}
}

// prompt is returns for a call that must not wait for queued work. Such a wait can
// only hang while a gate is closed. Without one the call is made on the case's own
// thread, as captures need.
func (c *check) prompt(doing string, f func() error) error {
	c.Helper()
	for _, g := range c.held.gates {
		if !g.opened {
			return c.returns(doing, f)
		}
	}
	return f()
}

// prompted is prompt for a call that returns a value.
func prompted[T any](c *check, doing string, f func() (T, error)) result[T] {
	c.Helper()
	var r result[T]
	r.err = c.prompt(doing, func() (err error) { r.value, err = f(); return err })
	return r
}

// stays checks that a call on another goroutine has not returned yet. On a slow
// machine it may miss a fault, but it never reports one that is not there.
func (c *check) stays(done <-chan error, doing string) {
	c.Helper()
	select {
	case err := <-done:
		c.Fatalf("%s: returned %v before the work could have run", doing, err)
	case <-time.After(grace): // without a loop, which would keep a processor from what it looks for
	}
}

// write puts n bytes of b at p through a device.
func (c *check) write(d driver.Device, p driver.Ptr, n uint64, b byte) {
	c.Helper()
	err := c.prompt("write", func() error { return d.CopyIn(p, bytes.Repeat([]byte{b}, int(n))) })
	c.must(err, "write %d bytes at %v", n, p)
}

// bytesAt is the n bytes at p, seen through a device.
func (c *check) bytesAt(d driver.Device, p driver.Ptr, n uint64) []byte {
	c.Helper()
	got := make([]byte, n)
	c.must(c.prompt("read", func() error { return d.CopyOut(got, p) }), "read %d bytes at %v", n, p)
	return got
}

// reads checks that the n bytes at p, seen through a device, are all b.
func (c *check) reads(d driver.Device, p driver.Ptr, n uint64, b byte) {
	c.Helper()
	got := c.bytesAt(d, p, n)
	if bytes.Count(got, []byte{b}) == len(got) {
		return
	}
	for i, x := range got {
		if x != b {
			c.Fatalf("byte %d at %v is %#x, want %#x", i, p, x, b)
		}
	}
}

// holds checks the bytes at p, seen through a device.
func (c *check) holds(d driver.Device, p driver.Ptr, want []byte, what string, args ...any) {
	c.Helper()
	if !bytes.Equal(c.bytesAt(d, p, uint64(len(want))), want) {
		c.Fatalf("%s: other bytes than those expected", fmt.Sprintf(what, args...))
	}
}

// equal checks a value.
func equal[T comparable](c *check, got, want T, what string, args ...any) {
	c.Helper()
	if got != want {
		c.Errorf("%s: %v, want %v", fmt.Sprintf(what, args...), got, want)
	}
}

// has checks what a device may do at p.
func (c *check) has(p driver.Ptr, dev int, want driver.Access) {
	c.Helper()
	got := valueOf(c.d.Access(p, at(dev))).must(c, "ask for device %d's access at %v", dev, p)
	equal(c, got, want, "the access of device %d at %v", dev, p)
}

func at(dev int) driver.Location { return driver.Location{Kind: driver.LocationDevice, ID: dev} }

// private is memory of a device that stays in this process.
func private(dev int) driver.Prop { return driver.Prop{Location: at(dev)} }

func grant(dev int, a driver.Access) driver.Grant { return driver.Grant{To: at(dev), Access: a} }
