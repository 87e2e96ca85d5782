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
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// Options configures New.
type Options struct {
	// Timeout is collective.Options.Timeout; 0 is 30 seconds.
	Timeout time.Duration
	// Silent: the other members do not learn of one that has ended, as with NCCL over NVLink.
	// They wait until Timeout.
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
func GroupsOn(tb testing.TB, devs ...*vmm.Device) []*collective.Group {
	tb.Helper()
	return New(tb, Options{}, devs...)
}

// New is GroupsOn with options.
func New(tb testing.TB, o Options, devs ...*vmm.Device) []*collective.Group {
	tb.Helper()
	w, err := hostengine.NewWorld(len(devs), hostengine.Options{Silent: o.Silent, Report: tb.Errorf})
	if err != nil {
		tb.Fatal(err)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	groups := make([]*collective.Group, 0, len(devs))
	members := make([]*hostengine.Member, 0, len(devs))
	tb.Cleanup(func() {
		tb.Helper()
		if err := endAll(groups, len(groups) < len(devs)); err != nil {
			tb.Errorf("at the end of the test: %v", err)
		}
		for rank, m := range members {
			if !m.Freed() {
				tb.Errorf("at the end of the test: rank %d of a group was not freed", rank)
			}
		}
	})
	for rank, dev := range devs {
		m, err := w.Join(rank, dev)
		if err != nil {
			tb.Fatal(err)
		}
		members = append(members, m)
		g, err := collective.NewGroup(dev, rank, len(devs), m, collective.Options{Timeout: o.Timeout})
		if err != nil {
			tb.Fatal(err)
		}
		groups = append(groups, g)
	}
	return groups
}

// endAll closes the groups. It aborts them if one was, or some were not made: then Close of the
// others cannot end well.
func endAll(groups []*collective.Group, aborted bool) error {
	for _, g := range groups {
		aborted = aborted || errors.Is(g.Err(), collective.ErrAborted)
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
// others learn of it unless Options.Silent is set. The test can still use the member's device and
// memory, to check them.
func Kill(g *collective.Group) error { return g.Abort() }
