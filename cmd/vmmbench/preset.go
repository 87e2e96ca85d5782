package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/internal/freememory"
)

// preset is a plan made of lines: commands with their flags.
type preset struct {
	name, what string
	lines      []string
}

// Presets with plans of their own: that of quick, the default, is a tour, that of
// nvbandwidth an nvPlan.
const (
	quickPreset       = "quick"
	nvbandwidthPreset = "nvbandwidth"
)

// presets are in the order in which the help names them.
var presets = []preset{
	{name: quickPreset, what: "copies and growth, as large as fits the device and half a minute (the default)"},
	{name: "article", what: "copies as in an article on virtual memory: from 4 KiB to 256 MiB, queued, one by one, and on four streams", lines: []string{
		"bw --direction h2d,d2h,d2d --host pageable,pinned --mem vmm,plain --size 4K,64K,16M,64M,256M",
		"bw --direction h2d,d2h,d2d --host pinned --mem vmm,plain --size 64K,64M --call sync",
		"bw --direction h2d,d2h,d2d --host pinned --mem vmm,plain --size 64M --streams 4",
	}},
	{name: "blog", what: "growth as in NVIDIA's blog on virtual memory: from 2 MiB to 75 % of the free memory, doubling, nothing written", lines: []string{
		"grow --mem vmm,plain --step x2 --memory 75% --write none",
	}},
	{name: nvbandwidthPreset, what: "the cases of NVIDIA's nvbandwidth under its names: ce by copy engines, sm by kernels"},
	{name: "full", what: "copies, growth, calls, pools, sharing and peers, over many sizes and kinds of memory", lines: []string{
		"bw --direction h2d,d2h,d2d,both --host pageable,pinned,staging --mem vmm,plain,async --size 64K,1M,16M,256M --chunk 0,2M,64M",
		"bw --direction h2d,d2h,d2d --host pinned --mem vmm,plain --size 64K,64M --call sync",
		"bw --direction h2d,d2h,d2d --host pinned --mem vmm,plain --size 64M --streams 4",
		"grow --size 64M,1G --step 16M",
		"grow --size 256M --step 16M --write upload",
		"grow --size 256M --step 16M --busy 1 --mem vmm,ahead,kept,plain",
		"grow --mem vmm,plain --step x2 --memory 75% --write none",
		"ops",
		"pool",
		"share",
		"p2p",
	}},
}

func presetNames() []string {
	var list []string
	for _, p := range presets {
		list = append(list, p.name)
	}
	return list
}

// commandPlan is the plan of a command: the values of its flags.
type commandPlan interface {
	plan
	flags(*pflag.FlagSet)
}

// commandPlans are the plans of the commands that a preset may name, with the default of
// each flag.
var commandPlans = map[string]func() commandPlan{
	"bw":    func() commandPlan { return newBWPlan() },
	"grow":  func() commandPlan { return newGrowPlan() },
	"ops":   func() commandPlan { return newOpsPlan() },
	"pool":  func() commandPlan { return newPoolPlan() },
	"p2p":   func() commandPlan { return newP2PPlan() },
	"share": func() commandPlan { return newSharePlan() },
}

// planOf reads a line.
func planOf(line string) (plan, error) {
	words := strings.Fields(line)
	p := commandPlans[words[0]]()
	f := pflag.NewFlagSet(line, pflag.ContinueOnError)
	p.flags(f)
	if err := f.Parse(words[1:]); err != nil {
		return nil, fmt.Errorf("preset: %s: %w", line, err)
	}
	return p, nil
}

// pairs reports whether the preset measures pairs of devices, and so needs all of them.
func (p preset) pairs() bool {
	return p.name == nvbandwidthPreset || slices.ContainsFunc(p.lines, func(l string) bool { return strings.HasPrefix(l, "p2p") })
}

func (p preset) groups(devs []device, seed uint64) (list []group, err error) {
	for _, line := range p.lines {
		plan, err := planOf(line)
		if err != nil {
			return nil, err
		}
		groups, err := plan.groups(devs, seed)
		if err != nil {
			return nil, err
		}
		list = append(list, groups...)
	}
	return list, nil
}

// tourGrowths is the number of samples of growing. Allocating and copying takes many
// times as long as one copy, and the tour has to be short.
const tourGrowths = stat.MinSamples

