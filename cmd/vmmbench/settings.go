package main

import (
	"runtime"
	"runtime/debug"
	"time"
)

// settings are what no flag sets. Tests have others than a user's run.
type settings struct {
	warmTime  time.Duration    // that each contender works before its first sample
	warmPairs int              // of pool, that a contender makes before its first sample
	minTime   time.Duration    // of a sample, unless --min-time says otherwise
	now       func() time.Time // the clock of --max-time

	gateTimeout     time.Duration // how long a gate stays shut
	peerGateTimeout time.Duration // the same for copies between devices

	// freeMemory gives the system what Go has freed: the next group needs it.
	freeMemory func()
	// collect collects what Go's heap no longer uses, and keeps its pages.
	collect func()
	// checksOnDevice reports whether a device is to fill and compare its memory by kernels.
	checksOnDevice func(device) bool
	// ownArgs returns the arguments and the additional environment of a process of this program.
	ownArgs func(args ...string) (argv, env []string)
	// afterReplyTimeout calls late if a process takes too long for a reply, unless stop is
	// called before.
	afterReplyTimeout func(p *readerProcess, late func()) (stop func() bool)
}

// userSettings are those of a user's run.
func userSettings() *settings {
	return &settings{
		warmTime:  50 * time.Millisecond,
		warmPairs: 2 * pairDraws,
		minTime:   time.Millisecond,
		now:       time.Now,

		// If a stream's queue is full, the driver blocks the caller, and only an open gate lets
		// the queue drain. Copies between devices that go through the host may wait for the gate
		// too, and with the same timeout all pairs would take long.
		gateTimeout:     2 * time.Second,
		peerGateTimeout: 250 * time.Millisecond,

		freeMemory: debug.FreeOSMemory,
		collect:    runtime.GC,
		// Memory of the host is compared where it is, by all processors.
		checksOnDevice: func(dev device) bool { return !onHost(dev) },
		ownArgs:        func(args ...string) (argv, env []string) { return args, nil },
		afterReplyTimeout: func(_ *readerProcess, late func()) (stop func() bool) {
			return time.AfterFunc(replyTimeout, late).Stop
		},
	}
}
