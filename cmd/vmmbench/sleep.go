package main

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
)

// What sleep measures. Waking is opWake, as of share.
const (
	opFirst  = "first"  // the first Sleep of a range
	opSecond = "second" // a later one, into host memory that was kept
)

// What becomes of the contents.
const (
	modeKeep = "keep"
	modeDrop = "drop"
)

// pinnedCopy is the report's name of what Sleep and Wake are compared with.
const pinnedCopy = "pinned-copy"

// sleepPlan is what sleep measures.
type sleepPlan struct{ sizes size.List }

func newSleepPlan() *sleepPlan { return &sleepPlan{size.List{64 << 20, 1 << 30}} }

func (p *sleepPlan) flags(f *pflag.FlagSet) {
	f.Var(&p.sizes, "size", "bytes of a range: a list or a range")
}

func (a *app) sleep() *cobra.Command {
	c, _ := a.benchmark(&cobra.Command{
		Use:   "sleep",
		Short: "Measure Sleep and Wake: against copies of pinned memory",
		Long: `Put a range to sleep, which gives its memory back and keeps its addresses, and wake it:
  first   the first Sleep of a range, a new one each time, which has no host memory yet
  second  a later one, of a range that keeps that memory meanwhile
  wake    Wake, after a Sleep
In the cases named keep the contents wait in host memory, and beside it stands the limit: a copy
of as many bytes from the device, or for wake to it, by memory of the host that was pinned
before. In those named drop they are lost, so nothing is verified. Before a Wake there is a
pause until a GPU's driver has cleared what was given back.`,
		Example: `  vmmbench sleep
  vmmbench sleep --filter 'keep/.*/first' --size 64M:16G:x4 --max-time 30s`,
	}, newSleepPlan(), 30, 10*time.Second, (*measureFlags).addVerify)
	return c
}

// groups plans one group for each mode, size and operation.
func (p *sleepPlan) groups(devs []device, seed uint64) (list []group, err error) {
	for _, mode := range []string{modeKeep, modeDrop} {
		for _, n := range p.sizes {
			for _, op := range []string{opFirst, opSecond, opWake} {
				list = append(list, p.group(devs[0], seed, mode, op, n))
			}
		}
	}
	return list, checkSize(p.sizes...)
}

func (p *sleepPlan) group(dev device, seed uint64, mode, op string, n uint64) group {
	w := copyKind{engine: engineCE, direction: d2h, host: pinned, into: touched, call: callAsync, streams: 1}
	if op == opWake {
		w.direction = h2d
	}
	c := &copyGroup{copyKind: w, timing: dev, flows: w.flows(dev, n)}
	g := c.group("sleep/"+mode+"/"+size.Format(n)+"/"+op, seed, 1)
	g.keepsMemory, g.maxLoops = false, 1
	of := func(mem string) report.Case {
		return report.Case{Unit: unitMs, Bytes: n, Axes: axes("device", dev.String(), "mode", mode, "size", n, "op", op, "mem", mem)}
	}
	g.add(task{
		label: memVMM, grows: true, data: true, c: of(memVMM),
		open: func(context.Context) (contender, error) {
			return newSleeper(dev, mode, op, n, c.pattern), nil
		},
	})
	if onHost(dev) {
		g.memory = n
	}
	if mode == modeDrop {
		g.setup = nil
		return g
	}
	c.add(&g, pinnedCopy, memPlain, shape{size: n}, of(pinnedCopy))
	g.shared = 2 * n // the pinned memory, and what has the contents of a range that sleeps
	return g
}

// sleeper is a contender that puts a range to sleep and wakes it.
type sleeper struct {
	operation
	dev     device
	mode    vmm.SleepMode
	size    uint64
	pattern verify.Pattern
	r       *vmm.Range // nil before the first sample
}

func newSleeper(dev device, mode, op string, n uint64, p verify.Pattern) *sleeper {
	modes := map[string]vmm.SleepMode{modeKeep: vmm.SleepKeep, modeDrop: vmm.SleepDrop}
	s := &sleeper{dev: dev, size: n, pattern: p, mode: modes[mode]}
	timed := map[string]call{
		opFirst: {name: op, do: s.sleep}, opSecond: {name: op, do: s.sleep, undo: s.wake}, opWake: {name: op, do: s.wake},
	}[op]
	s.operation = operation{name: op, undo: s.free, pass: &pass{ready: s.ready, calls: []call{timed}}}
	return s
}

// ready has a range awake, or for Wake asleep.
func (s *sleeper) ready(ctx context.Context) error {
	if err := s.awake(ctx); err != nil || s.name != opWake {
		return err
	}
	if err := s.sleep(); err != nil || onHost(s.dev) {
		return err
	}
	waitCleared(ctx, s.size) // the memory that was released
	return wakeDriver(s.dev)
}

// awake has a range awake that is written to its end: for opFirst a new one each time, else one
// that has slept. Its first sleep is in the warm-up, which does not count.
func (s *sleeper) awake(ctx context.Context) (err error) {
	if s.r == nil || s.name == opFirst {
		if err := s.free(); err != nil {
			return err
		}
		if s.r, err = grownRange(s.dev, shape{size: s.size, keeps: s.name == opSecond}); err != nil {
			return err
		}
	}
	return s.write(ctx)
}

// write writes all of the range if nothing of it is left: a host takes no time for pages that
// were never written.
func (s *sleeper) write(ctx context.Context) error {
	if s.r.Len() == s.size {
		return nil
	}
	if err := s.r.SetLen(s.size); err != nil {
		return err
	}
	return s.buffer().poison(ctx)
}

func (s *sleeper) sleep() error { return vmm.Sleep(s.mode, s.r) }
func (s *sleeper) wake() error  { return vmm.Wake(s.r) }
func (s *sleeper) free() error  { return s.r.Close() }

func (s *sleeper) buffer() *buffer {
	return &buffer{dev: s.dev, ptr: s.r.Ptr(), size: s.size, chunks: chunkStarts(s.r)}
}

// verify has other data sleep, and wake.
func (s *sleeper) verify(ctx context.Context, mode verify.Mode, corrupt int64) (verify.Result, error) {
	if mode == verify.Off || s.mode == vmm.SleepDrop {
		return s.noData.verify(ctx, mode, corrupt)
	}
	result := verify.Result{Mode: mode}
	if err := s.awake(ctx); err != nil {
		return result, err
	}
	b := s.buffer()
	if err := b.fill(ctx, s.pattern); err != nil {
		return result, err
	}
	if err := cmp.Or(s.sleep(), s.wake(), b.flip(corrupt)); err != nil {
		return result, err
	}
	return b.check(ctx, s.pattern, mode, b.chunks)
}
