package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// What share measures, as --op takes it.
const (
	opAttach = "attach" // a process that attaches has mapped all there is
	opGrowth = "growth" // the owner appends over the end of a chunk; a process can read there
	opAppend = "append" // the owner appends within a chunk
	opWake   = "wake"   // the owner writes a byte to a pipe; a process has read it: what waking it takes
)

// howFD is sharing by descriptors of chunks, as shareable does it.
const howFD = "fd"

// sharePlan is what share measures.
type sharePlan struct {
	ops           choices
	sizes, chunks size.List
	readers       counts
}

func newSharePlan() *sharePlan {
	all := []string{opAttach, opGrowth, opAppend, opWake}
	return &sharePlan{
		ops: choices{of: all, values: all}, readers: counts{1, 2},
		sizes: size.List{64 << 20}, chunks: size.List{2 << 20, 32 << 20},
	}
}

func (p *sharePlan) flags(f *pflag.FlagSet) {
	f.Var(&p.ops, "op", "what is measured")
	f.Var(&p.sizes, "size", "bytes that are there when a process attaches: a list or a range")
	f.Var(&p.chunks, "chunk", "chunk sizes")
	f.Var(&p.readers, "readers", "how many processes read")
}

func (a *app) share() *cobra.Command {
	p := newSharePlan()
	c, _ := a.benchmark(&cobra.Command{
		Use:   "share",
		Short: "Measure sharing with other processes, also while memory grows",
		Long: `Publish a range and time what other processes, which this command starts, see:
  attach  a process attaches and has mapped all --size bytes: export, send, import and
          map of each chunk
  growth  the owner appends over the end of a chunk, and a process can read there
  append  the owner appends within a chunk, and a process can read there
  wake    a byte through a pipe, read by the same process: what it takes to wake it
With several --readers it is the time of the last of them. All times are of one clock,
from the owner's call to the end of the wait in the reader. A reader waits by
View.Wait. Every byte is compared in each reader, or less by --verify.`,
		Example: `  vmmbench share
  vmmbench share --op attach --size 1G --chunk 2M,64M --readers 1,4`,
	}, p, 100, 10*time.Second, (*measureFlags).addVerify)
	return c
}

func (p *sharePlan) groups(devs []device, seed uint64) ([]group, error) {
	if err := checkMost("--chunk", p.chunks...); err != nil {
		return nil, err
	}
	var list []group
	for _, n := range p.sizes {
		for _, chunk := range p.chunks {
			for _, readers := range p.readers {
				if err := checkSize(n); err != nil {
					return nil, err
				}
				if readers == 0 || chunk == 0 {
					return nil, usageError{errors.New("--readers and --chunk: want more than 0")}
				}
				list = append(list, p.group(devs[0], seed, n, chunk, readers))
			}
		}
	}
	return list, nil
}

func (p *sharePlan) group(dev device, seed, n, chunk uint64, readers int) group {
	g := group{
		name:    fmt.Sprintf("share/%s/%s-chunks/readers-%d", size.Format(n), size.Format(chunk), readers),
		samples: math.MaxInt, maxLoops: 1, memory: 2 * n * uint64(len(p.ops.values)),
	}
	s := &sharing{dev: dev, size: n, chunk: chunk, readers: readers, pattern: verify.Pattern{Seed: measure.Seed(seed, g.name)}}
	g.setup, g.fill, g.deviceChecks = s.setup, n*uint64(len(p.ops.values)), dev.checksItself()
	for _, op := range p.ops.values {
		// The payload is what is new to a reader.
		bytes := map[string]uint64{opAttach: n, opGrowth: chunk, opAppend: shareStep, opWake: shareStep}[op]
		check := n * uint64(readers)
		if op == opWake { // has no data
			check = 0
		}
		g.add(task{
			label: op, sample: callTime, check: check,
			c: report.Case{Unit: unitUs, Bytes: bytes, Axes: axes(
				"device", dev.String(), "how", howFD, "size", n, "chunk", chunk, "readers", readers, "op", op)},
			open: func(ctx context.Context) (contender, error) { return s.open(ctx, op) },
		})
	}
	return g
}

