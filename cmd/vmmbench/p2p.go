package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// Ways to reach the memory of another device, as --mem takes them; vmm is memVMM.
const (
	noPeer     = "none"   // plain memory, peer access off: the driver takes it through the host
	legacyPeer = "enable" // plain memory, peer access on
)

// Directions of a copy between devices, seen from the device that copies.
const (
	toPeer   = "write"
	fromPeer = "read"
)

// maxLatencySize is the size up to which a copy measures latency, not bandwidth.
const maxLatencySize = 4096

// p2pPlan is what p2p measures.
type p2pPlan struct {
	mems, directions, engines choices
	sizes                     size.List
	grants                    []int
}

func newP2PPlan() *p2pPlan {
	mems, directions := []string{noPeer, legacyPeer, memVMM}, []string{toPeer, fromPeer, both}
	return &p2pPlan{
		mems: choices{of: mems, values: mems}, directions: choices{of: directions, values: directions}, engines: newEngines(),
		sizes: size.List{4, 64 << 20}, grants: []int{1, 10, 100},
	}
}

func (p *p2pPlan) flags(f *pflag.FlagSet) {
	f.Var(&p.mems, "mem", "ways to reach the other's memory")
	f.Var(&p.directions, "direction", "directions; both is each writing to the other's memory at once")
	f.Var(&p.engines, "engine", engineUsage)
	f.Var(&p.sizes, "size", "bytes of one copy: a list or a range")
	f.IntSliceVar(&p.grants, "grants", p.grants, "how many chunks of 2 MiB access is granted to; 0 leaves that out")
}

func (a *app) p2p() *cobra.Command {
	p := newP2PPlan()
	c, m := a.benchmark(&cobra.Command{
		Use:   "p2p",
		Short: "Measure copies between devices, and what granting access takes",
		Long: `Measure copies between every two of the devices, in both orders. The device in the
row, from, copies between memory of its own and memory of the device in the
column, to. write copies to the other's memory, read from it. With both, each
device writes to the other's memory at once, and the figure is the sum. The memory is
  none    plain memory, peer access off: the driver goes through the host
  enable  plain memory, peer access on, as cudaDeviceEnablePeerAccess has it
  vmm     a range that grants access by SetAccess, peer access off
Every vmm case is compared with the other two; the ratio is of times, so above 1 vmm
takes longer. Copies through the host cannot wait until all are queued, so queueing is
in their time, and in that of the others unless --mem leaves none out.

Copies of 4 KiB or less measure latency: microseconds for one copy, each of which
begins when the one before it has ended. grant and revoke time Range.Grant and
Range.Revoke, by the number of chunks of 2 MiB and of devices that get access.
vmmbench info shows what connects the devices.`,
		Example: `  vmmbench p2p
  vmmbench p2p --device cuda:0,cuda:1 --size 1G --samples 20 --grants 0
  vmmbench p2p --engine ce,sm --size 1G --grants 0
  vmmbench p2p --device cuda:all --size 4,64M --format json -o p2p.txt`,
	}, p, 30, time.Second, (*measureFlags).addVerify, (*measureFlags).addMinTime)
	// The help prints DefValue, so it has to follow the smaller margin.
	f := c.Flags()
	m.margin = peerMargin
	f.Lookup("margin").DefValue = m.margin.String()
	f.Lookup("device").Usage = "the devices: auto (all of CUDA's, else two of the host), cuda:all, host, or a list such as cuda:0,cuda:2"
	c.RunE = func(c *cobra.Command, _ []string) error {
		names, err := p2pNames(m.device)
		if err != nil {
			return err
		}
		return a.measure(c.Context(), c.Name(), m, names, p)
	}
	return c
}

// p2pNames are the devices that --device of p2p stands for.
func p2pNames(which string) ([]string, error) {
	if which == "auto" || which == "cuda:all" {
		names, err := deviceNames("cuda:all")
		if len(names) > 0 || err != nil {
			return names, err
		}
		// Opening cuda:0 returns the reason why there is none.
		which = map[string]string{"auto": "host", "cuda:all": "cuda:0"}[which]
	}
	if which == "host" {
		which = "host:0,host:1"
	}
	return deviceNames(which)
}

