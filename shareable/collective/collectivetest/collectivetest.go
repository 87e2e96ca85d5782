// Package collectivetest makes groups for the tests of applications. The members are in the
// test's own process, each with a device on host memory, and mostly each in a goroutine. It
// needs neither a GPU nor NCCL, and is for tests alone:
//
//	for _, g := range collectivetest.Groups(t, 4) {
//		wg.Go(func() { train(g) }) // each with g.Device()
//	}
//
// It is stricter than NCCL. Members whose calls of Do do not match, and those that wait for each
// other for ever, get collective.ErrFailed with both calls in the text, at once. The
// test fails if memory is registered twice, or is unmapped while it is registered, or if
// registrations are left. Graphs are not supported: Group.Do returns
// vmm.ErrNotSupported on a stream that is being captured.
//
// Host memory is a device on Linux only. Elsewhere the test is skipped, see package vmmtest.
package collectivetest

import (
	"cmp"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// Options configures New.
type Options struct {
	// Timeout is collective.Options.Timeout; 0 is 30 seconds.
	Timeout time.Duration
	// Silent: the other members do not learn of one that has ended, as with NCCL over NVLink and
	// collective.Options.ID. They wait until Timeout, and Shrink is not supported.
	Silent bool
}

const defaultTimeout = 30 * time.Second

// Groups makes a group of n members, 1 to 64, and returns them by rank. Each has a device of its
// own, from vmmtest.Device. At the end of the test it closes the members, and then the devices.
func Groups(tb testing.TB, n int) []*collective.Group {
	tb.Helper()
	devs := make([]*vmm.Device, n)
	for i := range devs {
		devs[i] = vmmtest.Device(tb)
	}
	return GroupsOn(tb, devs...)
}

// GroupsOn is Groups with these devices, one for each member. Members may have the same device.
// Then what waits for all of it, as the Close of a Range may, waits for other members' calls, too.
func GroupsOn(tb testing.TB, devs ...*vmm.Device) []*collective.Group {
	tb.Helper()
	return New(tb, Options{}, devs...)
}

var forTests = door.Through[engine.ForTests[*collective.Group, collective.Options]]()

// New is GroupsOn with options.
func New(tb testing.TB, o Options, devs ...*vmm.Device) []*collective.Group {
	tb.Helper()
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if n := len(devs); n < 1 || n > hostengine.MaxMembers {
		tb.Fatalf("a group of %d members; the most is %d", n, hostengine.MaxMembers)
	}
	worlds := &hostengine.Worlds{Options: hostengine.Options{Silent: o.Silent, Report: tb.Errorf}}
	groups := make([]*collective.Group, len(devs))
	errs := make([]error, len(devs))
	tb.Cleanup(func() {
		tb.Helper()
		if err := endAll(groups); err != nil {
			tb.Errorf("at the end of the test: %v", err)
		}
		for _, m := range worlds.Members() {
			if !m.Freed() {
				tb.Errorf("at the end of the test: rank %d of a group was not freed", m.Rank())
			}
		}
	})
	var at net.Listener
	if !o.Silent {
		var err error
		if at, err = (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0"); err != nil {
			tb.Fatal(err)
		}
	}
	var members sync.WaitGroup
	for rank, dev := range devs {
		members.Go(func() {
			groups[rank], errs[rank] = forTests.JoinOn(tb.Context(), dev, collective.Options{Rank: rank, Size: len(devs), Timeout: o.Timeout}, worlds, at)
		})
	}
	members.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
	return groups
}

// endAll closes the groups. It aborts them if one was, or some were not made: then Close of the
// others cannot end well.
func endAll(groups []*collective.Group) error {
	aborted := false
	for _, g := range groups {
		aborted = aborted || g == nil || errors.Is(g.Err(), collective.ErrAborted)
	}
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() {
			if aborted {
				errs[i] = g.Abort()
			} else {
				errs[i] = g.Close()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Kill ends this member as SIGKILL would end its process, with what it has queued on streams. The
// others learn of it, and may Group.Shrink, unless Options.Silent is set. The test can still use
// the member's device and memory, to check them.
func Kill(g *collective.Group) error { return g.Abort() }