// sharing is what the tasks of a group share: processes that read, and a server.
type sharing struct {
	dev         device
	size, chunk uint64
	readers     int
	pattern     verify.Pattern

	server *shareable.Server
	procs  []*readerProcess
	names  int // of objects so far
}

// setup starts the server and the readers.
func (s *sharing) setup(ctx context.Context) (undo func() error, err error) {
	if err := s.dev.Supports(driver.FeatureShareFD); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "vmmbench")
	if err != nil {
		return nil, err
	}
	undo = func() error {
		// If one is lost, another may wait for what does not come any more.
		err := s.lost()
		for _, p := range s.procs {
			if err != nil {
				p.end(err)
			}
		}
		for _, p := range s.procs {
			if failed := p.close(); err == nil {
				err = failed
			}
		}
		if errors.Is(err, context.Canceled) { // then each case says so by itself
			err = nil
		}
		if s.server != nil {
			err = errors.Join(err, s.server.Close())
		}
		s.procs, s.server = nil, nil
		return errors.Join(err, os.RemoveAll(dir))
	}
	if s.server, err = shareable.Listen(s.dev.Device, filepath.Join(dir, "socket"), shareable.Options{}); err != nil {
		return nil, errors.Join(err, undo())
	}
	// A reader is told where the server listens, so it starts after it.
	for range s.readers {
		p, err := startReader(ctx, s.dev.settings, s.dev.Info().Open, s.server.Path())
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		s.procs = append(s.procs, p)
	}
	return undo, nil
}

// lost returns why a reader takes no requests any more, nil if all do.
func (s *sharing) lost() error {
	for _, p := range s.procs {
		if err := p.lost(); err != nil {
			return err
		}
	}
	return nil
}

