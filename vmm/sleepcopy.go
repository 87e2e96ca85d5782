package vmm

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/vmm/internal/hostcopy"
	"github.com/cuvmm/cuvmm/vmm/internal/rows"
	"github.com/cuvmm/cuvmm/vmm/internal/staging"
)

// takeHostMemory takes memory of the host for the contents of all ranges, before any is copied.
func takeHostMemory(all []*sleeper) error {
	var needs []hostcopy.Need
	var sum uint64
	for _, s := range all {
		if n := s.len.Load(); n > 0 && s.mode == SleepKeep {
			needs = append(needs, hostcopy.Need{Of: &s.hostCopy, Bytes: n})
			sum += n
		}
	}
	if err := hostcopy.Ensure(needs...); err != nil {
		return fmt.Errorf("host memory for %s: %w", errtext.Size(sum), err)
	}
	return nil
}

// savedAtOnce is after how many bytes a copy says that they have pages now, so that others who ask for
// memory of the host do not count them twice. It is a variable for tests.
var savedAtOnce uint64 = 2 << 30

// save copies the contents to host memory. Nothing uses the ranges.
func save(all []*sleeper) error {
	_, err := copyContents(all, func(s *sleeper) bool { return s.mode == SleepKeep }, savedAtOnce, (*staging.Lanes).CopyAllOut)
	return err
}

// load copies the contents back. It returns also the range that could not have them. The copy may still
// run on that range's device, and on no other.
func load(all []*sleeper) (failed *sleeper, err error) {
	// One that has its memory has its contents.
	failed, err = copyContents(all, func(s *sleeper) bool { return s.sleptMem == nil }, math.MaxUint64, (*staging.Lanes).CopyAllIn)
	if err != nil {
		return failed, err
	}
	for _, s := range all {
		if err := s.setOwnAccess(); err != nil {
			return s, err
		}
	}
	return nil, nil
}

// contents is a part of a range's bytes, in its memory and in the host's.
type contents struct {
	of *sleeper
	staging.Transfer
}

// copyContents copies the contents of the ranges to their host memory, or back, atOnce bytes at a time. The ranges
// of one device share its lanes. It returns also the first range of those whose copy has failed.
func copyContents(all []*sleeper, has func(*sleeper) bool, atOnce uint64, copyAll func(*staging.Lanes, []staging.Transfer) error) (failed *sleeper, err error) {
	var left []contents
	for _, s := range all {
		if n := s.len.Load(); n > 0 && has(s) {
			for _, t := range staging.Cut([]staging.Transfer{{At: rows.Flat(s.r.ptr), Host: s.hostCopy.Mem[:n]}}, atOnce) {
				left = append(left, contents{s, t})
			}
		}
	}
	slices.SortStableFunc(left, func(a, b contents) int { return cmp.Compare(a.of.r.dev.state.n, b.of.r.dev.state.n) })
	for len(left) > 0 {
		dev := left[0].of.r.dev
		var now []staging.Transfer
		for bytes := uint64(0); len(now) < len(left); {
			next := left[len(now)]
			if bytes += uint64(len(next.Host)); next.of.r.dev.state != dev.state || len(now) > 0 && bytes > atOnce {
				break
			}
			now = append(now, next.Transfer)
		}
		o, err := dev.ensureOpen()
		if err == nil {
			err = copyAll(o.stage, now)
		}
		if err != nil {
			return left[0].of, err
		}
		for _, c := range left[:len(now)] {
			c.of.hostCopy.Wrote(uint64(len(c.Host)))
		}
		left = left[len(now):]
	}
	return nil, nil
}

// countHostCopy has the range's host memory counted by the device.
func (g *Range) countHostCopy(d *Device) {
	g.hostCopy.Take = func(n uint64) error {
		if err := takeAddresses(n); err != nil {
			return err
		}
		g.copySample = memsample.Of(d.samples, &memsample.Source{Kind: memsample.HostCopy, Name: g.opts.Name}, n, 1)
		d.counters.Raise(&d.counters.HostCopies, n, g.copySample.Begin)
		return nil
	}
	g.hostCopy.Return = func(n uint64) {
		d.counters.Lower(&d.counters.HostCopies, n, g.copySample.End)
		giveAddresses(n)
	}
}

// freeHostCopies gives the host memory of ranges back by as many threads as there are processors: pages
// take the system longer than their copy took the GPU.
func freeHostCopies(all []*sleeper) {
	var next atomic.Int64
	var threads sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(all)) {
		threads.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(all)); i = next.Add(1) - 1 {
				all[i].freeHostCopy()
			}
		})
	}
	threads.Wait()
}

// freeHostCopy gives the host memory of a range that is awake back, unless it is to be kept.
func (s *sleeper) freeHostCopy() {
	if !s.opts.KeepHostMemory || !s.hostCopy.IsWritten() {
		_ = s.hostCopy.Free() // what cannot be freed now is freed by the next Sleep, Clip or Close
	}
}
