package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// nvCase is a case of NVIDIA's nvbandwidth, under its name.
//
// copies are the flows that run at once: FROM>TO/BY*N is copied by the device BY, with N times
// the size. h is the host, a is a device, b is another one, o is each of the others. Without BY,
// the device that has the data copies, or the one that gets them from the host. FROM=TO is a kernel
// that copies half the size there and half of it back. FROM?TO follows pointers in the memory of TO.
type nvCase struct {
	name, copies string
	value        nvValue
}

// nvValue is the value of a case.
type nvValue string

// Values, in the words of the documentation.
const (
	ofFirst   nvValue = "the first copy; the others are its load"
	ofFirst2  nvValue = "the first copy; reverse has the other one"
	ofAll     nvValue = "the bytes of all, until the last has ended"
	ofHalf    nvValue = "half of what the first kernel copies"
	ofLatency nvValue = "nanoseconds for one load"
)

// nvCases are in nvbandwidth's order. Its version is 0.8.
var nvCases = []nvCase{
	{"host_to_device_memcpy_ce", "h>a", ofFirst},
	{"device_to_host_memcpy_ce", "a>h", ofFirst},
	{"host_to_device_bidirectional_memcpy_ce", "h>a a>h*2", ofFirst},
	{"device_to_host_bidirectional_memcpy_ce", "a>h h>a*2", ofFirst},
	{"device_to_device_memcpy_read_ce", "b>a/a", ofFirst},
	{"device_to_device_memcpy_write_ce", "a>b/a", ofFirst},
	{"device_to_device_bidirectional_memcpy_read_ce", "b>a/a a>b/b", ofFirst2},
	{"device_to_device_bidirectional_memcpy_write_ce", "b>a/b a>b/a", ofFirst2},
	{"all_to_host_memcpy_ce", "a>h o>h*2", ofFirst},
	{"all_to_host_bidirectional_memcpy_ce", "a>h h>a*2 o>h*2 h>o*2", ofFirst},
	{"host_to_all_memcpy_ce", "h>a h>o*2", ofFirst},
	{"host_to_all_bidirectional_memcpy_ce", "h>a a>h*2 o>h*2 h>o*2", ofFirst},
	{"all_to_one_write_ce", "o>a/o", ofAll},
	{"all_to_one_read_ce", "a>o/o", ofAll},
	{"one_to_all_write_ce", "a>o/a", ofAll},
	{"one_to_all_read_ce", "o>a/a", ofAll},
	{"host_to_device_memcpy_sm", "h>a", ofFirst},
	{"device_to_host_memcpy_sm", "a>h", ofFirst},
	{"host_to_device_bidirectional_memcpy_sm", "h=a", ofHalf},
	{"device_to_host_bidirectional_memcpy_sm", "h=a", ofHalf},
	{"device_to_device_memcpy_read_sm", "b>a/a", ofFirst},
	{"device_to_device_memcpy_write_sm", "a>b/a", ofFirst},
	{"device_to_device_bidirectional_memcpy_read_sm", "b>a/a a>b/b", ofFirst2},
	{"device_to_device_bidirectional_memcpy_write_sm", "b>a/b a>b/a", ofFirst2},
	{"all_to_host_memcpy_sm", "a>h o>h*2", ofFirst},
	{"all_to_host_bidirectional_memcpy_sm", "a=h o=h", ofHalf},
	{"host_to_all_memcpy_sm", "h>a h>o*2", ofFirst},
	{"host_to_all_bidirectional_memcpy_sm", "h=a o=h", ofHalf},
	{"all_to_one_write_sm", "o>a/o", ofAll},
	{"all_to_one_read_sm", "a>o/a", ofAll}, // by the device that has the data, unlike ce
	{"one_to_all_write_sm", "a>o/a", ofAll},
	{"one_to_all_read_sm", "o>a/o", ofAll}, // likewise
	{"host_device_latency_sm", "a?h", ofLatency},
	{"device_to_device_latency_sm", "a?b", ofLatency},
	{"device_local_copy", "a>a", ofFirst},
}

// nvDefaultSize is nvbandwidth's, too.
const nvDefaultSize = 512 << 20

// nvPlan measures all of nvCases.
type nvPlan struct{ sizes size.List }

// groups plans a group for each case, size, and device or ordered pair of devices.
func (p *nvPlan) groups(devs []device, seed uint64) ([]group, error) {
	var list []group
	timedOut := map[string]bool{}
	for _, c := range nvCases {
		sizes := p.sizes
		if c.value == ofLatency {
			sizes = size.List{chaseSize}
		}
		for _, n := range sizes {
			if err := checkSize(n); err != nil {
				return nil, err
			}
			if n%32 != 0 {
				return nil, usageError{fmt.Errorf("--size %d: nvbandwidth's cases copy multiples of 32 bytes", n)}
			}
			for _, a := range devs {
				if !strings.Contains(c.copies, "b") {
					list = append(list, c.group(seed, n, a, device{}, devs, timedOut))
					continue
				}
				for _, b := range devs {
					if b != a {
						list = append(list, c.group(seed, n, a, b, devs, timedOut))
					}
				}
			}
			if strings.Contains(c.copies, "b") && len(devs) == 1 {
				list = append(list, c.group(seed, n, devs[0], device{}, devs, timedOut))
			}
		}
	}
	return list, nil
}

