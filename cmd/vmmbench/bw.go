package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Values of the flags.
const (
	h2d  = "h2d" // directions of a copy, seen from the host
	d2h  = "d2h"
	d2d  = "d2d"
	both = "both"

	pageable = "pageable" // kinds of host memory
	pinned   = "pinned"
	staging  = "staging" // pageable, through this project's own pinned blocks
	noHost   = "none"    // a copy within the device

	touched = "touched" // memory of the host that was written before
	fresh   = "fresh"   // newly mapped: the copy is the first to write to its pages

	callAsync = "async" // copies are queued, and waited for together
	callSync  = "sync"  // each copy is waited for

	engineCE = "ce" // what the driver copies with: a GPU's copy engines, the host's processors
	engineSM = "sm" // the device's processors, by a kernel

	private    = "no" // vmm memory can be given to another process, or not
	exportable = "yes"
)

// directionFlows are the flows of a direction. The first is the forward one.
var directionFlows = map[string]string{h2d: "h>a", d2h: "a>h", d2d: "a>a", both: "h>a a>h"}

// bwPlan is what bw measures: every combination of its fields.
type bwPlan struct {
	directions, engines  choices
	hosts, intos, mems   choices
	sizes, chunks, steps size.List
	exportable, calls    choices
	streams              counts
	control              bool // compare each kind of memory with itself
}

func newBWPlan() *bwPlan {
	return &bwPlan{
		directions: choices{of: []string{h2d, d2h, d2d, both}, values: []string{h2d, d2h, d2d}},
		engines:    newEngines(),
		hosts:      choices{of: []string{pageable, pinned, staging}, values: []string{pageable, pinned}},
		intos:      choices{of: []string{touched, fresh}, values: []string{touched}},
		mems:       choices{of: []string{memVMM, memPlain, memAsync}, values: []string{memVMM, memPlain}},
		sizes:      size.List{16 << 20, 64 << 20, 256 << 20},
		chunks:     size.List{0},
		steps:      size.List{0},
		exportable: choices{of: []string{private, exportable}, values: []string{private}},
		calls:      choices{of: []string{callAsync, callSync}, values: []string{callAsync}},
		streams:    counts{1},
	}
}

const engineUsage = "ce copies with the copy engines, sm with the device's processors, by a kernel"

// newEngines is the flag --engine.
func newEngines() choices {
	return choices{of: []string{engineCE, engineSM}, values: []string{engineCE}}
}

func (p *bwPlan) flags(f *pflag.FlagSet) {
	f.Var(&p.directions, "direction", "directions; both is h2d and d2h at once")
	f.Var(&p.engines, "engine", engineUsage)
	f.Var(&p.hosts, "host", "kinds of host memory")
	f.Var(&p.intos, "into", "what d2h copies pageable and staging memory into: touched was written before, fresh is newly mapped for each copy")
	f.Var(&p.mems, "mem", "kinds of device memory; plain is cuMemAlloc on CUDA and mmap on the host")
	f.Var(&p.sizes, "size", "bytes of one copy: a list such as 2M,64M or a range such as 64K:1G:x2")
	f.Var(&p.chunks, "chunk", "chunk sizes of vmm memory; 0: the library chooses")
	f.Var(&p.steps, "step", "bytes by which vmm memory grows to its size; 0: all at once")
	f.Var(&p.calls, "call", "async queues the copies, sync waits for each of them")
	f.Var(&p.streams, "streams", "how many streams share a copy")
	f.Var(&p.exportable, "exportable", "whether vmm memory could be given to another process")
	f.BoolVar(&p.control, "control", false, "compare each kind of memory with a second one of the same kind: all should be equal")
}

func (a *app) bw() *cobra.Command {
	p := newBWPlan()
	c, _ := a.benchmark(&cobra.Command{
		Use:   "bw",
		Short: "Measure copies: host to device, device to host, within the device",
		Long: `Measure copies between host and device and within the device, with memory that
grows (vmm) against memory that does not. Every pair with the same axes is
compared; the ratio is of times, so above 1 vmm takes longer.

Bandwidth is payload in GB/s, 1e9 bytes a second. A copy within the device reads
and writes every byte: its traffic is twice the payload and is printed beside it.
Pageable memory is copied by the driver. Staging is the same memory, copied by
this project through pinned blocks of its own. With --step, the appends decide
the sizes of the chunks.

With --engine sm, a kernel of the device copies, as in nvbandwidth's cases of that
name: within the device, and from and to pinned memory.`,
		Example: `  vmmbench bw
  vmmbench bw --direction h2d,both --host pinned --size 64K:256M:x4
  vmmbench bw --direction d2d --engine ce,sm --size 64M:16G:x2 --step 1M --verify edges
  vmmbench bw --direction d2h --host staging,pinned --into fresh,touched --size 64M,1G
  vmmbench bw --host staging,pinned --chunk 0,2M,64M --format json -o bw.txt`,
	}, p, 30, 4*time.Second, (*measureFlags).addVerify, (*measureFlags).addMinTime)
	return c
}

// name is a part of a group's name. It leaves out what is the default.
func (w copyKind) name() string {
	name := w.direction
	for _, part := range [][2]string{{w.host, ""}, {w.into, touched}, {w.engine, engineCE}, {w.call, callAsync}, {fmt.Sprint("streams-", w.streams), "streams-1"}} {
		if part[0] != part[1] {
			name += "/" + part[0]
		}
	}
	return name
}

