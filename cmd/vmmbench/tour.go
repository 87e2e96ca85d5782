package main

import (
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/spf13/cobra"
)

// tourGrowths is the number of samples of growing. Growing by allocating and
// copying takes many times as long as a copy, and the tour has to be short.
const tourGrowths = 7

// tour is the root command: vmmbench without a subcommand.
func (a *app) tour() *cobra.Command {
	var m measureFlags
	sizes := size.List{16 << 20, 64 << 20}
	c := command(&cobra.Command{
		Use:   "vmmbench",
		Short: "Measure GPU and host memory that grows in place",
		Long: `Without a subcommand, the quick tour: the device, copies with memory that grows
against ordinary memory, and growing in place against allocating and copying.
It takes less than a minute. Then each case is done once more, over other data, and
every byte of the result is checked, or less by --verify. Each case has at least six
samples, also if --max-time is over: with fewer, a ratio has no interval.

Exit status: 0 all passed, 1 a case could not be run or a report not be written,
2 usage, 3 data were wrong, 77 this machine can do none of it, 130 interrupted
(partial results are written).`,
		Example: `  vmmbench --device host
  vmmbench --format json -o tour.txt`,
	})
	f := c.Flags()
	m.add(f, 31, 12*time.Second)
	m.addVerify(f)
	m.addMinTime(f)
	f.Var(&sizes, "size", "bytes of one copy; growing goes to the largest")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return a.measure(c.Context(), "tour", &m, func(dev *vmm.Device, raw driver.Device, seed uint64) ([]group, error) {
			// Both parts are made from the one list of sizes, so --size bounds the
			// whole tour.
			copies, growths := newBWPlan(), newGrowPlan()
			copies.article()
			copies.sizes = sizes
			largest := slices.Max(sizes)
			growths.targets = size.List{largest}
			growths.step = size.One((largest/8 + 7) &^ 7)
			if !f.Changed("samples") {
				growths.samples = tourGrowths
			}
			list, err := copies.groups(dev, raw, seed)
			if err != nil {
				return nil, err
			}
			more, err := growths.groups(dev, raw, seed)
			list = append(list, more...)
			// The tour shows ratios, and a ratio needs so many samples.
			for i := range list {
				list[i].minSamples = stat.MinSamples
			}
			return list, err
		})
	}
	return c
}
