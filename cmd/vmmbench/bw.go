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

// Directions of a copy, seen from the host.
const (
	h2d  = "h2d"
	d2h  = "d2h"
	d2d  = "d2d"
	both = "both"
)

// Kinds of host memory.
const (
	pageable = "pageable"
	pinned   = "pinned"
	staging  = "staging" // pageable, through this project's own pinned blocks
	noHost   = "none"    // a copy within the device
)

// Values of --into.
const (
	touched = "touched" // memory of the host that was written before
	fresh   = "fresh"   // newly mapped: the copy is the first to write to its pages
)

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

func (p *bwPlan) flags(f *pflag.FlagSet) {
	for _, axis := range []struct {
		name, usage string
		value       pflag.Value
	}{
		{"direction", "directions; both is h2d and d2h at once", &p.directions},
		{"engine", engineUsage, &p.engines},
		{"host", "kinds of host memory", &p.hosts},
		{"into", "what d2h copies pageable and staging memory into: touched was written before, fresh is newly mapped for each copy", &p.intos},
		{"mem", "kinds of device memory; plain is cuMemAlloc on CUDA and mmap on the host", &p.mems},
		{"size", "bytes of one copy: a list such as 2M,64M or a range such as 64K:1G:x2", &p.sizes},
		{"chunk", "chunk sizes of vmm memory; 0: the library chooses", &p.chunks},
		{"step", "bytes by which vmm memory grows to its size; 0: all at once", &p.steps},
		{"call", "async queues the copies, sync waits for each of them", &p.calls},
		{"streams", "how many streams share a copy", &p.streams},
		{"exportable", "whether vmm memory could be given to another process", &p.exportable},
	} {
		f.Var(axis.value, axis.name, axis.usage)
	}
	f.BoolVar(&p.control, "control", false, "compare each kind of memory with a second one of the same kind: all should be equal")
}

// Values of --call.
const (
	callAsync = "async" // copies are queued, and waited for together
	callSync  = "sync"  // each copy is waited for
)

// Values of --engine.
const (
	engineCE = "ce" // what the driver copies with: a GPU's copy engines, the host's processors
	engineSM = "sm" // the device's processors, by a kernel
)

const engineUsage = "ce copies with the copy engines, sm with the device's processors, by a kernel"

// newEngines is the flag --engine.
func newEngines() choices {
	return choices{of: []string{engineCE, engineSM}, values: []string{engineCE}}
}

// Values of --exportable.
const (
	private    = "no"
	exportable = "yes"
)

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
this project through pinned blocks of its own. With --into fresh, each copy from the
device into such memory is the first to write to its pages. With --step, vmm memory grows to its
size by appends of that many bytes, which decide the sizes of its chunks.

With --engine sm, a kernel of the device copies, as in nvbandwidth's cases of that
name: within the device, and from and to pinned memory.`,
		Example: `  vmmbench bw
  vmmbench bw --direction h2d,both --host pinned --size 64K:256M:x4
  vmmbench bw --direction d2d --size 64M:16G:x2 --step 1M --verify edges
  vmmbench bw --direction d2d --engine ce,sm --size 1G
  vmmbench bw --direction d2h --host staging,pinned --into fresh,touched --size 64M,1G
  vmmbench bw --host staging,pinned --chunk 0,2M,64M --format json -o bw.txt`,
	}, p, 30, 4*time.Second, (*measureFlags).addVerify, (*measureFlags).addMinTime)
	return c
}

// name is a part of a group's name. It leaves out what is the default.
func (w copyKind) name() string {
	name := w.direction + "/" + w.host
	if w.into != touched {
		name += "/" + w.into
	}
	if w.engine != engineCE {
		name += "/" + w.engine
	}
	if w.call != callAsync {
		name += "/" + w.call
	}
	if w.streams != 1 {
		name += fmt.Sprintf("/streams-%d", w.streams)
	}
	return name
}

// unsupported is the error of copies that this device cannot do, or that would
// be the same as others.
func (w copyKind) unsupported(dev device) error {
	done := "copies are done when they return"
	switch {
	case w.host == staging && addressable(dev):
		return fmt.Errorf("the CPU has the addresses of %s and copies without staging: %w", dev, driver.ErrNotSupported)
	case w.engine == engineSM && w.synchronous():
		return fmt.Errorf("%s memory has no address that the device's processors can use: %w", w.host, driver.ErrNotSupported)
	case w.direction == both && !w.gateable():
		return fmt.Errorf("%s %s and cannot run both ways at once: %w", w.host, done, driver.ErrNotSupported)
	case w.streams > 1 && !w.gateable():
		return fmt.Errorf("%s %s and cannot share streams: %w", w.host, done, driver.ErrNotSupported)
	case w.synchronous() && w.call == callSync:
		return fmt.Errorf("%s %s, queued or not: %w", w.host, done, driver.ErrNotSupported)
	}
	return nil
}

// flows are the copies of a direction. The first is the forward one.
func (w copyKind) flows(dev device, n uint64) (list []flow) {
	for _, f := range []struct {
		direction string
		flow
	}{{d2d, flow{src: dev, dst: dev}}, {h2d, flow{dst: dev}}, {d2h, flow{src: dev}}} {
		if w.direction == f.direction || w.direction == both && f.hasHost() {
			list = append(list, flow{f.src, f.dst, dev, n, oneWay})
		}
	}
	return list
}

// copyKinds are all combinations of directions, host memory, calls and streams. Only downloads
// to memory that the driver does not know may go into fresh memory.
func (p *bwPlan) copyKinds() ([]copyKind, error) {
	if slices.Contains(p.streams, 0) {
		return nil, usageError{errors.New("--streams 0: want 1 or more")}
	}
	var list []copyKind
	for _, direction := range p.directions.values {
		hosts := p.hosts.values
		if direction == d2d {
			hosts = []string{noHost}
		}
		for _, host := range hosts {
			for _, call := range p.calls.values {
				for _, streams := range p.streams {
					for _, engine := range p.engines.values {
						w := copyKind{engine, direction, host, touched, call, streams}
						intos := []string{touched}
						if direction == d2h && w.synchronous() {
							intos = p.intos.values
						}
						for _, w.into = range intos {
							list = append(list, w)
						}
					}
				}
			}
		}
	}
	return list, nil
}

// groups plans one group for each kind of copy and each size.
func (p *bwPlan) groups(devs []device, seed uint64) ([]group, error) {
	ways, err := p.copyKinds()
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(checkMost("--chunk", p.chunks...), checkMost("--step", p.steps...)); err != nil {
		return nil, err
	}
	var list []group
	for _, w := range ways {
		for _, n := range p.sizes {
			if err := checkSize(n); err != nil {
				return nil, err
			}
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
	if kind != memVMM {
		return []shape{{size: n}}
	}
	var list []shape
	for _, chunk := range p.chunks {
		for _, step := range p.steps {
			for _, share := range p.exportable.values {
				list = append(list, shape{size: n, chunk: chunk, step: step, share: share == exportable})
			}
		}
	}
	return list
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