// groups plans one group for each direction, size and ordered pair, and one for
// each number of chunks and of devices that are granted access.
func (p *p2pPlan) groups(devs []device, seed uint64) (list []group, err error) {
	pairs, err := pairsOf(devs)
	if err := cmp.Or(err, checkSize(p.sizes...)); err != nil {
		return nil, err
	}
	if len(pairs) == 0 {
		return []group{singleDevice(devs[0])}, nil
	}
	timedOut := map[string]bool{} // shared by all pairs
	for _, w := range p.copyKinds() {
		mems := slices.DeleteFunc(slices.Clone(p.mems.values), func(kind string) bool { return w.engine == engineSM && kind == noPeer })
		if len(mems) == 0 {
			return nil, usageError{errors.New("--engine sm: a kernel cannot go through the host: want --mem enable or vmm")}
		}
		for _, n := range p.sizes {
			if n <= maxLatencySize && w.direction == both {
				continue // latency is of one copy
			}
			for _, pair := range pairs {
				list = append(list, peerGroup(pair[0], pair[1], w, n, mems, timedOut, seed))
			}
		}
	}
	for i, n := range p.grants {
		if n < 0 || n > 1<<20 {
			return nil, usageError{fmt.Errorf("--grants %d: want 0 to %d", n, 1<<20)}
		}
		for k := 1; n > 0 && k < len(devs) && !slices.Contains(p.grants[:i], n); k++ {
			list = append(list, grantGroup(devs[0], devs[1:k+1], n))
		}
	}
	if len(list) == 0 {
		return nil, usageError{fmt.Errorf("nothing to measure: copies of up to %d bytes go one way", maxLatencySize)}
	}
	return list, nil
}

// pairsOf are all pairs of two devices, in both orders. It refuses devices between which nothing
// can be measured.
func pairsOf(devs []device) (list [][2]device, err error) {
	for i, from := range devs {
		for k, to := range devs {
			switch {
			case i == k:
				continue
			case from.Driver() != to.Driver():
				return nil, usageError{fmt.Errorf("%s and %s are of two drivers", from, to)}
			case from.Info().Ordinal == to.Info().Ordinal:
				return nil, usageError{fmt.Errorf("%s is named twice", to)}
			}
			list = append(list, [2]device{from, to})
		}
	}
	return list, nil
}

// singleDevice is a group whose only case is waived: one device has no pair.
func singleDevice(dev device) group {
	g := group{name: "p2p/pairs", samples: 1, setup: func(context.Context) (func() error, error) { return nil, onlyDevice(dev, "a pair") }}
	g.add(task{label: "pairs", c: report.Case{Unit: unitGBs, Axes: axes("from", dev.String(), "to", "-")}})
	g.tasks[0].c.ID = g.name
	return g
}

// peerFlows are the flows of a direction.
var peerFlows = map[string]string{toPeer: "a>b", fromPeer: "b>a/a", both: "a>b b>a"}

// copyKinds are all combinations of directions and engines.
func (p *p2pPlan) copyKinds() []copyKind {
	list := cross([]copyKind{peerKind}, p.directions.values, func(w *copyKind, v string) { w.direction = v })
	return cross(list, p.engines.values, func(w *copyKind, v string) { w.engine = v })
}

// peerGroup plans copies between a device, which times them, and another one: a case for each
// kind of memory.
func peerGroup(from, to device, w copyKind, n uint64, mems []string, timedOut map[string]bool, seed uint64) group {
	c := peerCopies(w, peerFlows[w.direction], n, from, to, []device{from}, timedOut)
	of := report.Case{Unit: unitGBs, Bytes: c.moved(), Axes: axes("from", from.String(), "to", to.String(), "direction", w.direction)}
	if n <= maxLatencySize {
		of.Unit = unitUs
	}
	// Copies that go through the host cannot wait behind a gate, and are compared with
	// others only if those do not either. A latency without a gate is that of the host's
	// calls, so there the others keep theirs and are not compared with these.
	c.gated = n <= maxLatencySize || !slices.Contains(mems, noPeer)
	g := c.group(fmt.Sprintf("p2p/%s/%s/%s-%s", w.name(), size.Format(n), from, to), seed, 1)
	c.addMems(&g, mems, n, of)
	return g
}
