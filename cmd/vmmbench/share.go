package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
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

// What share measures.
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
	hows          choices
	sizes, chunks size.List
	readers       counts
}

func newSharePlan() *sharePlan {
	return &sharePlan{
		hows:  choices{of: []string{howFD, howPool, howLegacy}, values: []string{howFD}},
		sizes: size.List{64 << 20}, chunks: size.List{2 << 20, 32 << 20}, readers: counts{1, 2},
	}
}

func (p *sharePlan) flags(f *pflag.FlagSet) {
	f.Var(&p.hows, "how", "how memory is shared; pool and legacy only have attach, of one piece of memory")
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
The time is that of the last of --readers, by one clock, from the owner's call to the end
of the wait in the reader. Every byte is compared in each reader, or less by --verify.`,
		Example: `  vmmbench share
  vmmbench share --filter /attach --size 1G --chunk 2M,64M --readers 1,4
  vmmbench share --how fd,pool,legacy --filter /attach --size 64M,1G`,
	}, p, 100, 10*time.Second, (*measureFlags).addVerify)
	return c
}

func (p *sharePlan) groups(devs []device, seed uint64) (list []group, err error) {
	if err := cmp.Or(checkMost("--chunk", p.chunks...), checkSize(p.sizes...)); err != nil {
		return nil, err
	}
	if slices.Contains(p.readers, 0) || slices.Contains(p.chunks, 0) {
		return nil, usageError{errors.New("--readers and --chunk: want more than 0")}
	}
	for _, n := range p.sizes {
		for _, chunk := range p.chunks {
			for _, readers := range p.readers {
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
		dev: dev, size: n, chunk: chunk, count: readers, pattern: verify.Pattern{Seed: measure.Seed(seed, g.name)},
		pools: slices.Contains(p.hows.values, howPool),
	}
	g.setup, g.deviceChecks = s.setup, dev.checksItself()
	for _, how := range p.hows.values {
		for _, op := range []string{opAttach, opGrowth, opAppend, opWake} {
			if how == howFD || op == opAttach {
				g.add(s.task(how, op))
			}
		}
	}
	attach := slices.IndexFunc(g.tasks, func(t task) bool { return t.label == opAttach })
	g.memory = 2 * n * uint64(len(g.tasks))
	for i, t := range g.tasks {
		if attach >= 0 && strings.HasPrefix(t.label, opAttach+"-") {
			g.compared = append(g.compared, pair{i, attach})
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
			"device", s.dev.String(), "how", how, "size", s.size, "chunk", s.chunk, "readers", s.count, "op", op)},
		open: func(ctx context.Context) (contender, error) { return s.open(ctx, how, op) },
	}
}

// sharing is what the tasks of a group share: a server, and processes that read.
type sharing struct {
	dev         device
	size, chunk uint64
	count       int // of the readers
	pattern     verify.Pattern
	pools       bool // whether there is a case of the driver's pool

	*readers
	server *shareable.Server
	pool   *pool.DriverPool
}

// setup starts the server and the readers.
func (s *sharing) setup(ctx context.Context) (_ func() error, err error) {
	if err := s.dev.Supports(driver.FeatureShareFD); err != nil {
		return nil, err
	}
	var made undo
	defer func() { onError(&err, made.close) }()
	if s.server, err = shareable.Listen(s.dev.Device, "@vmmbench-"+rand.Text(), shareable.Options{}); err != nil {
		return nil, err
	}
	made.add(s.server.Close)
	var files []*os.File
	if s.pools {
		if s.pool, err = pool.NewDriver(s.dev.Device, pool.Options{Share: vmm.ShareFD}); err != nil {
			return nil, err
		}
		made.add(s.pool.Close)
		fd, err := ipc.ExportPool(s.pool)
		if err != nil {
			return nil, err
		}
		files = append(files, os.NewFile(uintptr(fd), "pool"))
		defer files[0].Close() //nolint:errcheck // the readers have theirs
	}
	// A reader is told where the server listens, so it starts after it.
	s.readers, err = startReaders(ctx, s.dev.settings, s.count, s.dev.Info().Open, s.server.Path(), files...)
	made.add(s.readers.close)
	return made.close, err
}

const (
	shareStep  = 8  // bytes appended within a chunk
	shareSteps = 64 // chunks that a range grows by before another replaces it
)

// sharer is a contender that shares memory with the readers.
type sharer struct {
	*sharing
	undo    // of lend
	how, op string
	object  readerRequest // what a request says of the memory
	memory  *buffer
	r       *vmm.Range // if it is one
}

// open makes memory of its own for the contender.
func (s *sharing) open(ctx context.Context, how, op string) (contender, error) {
	c := &sharer{sharing: s, how: how, op: op}
	if op == opWake {
		return c, nil
	}
	err := c.lend(ctx)
	onError(&err, c.close)
	return c, err
}

// lend makes memory of the size that readers can attach to, filled with the pattern. They stay
// attached, unless attaching is measured.
func (c *sharer) lend(ctx context.Context) error {
	c.object = readerRequest{Name: rand.Text(), Len: c.size, Seed: c.pattern.Seed}
	lend := map[string]func() (vmm.Ptr, error){howFD: c.publish, howLegacy: c.lendLegacy, howPool: c.lendBlock}[c.how]
	ptr, err := lend()
	if err != nil {
		return err
	}
	c.memory = &buffer{dev: c.dev, ptr: ptr, size: c.size}
	if err := c.memory.fill(ctx, c.pattern); err != nil || c.op == opAttach {
		return err
	}
	c.add(c.leave)
	_, err = c.attach()
	return err
}

// publish makes a range, with room for samples of growth beyond its size.
func (c *sharer) publish() (vmm.Ptr, error) {
	r, err := c.dev.NewRange(vmm.RangeOptions{Max: roundUp(c.size, c.chunk) + shareSteps*c.chunk, Chunk: c.chunk, Share: vmm.ShareFD})
	if err != nil {
		return 0, err
	}
	c.r = r
	c.add(r.Close)
	if err := cmp.Or(r.Grow(c.size), r.SetLen(c.size)); err != nil {
		return 0, err
	}
	c.object.Chunks = chunkStarts(r)
	p, err := c.server.Publish(c.object.Name, r, shareable.PublishOptions{})
	c.add(p.Close)
	return r.Ptr(), err
}

// lendLegacy makes plain memory and its handle.
func (c *sharer) lendLegacy() (vmm.Ptr, error) {
	m, err := ipc.Alloc(c.dev.Device, c.size)
	if err != nil {
		return 0, err
	}
	c.add(m.Close)
	h, err := m.Handle()
	c.object.Legacy = &h
	return m.Ptr(), err
}

// lendBlock makes a block of the pool and its token.
func (c *sharer) lendBlock() (vmm.Ptr, error) {
	stream, err := c.dev.NewStream()
	if err != nil {
		return 0, err
	}
	c.add(stream.Close)
	b, err := c.pool.Alloc(stream, c.size)
	if err != nil {
		return 0, err
	}
	c.add(func() error { return c.pool.FreeNow(b) })
	token, err := ipc.ExportPointer(c.pool, b)
	c.object.Token = &token
	return b.Ptr(), err
}

// tell makes a request about the contender's memory to all readers.
func (c *sharer) tell(do string) ([]readerReply, error) {
	q := c.object
	q.Do = do
	return c.ask(q)
}

// attach has all readers map the memory, and returns their times.
func (c *sharer) attach() (measure.Sample, error) {
	replies, err := c.tell(doAttach)
	return longest(replies, 0), err
}

// leave has all readers unmap the memory. If one is lost, the readers end, and what they have mapped
// with them.
func (c *sharer) leave() error {
	if c.lost() != nil {
		return nil
	}
	_, err := c.tell(doLeave)
	return err
}

func (c *sharer) measure(ctx context.Context, _ int) (s measure.Sample, err error) {
	switch c.op {
	case opAttach: // a reader times it by itself
		s, err := c.attach()
		return s, errors.Join(err, c.leave())
	case opWake:
		return c.timeUntil(readerRequest{Do: doByte}, c.wake)
	}
	// Growth ends in a new chunk, the other append in the same one.
	next := c.r.Len() + shareStep
	if c.op == opGrowth {
		next = roundUp(c.r.Len(), c.chunk) + c.chunk
	}
	if next > c.r.Max() { // full: the next range begins with the first size again
		if err := errors.Join(c.close(), c.lend(ctx)); err != nil {
			return s, err
		}
		return c.measure(ctx, 1)
	}
	return c.timeUntil(readerRequest{Do: doWait, Name: c.object.Name, Len: next}, func() error {
		return cmp.Or(c.r.Grow(next-c.r.Len()), c.r.SetLen(next))
	})
}

// waitDelay is how long the readers get to begin to wait: they reply just before.
const waitDelay = 200 * time.Microsecond

// timeUntil tells the readers what to wait for, does it, and returns how long it took until
// each of them saw it.
func (c *sharer) timeUntil(q readerRequest, do func() error) (s measure.Sample, err error) {
	if _, err := c.ask(q); err != nil {
		return s, err
	}
	time.Sleep(waitDelay)
	begun := monotonic()
	failed := do()
	replies, err := c.replies() // after readerTimeout if it has failed
	return longest(replies, begun), errors.Join(failed, err)
}

// longest has the times of replies since begun.
func longest(replies []readerReply, begun int64) (s measure.Sample) {
	for _, r := range replies {
		s.Parts = append(s.Parts, float64(r.NS-begun))
	}
	return s.Longest()
}

// verify has each reader compare what it sees with the pattern.
func (c *sharer) verify(ctx context.Context, mode verify.Mode, corrupt int64) (result verify.Result, err error) {
	result.Mode = mode
	if mode == verify.Off || c.op == opWake {
		return verify.Result{Mode: verify.Off}, nil
	}
	if err := cmp.Or(c.memory.flip(corrupt), ctx.Err()); err != nil {
		return result, err
	}
	if c.op == opAttach {
		if _, err := c.attach(); err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, c.leave()) }()
	}
	c.object.Mode = mode
	replies, err := c.tell(doCheck)
	for _, r := range replies {
		if r.Check != nil {
			result.Add(*r.Check)
		}
	}
	return result, err
}

func (c *sharer) describe(rc *report.Case, samples []measure.Sample) {
	rc.Flags = append(rc.Flags, wallClock)
	rc.Stats.Sharing = &report.Sharing{P99: stat.Percentile(measure.Outcome{Samples: samples}.Times(), 0.99)}
}