// flows are the copies of the case with devices a and b, of all those that are measured.
// There are none if it needs more devices.
func (c nvCase) flows(n uint64, a, b device, devs []device) (list []flow) {
	for word := range strings.FieldsSeq(c.copies) {
		word, times, _ := strings.Cut(word, "*")
		factor, _ := strconv.ParseUint(times, 10, 64) // 0 if it says nothing
		for _, o := range devs {
			if strings.Contains(word, "o") == (o == a) { // of each other device, or once
				continue
			}
			of := map[byte]device{'a': a, 'b': b, 'o': o}
			if strings.Contains(word, "b") && b.Device == nil {
				return nil
			}
			f := flow{src: of[word[0]], dst: of[word[2]], size: n * max(factor, 1), way: flowWay(word[1:2])}
			switch _, by, said := strings.Cut(word, "/"); {
			case said:
				f.by = of[by[0]]
			case f.src.Device != nil:
				f.by = f.src
			default:
				f.by = f.dst
			}
			list = append(list, f)
		}
	}
	return list
}

// engine is what copies.
func (c nvCase) engine() string {
	if strings.HasSuffix(c.name, "_sm") {
		return engineSM
	}
	return engineCE
}

// mems are the kinds of memory to compare, by the devices that reach it.
func (c nvCase) mems(p *peerPair) []string {
	switch {
	case c.copies == "a?h":
		return []string{pinned}
	case len(p.reached()) > 0 || len(p.flows) == 0:
		return []string{legacyPeer, memVMM}
	}
	return []string{memPlain, memVMM}
}

// group plans the case for device a, and b if it is of a pair.
func (c nvCase) group(seed, n uint64, a, b device, devs []device, timedOut map[string]bool) group {
	p := &peerPair{from: a, engine: c.engine(), size: n, flows: c.flows(n, a, b, devs), first: c.value != ofAll, gateTimedOut: timedOut}
	axes := report.Axes{{Name: "test", Value: c.name}}
	where := a.String()
	switch {
	case strings.Contains(c.copies, "b"):
		to := "-"
		if b.Device != nil {
			to = b.String()
		}
		where += "-" + to
		axes = append(axes, report.Axis{Name: "from", Value: a.String()}, report.Axis{Name: "to", Value: to})
	default:
		axes = append(axes, report.Axis{Name: "device", Value: where})
		// As of copies of bw, which findings count.
		if direction := map[string]string{"h>a": h2d, "a>h": d2h, "a>a": d2d}[c.copies]; direction != "" {
			end := pinned
			if direction == d2d {
				end = noHost
			}
			axes = append(axes, report.Axis{Name: "direction", Value: direction}, report.Axis{Name: "host", Value: end})
		}
	}
	g := group{
		name:    fmt.Sprintf("%s/%s/%s/%s", nvbandwidthPreset, c.name, size.Format(n), where),
		samples: math.MaxInt, keepsMemory: true, setup: p.setup,
	}
	p.pattern.Seed = measure.Seed(seed, g.name)
	if len(p.flows) > 0 {
		p.from = p.flows[0].by
	} else {
		g.setup = func(context.Context) (func() error, error) {
			return nil, fmt.Errorf("%s is the only device, and the case takes two: %w", a, driver.ErrNotSupported)
		}
	}
	if _, _, p.gateable = gateSupport(p.from); p.gateable {
		g.maxLoops = max(gatedLoops/max(len(p.flows), 1), 1)
	}
	speed := rate(p.from, h2d, pinned)
	if c.copies == "a>a" {
		speed = rate(p.from, d2d, noHost)
	}
	payload, unit, moved := n, unitGBs, uint64(0)
	for i, f := range p.flows {
		moved += f.size
		if c.value == ofAll && i > 0 {
			payload += f.size
		}
	}
	switch c.value {
	case ofFirst2:
		p.direction = both
	case ofHalf:
		payload /= 2
	case ofLatency:
		payload, unit, g.maxLoops = 8, unitNs, 1
	case ofFirst:
		if c.copies == "a>a" {
			p.direction = d2d
		}
	}
	for _, kind := range c.mems(p) {
		label := kind
		if kind == memPlain {
			label = memName(a, kind)
		}
		g.tasks = append(g.tasks, task{
			label: label, grows: kind == memVMM, sample: transferTime(moved, speed), check: moved,
			c: report.Case{
				ID: g.name + "/" + label, Unit: unit, Bytes: payload,
				Axes: append(slices.Clone(axes), report.Axis{Name: "engine", Value: p.engine}, report.Axis{Name: "size", Value: n}, report.Axis{Name: "mem", Value: label}),
			},
			open: func(ctx context.Context) (contender, error) { return p.contender(ctx, kind) },
		})
	}
	g.fill, g.deviceChecks, g.memory = moved*uint64(len(g.tasks)), p.from.checksItself(), moved
	if onHost(a) {
		g.memory += 2 * moved * uint64(len(g.tasks))
	}
	return g
}