// open publishes a range of its own for the contender.
func (s *sharing) open(ctx context.Context, op string) (contender, error) {
	c := &sharer{sharing: s, op: op}
	if op == opWake {
		return c, nil
	}
	if err := c.publish(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

const (
	shareStep  = 8  // bytes appended within a chunk
	shareSteps = 64 // chunks that a range grows by before another replaces it
)

// sharer is a contender that publishes a range.
type sharer struct {
	*sharing
	op   string
	name string
	r    *vmm.Range
	fds  []int // of each reader, with all of the object mapped
	undo undo  // of publish
}

// publish makes a range of the size, filled with the pattern, and has the readers follow
// it.
func (c *sharer) publish(ctx context.Context) error {
	// Beyond its size the range has room for samples of growth.
	spare := shareSteps * c.chunk
	r, err := c.dev.NewRange(vmm.RangeOptions{Max: roundUp(c.size, c.chunk) + spare, Chunk: c.chunk, Share: vmm.ShareFD})
	if err != nil {
		return err
	}
	c.r = r
	c.undo.add(r.Close)
	if err := r.Grow(c.size); err != nil {
		return err
	}
	b := &buffer{dev: c.dev, ptr: r.Ptr(), size: c.size}
	if err := errors.Join(b.fill(ctx, c.pattern), r.SetLen(c.size)); err != nil {
		return err
	}
	c.names++
	c.name = fmt.Sprint("x", c.names)
	p, err := c.server.Publish(c.name, r, shareable.PublishOptions{})
	if err != nil {
		return err
	}
	c.undo.add(p.Close)
	// A reader that only attaches does so in each sample.
	if c.op == opAttach {
		return nil
	}
	c.undo.add(func() error {
		if c.lost() != nil { // views end with their processes
			return nil
		}
		_, err := c.all(readerRequest{Do: doLeave, Name: c.name})
		return err
	})
	_, err = c.all(readerRequest{Do: doFollow, Name: c.name, Len: c.size})
	return err
}

// all makes the same request to all readers and returns the replies. If one is lost, none
// is asked any more: the others may still be at an earlier request.
func (c *sharer) all(q readerRequest) ([]readerReply, error) {
	if err := c.lost(); err != nil {
		return nil, err
	}
	for _, p := range c.procs {
		if err := p.send(q); err != nil {
			return nil, err
		}
	}
	return c.replies()
}

// replies returns one reply of each reader.
func (c *sharer) replies() ([]readerReply, error) {
	var list []readerReply
	var err error
	for _, p := range c.procs {
		r, failed := p.receive()
		list, err = append(list, r), errors.Join(err, failed)
		if lost := p.lost(); lost != nil {
			return list, lost
		}
	}
	return list, err
}

func (c *sharer) measure(ctx context.Context, _ int) (s measure.Sample, err error) {
	switch c.op {
	case opAttach: // a reader times it by itself
		replies, err := c.all(readerRequest{Do: doAttach, Name: c.name, Len: c.size})
		c.fds = nil
		for _, r := range replies {
			s.Parts = append(s.Parts, float64(r.NS))
			c.fds = append(c.fds, r.FDs)
		}
		return s.Longest(), err
	case opWake:
		return c.timeUntil(readerRequest{Do: doByte}, func() error {
			for _, p := range c.procs {
				if err := p.wake(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	// Growth ends in a new chunk, the other append in the same one.
	next := c.r.Len() + shareStep
	if c.op == opGrowth {
		next = roundUp(c.r.Len(), c.chunk) + c.chunk
	}
	if next > c.r.Max() { // full: the next range begins with the first size again
		if err := errors.Join(c.undo.close(), c.publish(ctx)); err != nil {
			return s, err
		}
		return c.measure(ctx, 1)
	}
	return c.timeUntil(readerRequest{Do: doWait, Name: c.name, Len: next}, func() error {
		if err := c.r.Grow(next - c.r.Len()); err != nil {
			return err
		}
		return c.r.SetLen(next)
	})
}

// waitDelay is how long the readers get to begin to wait: they reply just before.
const waitDelay = 200 * time.Microsecond

// timeUntil tells the readers what to wait for, does it, and returns how long it took until
// each of them saw it.
func (c *sharer) timeUntil(q readerRequest, do func() error) (s measure.Sample, err error) {
	if _, err := c.all(q); err != nil {
		return s, err
	}
	time.Sleep(waitDelay)
	begun := monotonic()
	if err := do(); err != nil {
		_, late := c.replies() // which come after readerTimeout
		return s, errors.Join(err, late)
	}
	replies, err := c.replies()
	for _, r := range replies {
		s.Parts = append(s.Parts, float64(r.NS-begun))
	}
	return s.Longest(), err
}

// verify has each reader compare what it sees with the pattern.
func (c *sharer) verify(ctx context.Context, mode verify.Mode, corrupt int64) (verify.Result, error) {
	result := verify.Result{Mode: mode}
	if mode == verify.Off || c.op == opWake {
		return verify.Result{Mode: verify.Off}, nil
	}
	b := &buffer{dev: c.dev, ptr: c.r.Ptr(), size: c.size}
	if err := b.flip(corrupt); err != nil {
		return result, err
	}
	if err := ctx.Err(); err != nil {
		return result, err
	}
	replies, err := c.all(readerRequest{Do: doCheck, Name: c.name, Len: c.size, Mode: mode, Seed: c.pattern.Seed, Chunks: chunkStarts(c.r)})
	for _, r := range replies {
		if r.Check != nil {
			result.Add(*r.Check)
		}
	}
	return result, err
}

func (c *sharer) describe(rc *report.Case, samples []measure.Sample) {
	rc.Flags = append(rc.Flags, wallClock)
	x := &report.Sharing{P99: stat.Quantile(measure.Outcome{Samples: samples}.Times(), 0.99)}
	for _, n := range c.fds {
		x.ReaderFDs = max(x.ReaderFDs, n)
	}
	rc.Stats.Sharing = x
}

func (c *sharer) close() error { return c.undo.close() }