// tour is the plan of the preset quick, whose sizes fit the device.
type tour struct {
	sizes   size.List // of copies; growing goes to the largest. Empty: what fits
	growths int       // samples of growing
}

// fit returns the sizes of copies, and what memory grows to in how many steps: as much as
// fits the device and half a minute.
func (t *tour) fit(dev device) (copies size.List, target, steps uint64) {
	if len(t.sizes) > 0 {
		return t.sizes, slices.Max(t.sizes), 8
	}
	if onHost(dev) {
		one, target := uint64(16<<20), uint64(64<<20)
		for free, ok := freememory.Bytes("/"); ok && target > 1<<20 && 8*target > free; target /= 2 {
			one = min(one, target/8)
		}
		return size.List{one}, target, 8
	}
	one, target := uint64(512<<20), uint64(4<<30)
	// Growing by copying takes three times the target at its end.
	for free, _, err := dev.MemInfo(); err == nil && target > 64<<20 && 5*target > free; target /= 2 {
		one = min(one, target/2)
	}
	return size.List{one}, target, 64
}

func (t *tour) groups(devs []device, seed uint64) ([]group, error) {
	copies, target, steps := t.fit(devs[0])
	list, err := preset{lines: []string{
		"bw --size " + copies.String(),
		fmt.Sprintf("grow --size %d --step %d --mem vmm,kept,whole,plain,double,async,remap,append", target, (target/steps+7)&^7),
	}}.groups(devs, seed)
	for i, g := range list {
		if strings.HasPrefix(g.name, "grow/") {
			list[i].samples = t.growths
			list[i].edges = target > 1<<30 && !g.deviceChecks
		}
		list[i].minSamples = stat.MinSamples // the tour shows ratios, and a ratio needs so many
	}
	return list, err
}

// root is vmmbench without a subcommand: it measures a preset, by default quick.
func (a *app) root() *cobra.Command {
	var m measureFlags
	var sizes size.List
	which := quickPreset
	c := command(&cobra.Command{
		Use:   "vmmbench",
		Short: "Measure GPU and host memory that grows in place",
		Long: `Measure memory that grows in place, on a GPU or on the host. Without a subcommand
vmmbench measures a preset. The default one, quick, takes about half a minute. What was
found stands last. After its samples each case is done once more, over other data, and every
byte of the result is checked, or fewer by --verify. If memory grows beyond 1 GiB, the host
checks only the edges of chunks. Quick takes ten samples, whatever --max-time says.

The presets:
` + presetHelp() + `
Exit status: 0 all passed, 1 a case could not be run or a report could not be written,
2 usage, 3 data were wrong, 4 something against --baseline is what --fail-on names, or a
case is below --at-least,
77 this machine can do none of the cases, 130 interrupted (partial results are written).`,
		Example: `  vmmbench --device host
  vmmbench --preset full -o full.json`,
	})
	f := c.Flags()
	m.add(f, a.settings, 30, 2*time.Second)
	m.addVerify(f)
	m.addMinTime(f)
	f.Var(choice[string]{&which, presetNames()}, "preset", "what to measure")
	f.Var(&sizes, "size", "with preset quick: bytes of one copy, of which the largest is what memory grows to (default what fits the device); with nvbandwidth: bytes of one copy (default 512M)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		p := presets[slices.Index(presetNames(), which)]
		var own plan = p
		switch p.name {
		case quickPreset:
			t := &tour{sizes: sizes, growths: tourGrowths}
			if f.Changed("samples") {
				t.growths = m.samples
			}
			own = t
		case nvbandwidthPreset:
			if len(sizes) == 0 {
				sizes = size.List{nvDefaultSize}
			}
			own = &nvPlan{sizes}
		default:
			if len(sizes) > 0 {
				return usageError{errors.New("--size is for --preset quick and nvbandwidth; the others have sizes of their own")}
			}
		}
		names := []string{m.device}
		if p.pairs() {
			var err error
			if names, err = p2pNames(m.device); err != nil {
				return err
			}
		}
		return a.measure(c.Context(), p.name, &m, names, own)
	}
	return c
}

// presetHelp has a line for each preset: its name and what it measures.
func presetHelp() string {
	var b strings.Builder
	for _, p := range presets {
		fmt.Fprintf(&b, "  %-12s %s\n", p.name, p.what)
	}
	return b.String()
}