// unsupported is the error of copies that this device cannot do, or that would
// be the same as others.
func (w copyKind) unsupported(dev device) error {
	done := w.host + " copies are done when they return"
	switch {
	case w.host == staging && addressable(dev):
		return fmt.Errorf("the CPU has the addresses of %s and copies without staging: %w", dev, driver.ErrNotSupported)
	case w.engine == engineSM && w.synchronous():
		return fmt.Errorf("%s memory has no address that the device's processors can use: %w", w.host, driver.ErrNotSupported)
	case w.direction == both && !w.gateable():
		return fmt.Errorf("%s and cannot run both ways at once: %w", done, driver.ErrNotSupported)
	case w.streams > 1 && !w.gateable():
		return fmt.Errorf("%s and cannot share streams: %w", done, driver.ErrNotSupported)
	case w.synchronous() && w.call == callSync:
		return fmt.Errorf("%s, queued or not: %w", done, driver.ErrNotSupported)
	}
	return nil
}

// flows are the copies on a device.
func (w copyKind) flows(dev device, n uint64) []flow {
	return flowsOf(directionFlows[w.direction], n, dev, device{}, []device{dev})
}

// cross returns each of list with each of values, which set has put there. The value changes
// first. Duplicates are left out.
func cross[T comparable, V any](list []T, values []V, set func(*T, V)) (all []T) {
	for _, item := range list {
		for _, v := range values {
			if set(&item, v); !slices.Contains(all, item) {
				all = append(all, item)
			}
		}
	}
	return all
}

// copyKinds are all combinations of directions, host memory, calls and streams. Only downloads
// to memory that the driver does not know may go into fresh memory.
func (p *bwPlan) copyKinds() []copyKind {
	list := cross([]copyKind{{}}, p.directions.values, func(w *copyKind, v string) { w.direction = v })
	list = cross(list, p.hosts.values, func(w *copyKind, v string) {
		if w.host = v; w.direction == d2d {
			w.host = noHost
		}
	})
	list = cross(list, p.calls.values, func(w *copyKind, v string) { w.call = v })
	list = cross(list, p.streams, func(w *copyKind, n int) { w.streams = n })
	list = cross(list, p.engines.values, func(w *copyKind, v string) { w.engine = v })
	return cross(list, p.intos.values, func(w *copyKind, v string) {
		if w.into = v; w.direction != d2h || !w.synchronous() {
			w.into = touched
		}
	})
}

// groups plans one group for each kind of copy and each size.
func (p *bwPlan) groups(devs []device, seed uint64) (list []group, err error) {
	if slices.Contains(p.streams, 0) {
		return nil, usageError{errors.New("--streams 0: want 1 or more")}
	}
	if err := cmp.Or(checkMost("--chunk", p.chunks...), checkMost("--step", p.steps...), checkSize(p.sizes...)); err != nil {
		return nil, err
	}
	for _, w := range p.copyKinds() {
		for _, n := range p.sizes {
			list = append(list, p.group(devs[0], seed, w, n))
		}
	}
	return list, nil
}

func (p *bwPlan) group(dev device, seed uint64, w copyKind, n uint64) group {
	c := &copyGroup{copyKind: w, timing: dev, flows: w.flows(dev, n), gated: w.gateable(), refused: w.unsupported(dev)}
	// Both ends of a copy. Between a host and a GPU the link is slower than any cache.
	c.cached = 2*n <= dev.Info().Cache && (w.direction == d2d || onHost(dev))
	g := c.group("bw/"+w.name()+"/"+size.Format(n), seed, w.streams)
	if w.into == fresh { // which it is for one copy
		g.maxLoops = 1
	}
	for _, kind := range p.mems.values {
		for _, s := range p.shapes(kind, n) {
			label, layout := s.describe(memName(dev, kind), kind)
			c.add(&g, label, kind, s, report.Case{Unit: unitGBs, Bytes: c.moved(), Axes: append(axes(
				"device", dev.String(), "direction", w.direction, "engine", w.engine, "host", w.host, "into", w.into, "call", w.call,
				"streams", w.streams, "size", n), layout...)})
		}
	}
	if p.control {
		g.addControls()
	}
	return g
}

// shapes are the layouts in which memory of a kind is measured.
func (p *bwPlan) shapes(kind string, n uint64) []shape {
	list := []shape{{size: n}}
	if kind != memVMM {
		return list
	}
	list = cross(list, p.chunks, func(s *shape, v uint64) { s.chunk = v })
	list = cross(list, p.steps, func(s *shape, v uint64) { s.step = v })
	return cross(list, p.exportable.values, func(s *shape, v string) { s.share = v == exportable })
}

// describe is the label and the axes of memory of this kind, which the report
// calls name.
func (s shape) describe(name, kind string) (string, report.Axes) {
	chunk, step, share := chunkLabel(kind, s.chunk), whole, private
	label := taskLabel(name, chunk)
	if s.step > 0 {
		step = size.Format(s.step)
		label += "-by-" + step
	}
	if s.share {
		share = exportable
		label += "-exportable"
	}
	return label, axes("mem", name, "chunk", chunk, "step", step, "exportable", share)
}

// Values of the chunk axis, and of the step axis, that are no size.
const (
	whole  = "whole"  // the memory is one piece, or grew by one step
	ladder = "ladder" // the range chooses
)

// chunkLabel is the value of the chunk axis.
func chunkLabel(kind string, chunk uint64) string {
	switch {
	case kind != memVMM:
		return whole
	case chunk == 0:
		return ladder
	}
	return size.Format(chunk)
}

// taskLabel is memory and chunk in one word.
func taskLabel(mem, chunk string) string {
	if chunk == whole || chunk == ladder {
		return mem
	}
	return mem + "-" + chunk
}
