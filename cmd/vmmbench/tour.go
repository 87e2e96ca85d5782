package main

import (
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// tourGrowths is the number of samples of growing. Growing by allocating and
// copying takes many times as long as a copy, and the tour has to be short.
const tourGrowths = 7

// tourSizes returns the bytes of one copy, and what growing goes to in how many steps: as
// much as fits the device, and the time.
func tourSizes(dev device) (one, target, steps uint64) {
	if onHost(dev) {
		return 16 << 20, 64 << 20, 8
	}
	one, target, steps = 1<<30, 8<<30, 128
	// Growing by copying takes three times the target at its end.
	for free, _, err := dev.MemInfo(); err == nil && target > 64<<20 && 5*target > free; target /= 2 {
		one = min(one, target/2)
	}
	return one, target, steps
}

// tour is the root command: vmmbench without a subcommand.
func (a *app) tour() *cobra.Command {
	var m measureFlags
	var sizes size.List
	c := command(&cobra.Command{
		Use:   "vmmbench",
		Short: "Measure GPU and host memory that grows in place",
		Long: `Without a subcommand, the quick tour: the device, copies with memory that grows
against ordinary memory, and growing in place against allocating and copying.
It takes less than a minute. Then each case is done once more, over other data, and
every byte of the result is checked, or less by --verify; if growing goes beyond 1 GiB, the
edges of the chunks are. Each case has at least six
samples, also if --max-time is over: with fewer, a ratio has no interval.

Exit status: 0 all passed, 1 a case could not be run or a report not be written,
2 usage, 3 data were wrong, 77 this machine can do none of it, 130 interrupted
(partial results are written).`,
		Example: `  vmmbench --device host
  vmmbench --format json -o tour.txt`,
	})
	f := c.Flags()
	m.add(f, 15, 5*time.Second)
	m.addVerify(f)
	m.addMinTime(f)
	f.Var(&sizes, "size", "bytes of one copy; growing goes to the largest; by default what fits the device")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return a.measure(c.Context(), "tour", &m, []string{m.device}, onOne(func(dev device, seed uint64) ([]group, error) {
			one, target, steps := tourSizes(dev)
			if len(sizes) > 0 { // so that it bounds the whole tour
				one, target, steps = 0, slices.Max(sizes), 8
			}
			copies, growths := newBWPlan(), newGrowPlan()
			copies.article()
			copies.sizes = sizes
			if one > 0 {
				copies.sizes = size.List{one}
			}
			growths.targets = size.List{target}
			growths.step = size.One((target/steps + 7) &^ 7)
			growths.mems.values = []string{growVMM, growWhole, growPlain, growAsync, growAppend}
			if !f.Changed("samples") {
				growths.samples = tourGrowths
			}
			list, err := copies.groups(dev, seed)
			if err != nil {
				return nil, err
			}
			more, err := growths.groups(dev, seed)
			list = append(list, more...)
			// The tour shows ratios, and a ratio needs so many samples.
			for i := range list {
				list[i].minSamples = stat.MinSamples
				list[i].edges = target > 1<<30
			}
			return list, err
		}))
	}
	return c
}
