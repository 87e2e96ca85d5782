package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// nvCase is a case of NVIDIA's nvbandwidth, under its name.
//
// copies are the flows that run at once, as flowsOf reads them.
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

// groups plans a group for each case, size, and device or ordered pair of devices. If there is only
// one device, a case of pairs is waived on it.
func (p *nvPlan) groups(devs []device, seed uint64) (list []group, err error) {
	pairs, err := pairsOf(devs)
	if err := cmp.Or(err, checkSize(p.sizes...)); err != nil {
		return nil, err
	}
	for _, n := range p.sizes {
		if n%32 != 0 {
			return nil, usageError{fmt.Errorf("--size %d: nvbandwidth's cases copy multiples of 32 bytes", n)}
		}
	}
	var single [][2]device
	for _, a := range devs {
		single = append(single, [2]device{a})
	}
	timedOut := map[string]bool{}
	for _, c := range nvCases {
		sizes, places := p.sizes, single
		if c.value == ofLatency {
			sizes = size.List{chaseSize}
		}
		if c.ofPairs() && len(pairs) > 0 {
			places = pairs
		}
		for _, n := range sizes {
			for _, on := range places {
				list = append(list, c.group(seed, n, on[0], on[1], devs, timedOut))
			}
		}
	}
	return list, nil
}

// ofPairs reports whether the case is measured for each pair of devices.
func (c nvCase) ofPairs() bool { return strings.Contains(c.copies, "b") }

// kind is how the case copies. Its direction is that of copies of bw, which findings count, if
// it has one.
func (c nvCase) kind() copyKind {
	w := peerKind
	w.host = pinned
	if strings.HasSuffix(c.name, "_sm") {
		w.engine = engineSM
	}
	for _, direction := range []string{h2d, d2h, d2d} {
		if c.copies == directionFlows[direction] {
			w.direction = direction
		}
	}
	if w.direction == d2d {
		w.host = noHost
	}
	return w
}

// mems are the kinds of memory to compare, by the devices that reach it.
func (c nvCase) mems(x *copyGroup) []string {
	switch {
	case c.copies == "a?h":
		return []string{pinned}
	case len(x.peers()) > 0 || len(x.flows) == 0:
		return []string{legacyPeer, memVMM}
	}
	return []string{memPlain, memVMM}
}

// group plans the case for device a, and b if it is of a pair.
func (c nvCase) group(seed, n uint64, a, b device, devs []device, timedOut map[string]bool) group {
	x := peerCopies(c.kind(), c.copies, n, a, b, devs, timedOut)
	x.first = c.value != ofAll
	where, of := a.String(), report.Case{Unit: unitGBs, Bytes: n, Axes: axes("test", c.name, "device", a.String())}
	if c.ofPairs() {
		to := "-"
		if b.Device != nil {
			to = b.String()
		}
		where, of.Axes = where+"-"+to, axes("test", c.name, "from", where, "to", to)
	}
	if x.direction != "" {
		of.Axes = append(of.Axes, axes("direction", x.direction, "host", x.host)...)
	}
	g := x.group(fmt.Sprintf("%s/%s/%s/%s", nvbandwidthPreset, c.name, size.Format(n), where), seed, len(x.flows))
	switch c.value {
	case ofFirst2:
		x.direction = both
	case ofHalf:
		of.Bytes /= 2
	case ofAll:
		of.Bytes = max(x.moved(), n)
	case ofLatency:
		of.Bytes, of.Unit, g.maxLoops = 8, unitNs, 1
	}
	x.addMems(&g, c.mems(x), n, of)
	return g
}
