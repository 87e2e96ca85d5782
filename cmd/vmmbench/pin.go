package main

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/machine"
)

// pinFlags say on which CPUs the process runs. Memory of the host lies near the CPU that
// writes it first.
type pinFlags struct {
	cpus string
	node int
}

func (p *pinFlags) add(f *pflag.FlagSet) {
	f.StringVar(&p.cpus, "cpus", "", "run only on the CPUs of this `LIST`, such as 0-3,8")
	f.IntVar(&p.node, "numa", -1, "run only on the CPUs of this NUMA node, so that memory of the host is near them (default any node)")
}

// pin keeps the process on the CPUs that the flags name, if they do. undo lets it run where it
// could before.
func (p *pinFlags) pin() (undo func() error, err error) {
	var list []int
	said := "--cpus " + p.cpus
	switch {
	case p.cpus != "" && p.node >= 0:
		return nil, usageError{errors.New("--cpus and --numa: want one of them")}
	case p.cpus != "":
		list, err = machine.CPUs(p.cpus)
	case p.node >= 0:
		said = fmt.Sprintf("--numa %d", p.node)
		list, err = machine.CPUsOfNode("/", p.node)
	case p.node < -1:
		err, said = errors.New("want 0 or more"), fmt.Sprintf("--numa %d", p.node)
	default:
		return noUndo, nil
	}
	var back func() error
	if err == nil {
		back, err = runOn(list)
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", said, err)}
	}
	before := runtime.GOMAXPROCS(min(len(list), runtime.GOMAXPROCS(0)))
	return func() error {
		runtime.GOMAXPROCS(before)
		return back()
	}, nil
}
