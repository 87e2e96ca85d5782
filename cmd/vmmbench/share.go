package main

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// What share measures, as --op takes it.
const (
	opAttach = "attach" // a process that attaches has mapped all there is
	opGrowth = "growth" // the owner appends over the end of a chunk; a process can read there
	opAppend = "append" // the owner appends within a chunk
	opWake   = "wake"   // the owner writes a byte to a pipe; a process has read it: what waking it takes
)

// How memory is shared, as --how takes it.
const (
	howFD     = "fd"     // by descriptors of chunks, as shareable does it
	howPool   = "pool"   // a block of the driver's pool, by the pool's descriptor and a token
	howLegacy = "legacy" // by a legacy handle of plain memory
)

// sharePlan is what share measures.
type sharePlan struct {
	hows, ops     choices
	sizes, chunks size.List
	readers       counts
}

func newSharePlan() *sharePlan {
	all := []string{opAttach, opGrowth, opAppend, opWake}
	return &sharePlan{
		hows: choices{of: []string{howFD, howPool, howLegacy}, values: []string{howFD}},
		ops:  choices{of: all, values: all}, readers: counts{1, 2},
		sizes: size.List{64 << 20}, chunks: size.List{2 << 20, 32 << 20},
	}
}

func (p *sharePlan) flags(f *pflag.FlagSet) {
	f.Var(&p.hows, "how", "how memory is shared; pool and legacy only have attach, of one piece of memory")
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
By --how a process attaches to a range (fd), or to memory that cannot grow: a block of the
driver's pool (pool: import the pool and the block), or plain memory (legacy:
cuIpcOpenMemHandle). Of those two it has the handle before the time begins.
With several --readers it is the time of the last of them. All times are of one clock,
from the owner's call to the end of the wait in the reader. A reader waits by
View.Wait. Every byte is compared in each reader, or less by --verify.`,
		Example: `  vmmbench share
  vmmbench share --op attach --size 1G --chunk 2M,64M --readers 1,4
  vmmbench share --how fd,pool,legacy --op attach --size 64M,1G`,
	}, p, 100, 10*time.Second, (*measureFlags).addVerify)
	return c
}

func (p *sharePlan) groups(devs []device, seed uint64) ([]group, error) {
	if err := checkMost("--chunk", p.chunks...); err != nil {
		return nil, err
	}
	if !slices.Contains(p.hows.values, howFD) && !slices.Contains(p.ops.values, opAttach) {
		return nil, usageError{fmt.Errorf("--how %v has --op %s only", &p.hows, opAttach)}
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
		samples: math.MaxInt, maxLoops: 1,
	}
	s := &sharing{
		dev: dev, size: n, chunk: chunk, readers: readers, pattern: verify.Pattern{Seed: measure.Seed(seed, g.name)},
		pools: slices.Contains(p.hows.values, howPool),
	}
	g.setup, g.deviceChecks = s.setup, dev.checksItself()
	for _, how := range p.hows.values {
		for _, op := range p.ops.values {
			if how == howFD || op == opAttach {
				g.add(s.task(how, op))
			}
		}
	}
	g.memory = 2 * n * uint64(len(g.tasks))
	for a, t := range g.tasks {
		for b, by := range g.tasks {
			if t.label != opAttach && by.label == opAttach && strings.HasPrefix(t.label, opAttach) {
				g.compared = append(g.compared, pair{a, b})
			}
		}
	}
	return g
}

// task is a case of the group.
func (s *sharing) task(how, op string) task {
	label := op
	if how != howFD {
		label += "-" + how
	}
	// The payload is what is new to a reader.
	bytes := map[string]uint64{opAttach: s.size, opGrowth: s.chunk, opAppend: shareStep, opWake: shareStep}[op]
	return task{
		label: label, data: op != opWake,
		c: report.Case{Unit: unitUs, Bytes: bytes, Axes: axes(
			"device", s.dev.String(), "how", how, "size", s.size, "chunk", s.chunk, "readers", s.readers, "op", op)},
		open: func(ctx context.Context) (contender, error) { return s.open(ctx, how, op) },
	}
}

// sharing is what the tasks of a group share: processes that read, and a server.
type sharing struct {
	dev         device
	size, chunk uint64
	readers     int
	pattern     verify.Pattern
	pools       bool // whether there is a case of the driver's pool

	server *shareable.Server
	pool   *pool.DriverPool
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
		if s.pool != nil {
			err = errors.Join(err, s.pool.Close())
		}
		s.procs, s.server, s.pool = nil, nil, nil
		return errors.Join(err, os.RemoveAll(dir))
	}
	if s.server, err = shareable.Listen(s.dev.Device, filepath.Join(dir, "socket"), shareable.Options{}); err != nil {
		return nil, errors.Join(err, undo())
	}
	var files []*os.File
	if s.pools {
		f, err := s.makePool()
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		defer f.Close() //nolint:errcheck // the readers have theirs
		files = append(files, f)
	}
	// A reader is told where the server listens, so it starts after it.
	for range s.readers {
		p, err := startReader(ctx, s.dev.settings, s.dev.Info().Open, s.server.Path(), files...)
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		s.procs = append(s.procs, p)
	}
	return undo, nil
}

// makePool makes a pool of the driver's and returns its descriptor.
func (s *sharing) makePool() (*os.File, error) {
	var err error
	if s.pool, err = pool.NewDriver(s.dev.Device, pool.Options{Share: vmm.ShareFD}); err != nil {
		return nil, err
	}
	fd, err := ipc.ExportPool(s.pool)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pool"), nil
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

// open makes memory of its own for the contender, which readers can attach to.
func (s *sharing) open(ctx context.Context, how, op string) (contender, error) {
	c := &sharer{sharing: s, how: how, op: op}
	if op == opWake {
		return c, nil
	}
	lend := c.publish
	if how != howFD {
		lend = c.handOut
	}
	if err := lend(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

const (
	shareStep  = 8  // bytes appended within a chunk
	shareSteps = 64 // chunks that a range grows by before another replaces it
)

// sharer is a contender that shares memory with the readers.
type sharer struct {
	*sharing
	how, op string
	object  readerRequest // what a request says of the memory
	memory  *buffer
	r       *vmm.Range // if it is one
	fds     []int      // of each reader, with all of the object mapped
	undo    undo       // of publish or handOut
}

// ask is a request about the contender's memory.
func (c *sharer) ask(do string) readerRequest {
	q := c.object
	q.Do, q.Len = do, c.size
	return q
}

// handOut makes memory that readers attach to by a handle, filled with the pattern.
func (c *sharer) handOut(ctx context.Context) error {
	c.memory = &buffer{dev: c.dev, size: c.size}
	var handle encoding.TextMarshaler
	if c.how == howLegacy {
		m, err := ipc.Alloc(c.dev.Device, c.size)
		if err != nil {
			return err
		}
		c.undo.add(m.Close)
		c.memory.ptr = m.Ptr()
		if handle, err = m.Handle(); err != nil {
			return err
		}
	} else {
		stream, err := c.dev.NewStream()
		if err != nil {
			return err
		}
		c.undo.add(stream.Close)
		b, err := c.pool.Alloc(stream, c.size)
		if err != nil {
			return err
		}
		c.undo.add(func() error { return c.pool.FreeNow(b) })
		c.memory.ptr = b.Ptr()
		if handle, err = ipc.ExportPointer(c.pool, b); err != nil {
			return err
		}
	}
	text, err := handle.MarshalText()
	c.object = readerRequest{How: c.how, Handle: string(text)}
	return errors.Join(err, c.memory.fill(ctx, c.pattern))
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
	c.memory = &buffer{dev: c.dev, ptr: r.Ptr(), size: c.size}
	if err := errors.Join(c.memory.fill(ctx, c.pattern), r.SetLen(c.size)); err != nil {
		return err
	}
	c.names++
	c.object = readerRequest{How: howFD, Name: fmt.Sprint("x", c.names), Chunks: chunkStarts(r)}
	p, err := c.server.Publish(c.object.Name, r, shareable.PublishOptions{})
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
		_, err := c.all(c.ask(doLeave))
		return err
	})
	_, err = c.all(c.ask(doFollow))
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
		replies, err := c.all(c.ask(doAttach))
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
	q := c.ask(doWait)
	q.Len = next
	return c.timeUntil(q, func() error {
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
	if err := c.memory.flip(corrupt); err != nil {
		return result, err
	}
	if err := ctx.Err(); err != nil {
		return result, err
	}
	q := c.ask(doCheck)
	q.Mode, q.Seed = mode, c.pattern.Seed
	replies, err := c.all(q)
	for _, r := range replies {
		if r.Check != nil {
			result.Add(*r.Check)
		}
	}
	return result, err
}

func (c *sharer) describe(rc *report.Case, samples []measure.Sample) {
	rc.Flags = append(rc.Flags, wallClock)
	x := &report.Sharing{P99: stat.Percentile(measure.Outcome{Samples: samples}.Times(), 0.99)}
	for _, n := range c.fds {
		x.ReaderFDs = max(x.ReaderFDs, n)
	}
	rc.Stats.Sharing = x
}

func (c *sharer) close() error { return c.undo.close() }
