package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// preset is a plan made of the plans of commands.
type preset struct {
	name, what string
	lines      []presetLine
}

// presetLine is one command with its flags.
type presetLine string

// Presets with plans of their own: that of quick, the default, is a tour, that of
// nvbandwidth an nvPlan.
const (
	quickPreset       = report.CommandQuick
	nvbandwidthPreset = "nvbandwidth"
)

// presets are in the order in which the help names them.
var presets = []preset{
	{name: quickPreset, what: "copies and growth, as large as fits the device and half a minute (the default)"},
	{name: "article", what: "copies as in an article on virtual memory: from 4 KiB to 256 MiB, queued, one by one, and on four streams", lines: []presetLine{
		"bw --direction h2d,d2h,d2d --host pageable,pinned --mem vmm,plain --size 4K,64K,16M,64M,256M",
		"bw --direction h2d,d2h,d2d --host pinned --mem vmm,plain --size 64K,64M --call sync",
		"bw --direction h2d,d2h,d2d --host pinned --mem vmm,plain --size 64M --streams 4",
	}},
	{name: "blog", what: "growth as in NVIDIA's blog on virtual memory: from 2 MiB to 75 % of the free memory, doubling, nothing written", lines: []presetLine{
		"grow --mem vmm,plain --step x2 --memory 75% --write none",
	}},
	{name: nvbandwidthPreset, what: "the cases of NVIDIA's nvbandwidth under its names: ce by copy engines, sm by kernels"},
	{name: "full", what: "every command, over many sizes and kinds of memory", lines: []presetLine{
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

// plan reads the line.
func (l presetLine) plan() (plan, error) {
	words := strings.Fields(string(l))
	p := commandPlans[words[0]]()
	f := pflag.NewFlagSet(string(l), pflag.ContinueOnError)
	p.flags(f)
	if err := f.Parse(words[1:]); err != nil {
		return nil, fmt.Errorf("preset: %s: %w", l, err)
	}
	return p, nil
}

// pairs reports whether the preset measures pairs of devices, and so needs all of them.
func (p preset) pairs() bool {
	return p.name == nvbandwidthPreset || slices.ContainsFunc(p.lines, func(l presetLine) bool { return strings.HasPrefix(string(l), "p2p") })
}

func (p preset) groups(devs []device, seed uint64) ([]group, error) {
	var list []group
	for _, line := range p.lines {
		plan, err := line.plan()
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
