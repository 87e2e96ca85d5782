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

// tourGrowths keeps the tour short: to grow by allocating and copying takes
// many times as long as a copy does.
const tourGrowths = 7

// tour is the command without a subcommand.
func (a *app) tour() *cobra.Command {
	var m measureFlags
	sizes := size.List{16 << 20, 64 << 20}
	c := command(&cobra.Command{
		Use:   "vmmbench",
		Short: "Measure GPU and host memory that grows in place",
		Long: `Without a subcommand, the quick tour: the device, copies with memory that grows
against ordinary memory, and growing in place against allocating and copying.
It takes less than a minute. Afterwards each case is done once more, where other
data stood before, and every byte of that is checked, or what --verify says. At least six samples of
each case are taken, however long that takes: a ratio of fewer has no interval.

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
			copies, growths := newBWPlan(), newGrowPlan()
			copies.basic()
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
			for i := range list {
				list[i].minSamples = stat.MinSamples
			}
			return list, err
		})
	}
	return c
}
