package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// opsPlan is what ops measures.
type opsPlan struct {
	ops   choices
	sizes size.List // empty: as many of opsSizes as the device has memory for
	busy  counts
	total size.One // of grow and regrow
}

func newOpsPlan() *opsPlan {
	all := strings.Fields(`reserve create map setaccess unmap release free export import
		plain-alloc plain-free async-alloc async-free grow regrow`)
	return &opsPlan{ops: choices{of: all, values: all, what: "OPS"}, busy: counts{0, 1}, total: 1 << 30}
}

// opsSizes are the sizes of chunks that are measured by default.
var opsSizes = size.List{2 << 20, 32 << 20, 128 << 20, 512 << 20, 2 << 30}

func (p *opsPlan) flags(f *pflag.FlagSet) {
	f.Var(&p.ops, "op", "operations")
	f.Var(&p.sizes, "size", "bytes of a chunk: a list or a range (default those of "+opsSizes.String()+" that the memory is enough for)")
	f.Var(&p.busy, "busy", "how many streams copy in the background")
	f.Var(&p.total, "total", "bytes that grow and regrow map, an eighth of the free memory at most")
}

func (a *app) ops() *cobra.Command {
	c, _ := a.benchmark(&cobra.Command{
		Use:   "ops",
		Short: "Measure the driver's calls, by the size of the chunk",
		Long: `Time the driver's calls, each on one chunk, with the device idle and while streams
copy:
  reserve, free            addresses
  create, release          memory
  map, unmap, setaccess    mappings
  export, import           of a chunk made for it
  plain-alloc, plain-free  cuMemAlloc and cuMemFree; mmap and munmap on the host
  async-alloc, async-free  the device's pool, which keeps what is freed
  grow                     --total bytes, rounded down to chunks of this size: create
                           and map for each chunk, one setaccess for all
  regrow                   the same from kept chunks: map and setaccess only
To choose a chunk size, look at grow. Every sample is one call or one growth. Nothing is
written, so nothing is verified.`,
		Example: `  vmmbench ops
  vmmbench ops --op grow,regrow --size 2M:2G:x4 --busy 0`,
	}, newOpsPlan(), 100, 5*time.Second)
	return c
}

// memoryShare is the part of the free memory, one in so many, that one operation
// may take: other programs need some too.
const memoryShare = 8

// groups plans one group for each size and number of busy streams.
func (p *opsPlan) groups(devs []device, _ uint64) ([]group, error) {
	dev := devs[0]
	free, _, err := dev.raw.MemInfo()
	if err := cmp.Or(err, checkMost("--total", uint64(p.total)), checkSize(p.sizes...)); err != nil {
		return nil, err
	}
	// Without --size: those that the memory is enough for, the smallest at least.
	sizes := p.sizes
	if len(sizes) == 0 {
		tooLarge := func(n uint64) bool { return n > max(free/memoryShare, opsSizes[0]) }
		sizes = slices.DeleteFunc(slices.Clone(opsSizes), tooLarge)
	}
	var list []group
	for _, n := range sizes {
		for _, streams := range p.busy {
			list = append(list, p.group(dev, n, min(uint64(p.total), free/memoryShare), streams))
		}
	}
	return list, nil
}

// group plans the operations on chunks of one size. Operations of the same pass share it.
func (p *opsPlan) group(dev device, n, total uint64, streams int) group {
	home := location(dev)
	s := &chunkOps{
		dev: dev, drv: dev.Driver(), size: n, count: int(max(total/n, 1)),
		prop: driver.Prop{Location: home}, grants: []driver.Grant{{To: home, Access: driver.AccessReadWrite}},
	}
	busy := &busyStreams{dev: dev, n: streams}
	g := group{name: busyName("ops/"+size.Format(s.size), streams), samples: math.MaxInt, maxLoops: 1, setup: busy.setup}
	passes := map[string]*pass{}
	for _, x := range []*pass{s.chunk(), s.share(), s.ordinary(memPlain), s.ordinary(memAsync), s.growth()} {
		x.ready = func(ctx context.Context) error { busy.waitQueued(ctx); return nil }
		for _, c := range x.calls {
			passes[c.name], passes[c.undoName] = x, x
		}
	}
	for _, op := range p.ops.values {
		name := opName(dev, op)
		of := axes("device", dev.String(), "size", s.size, "op", name, "busy", streams)
		g.add(passes[op].task(op, name, report.Case{Unit: unitUs, Bytes: cmp.Or(passes[op].bytes, s.size), Axes: of}))
	}
	return g
}

// opName is the report's name of an operation.
func opName(dev device, op string) string {
	ordinary := map[string]string{
		"plain-alloc": memName(dev, memPlain), "plain-free": cmp.Or(map[string]string{"cuda": "cuMemFree"}[dev.Driver().Name()], "munmap"),
		"async-alloc": memName(dev, memAsync), "async-free": "freeAsync",
	}
	return cmp.Or(ordinary[op], op)
}

// call is a call, and the one that undoes it. A call that has a name is timed.
type call struct {
	name     string
	do       func() error // nil: nothing
	undoName string
	undo     func() error // nil: nothing
}

// pass is calls that need each other, as map needs create. They are made one after the other, and
// undone in reverse. Operations take their times from the last run. An operation whose time was taken
// before has the calls made again.
type pass struct {
	calls []call
	open  func() (undo func() error, err error) // makes what all samples need; nil: nothing
	ready func(context.Context) error           // is called before the calls; nil: nothing
	times map[string]time.Duration              // not taken yet
	bytes uint64                                // the payload, if it is not that of the group
}

func (p *pass) run(ctx context.Context) (err error) {
	if p.ready != nil {
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	p.times = map[string]time.Duration{}
	var made undo
	defer func() { err = errors.Join(err, made.close()) }()
	for _, c := range p.calls {
		if err := p.time(c.name, c.do); err != nil {
			return err
		}
		made.add(func() error { return p.time(c.undoName, c.undo) })
	}
	return nil
}

// time makes a call.
func (p *pass) time(name string, f func() error) error {
	if f == nil {
		return nil
	}
	began := time.Now()
	err := f()
	p.times[name] = time.Since(began)
	if err != nil && name != "" {
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// task is a case of the call with a name.
func (p *pass) task(name, label string, of report.Case) task {
	return task{label: label, c: of, open: func(context.Context) (_ contender, err error) {
		o := &operation{pass: p, name: name, undo: noUndo}
		if p.open != nil {
			o.undo, err = p.open()
		}
		return o, err
	}}
}

// operation is a contender that times one call of a pass.
type operation struct {
	noData
	*pass
	name string
	undo func() error
}

func (o *operation) measure(ctx context.Context, _ int) (s measure.Sample, err error) {
	if _, ok := o.times[o.name]; !ok {
		if err := o.run(ctx); err != nil {
			o.times = nil
			return s, err
		}
	}
	s.NS = float64(o.times[o.name])
	delete(o.times, o.name)
	return s, nil
}

func (o *operation) close() error { return o.undo() }

// chunkOps are the operations of a driver on chunks of one size.
type chunkOps struct {
	dev    device
	drv    driver.Driver
	prop   driver.Prop
	grants []driver.Grant
	size   uint64
	count  int // chunks of a growth
}

// chunk has all the calls from a reservation to memory with access.
func (s *chunkOps) chunk() *pass {
	var p driver.Ptr
	var h driver.Handle
	return &pass{calls: []call{
		{"reserve", func() (err error) { p, err = s.drv.Reserve(s.size, 0); return err },
			"free", func() error { return s.drv.Free(p, s.size) }},
		{"create", func() (err error) { h, err = s.drv.Create(s.size, s.prop); return err },
			"release", func() error { return s.drv.Release(h) }},
		{"map", func() error { return s.drv.Map(p, s.size, h) }, "unmap", func() error { return s.drv.Unmap(p, s.size) }},
		{name: "setaccess", do: func() error { return s.drv.SetAccess(p, s.size, s.grants) }},
	}}
}

// share exports a chunk that is made for it and imports it again.
func (s *chunkOps) share() *pass {
	var made, imported driver.Handle
	var fd int
	prop := s.prop
	prop.Share = driver.ShareFD
	return &pass{calls: []call{
		{do: func() error { return s.dev.Supports(driver.FeatureShareFD) }},
		{do: func() (err error) { made, err = s.drv.Create(s.size, prop); return err },
			undo: func() error { return s.drv.Release(made) }},
		{"export", func() (err error) { fd, err = s.drv.Export(made); return err },
			"", func() error { return os.NewFile(uintptr(fd), "chunk").Close() }},
		{"import", func() (err error) { imported, err = s.drv.Import(fd, s.size, prop); return err },
			"", func() error { return s.drv.Release(imported) }},
	}}
}

// ordinary allocates and frees memory of a kind that has no chunks: plain, or of the device's pool.
func (s *chunkOps) ordinary(kind string) *pass {
	from, ok := s.dev.raw.(driver.Allocator)
	own := s.dev.raw.CopyStream()
	var p driver.Ptr
	alloc := func() (err error) { p, err = from.AllocPlain(s.size); return err }
	free := func() error { return from.FreePlain(p) }
	if kind == memAsync {
		alloc = func() (err error) { p, err = from.AllocAsync(s.size, own); return err }
		free = func() error { return from.FreeAsync(p, own) }
	}
	return &pass{
		calls: []call{{undo: func() error { return s.dev.raw.SyncStream(own) }}, {kind + "-alloc", alloc, kind + "-free", free}},
		open: sync.OnceValues(func() (func() error, error) { // so that both operations set back what was set before
			switch {
			case !ok:
				return nil, notSupported(s.dev, memName(s.dev, kind))
			case kind == memPlain:
				return noUndo, nil
			}
			_, undo, err := keepPool(s.dev)
			return undo, err
		}),
	}
}

// growth takes chunks, maps them side by side and sets the access of all of them: at first it makes
// the chunks, and then it has those.
func (s *chunkOps) growth() *pass {
	all := s.size * uint64(s.count)
	var p driver.Ptr
	var made []driver.Handle
	var mapped uint64 // bytes so far: if a call fails, only these are unmapped
	grow := func() error {
		for len(made) < s.count {
			h, err := s.drv.Create(s.size, s.prop)
			if err != nil {
				return err
			}
			made = append(made, h)
		}
		for _, h := range made {
			if err := s.drv.Map(p+driver.Ptr(mapped), s.size, h); err != nil {
				return err
			}
			mapped += s.size
		}
		return s.drv.SetAccess(p, mapped, s.grants)
	}
	unmap := func() (err error) {
		if mapped > 0 {
			err = s.drv.Unmap(p, mapped)
		}
		mapped = 0
		return err
	}
	release := func() (err error) {
		for _, h := range made {
			err = errors.Join(err, s.drv.Release(h))
		}
		made = nil
		return err
	}
	return &pass{bytes: all, calls: []call{
		{do: func() (err error) { p, err = s.drv.Reserve(all, 0); return err }, undo: func() error { return s.drv.Free(p, all) }},
		{undo: release},
		{undo: unmap},
		{name: "grow", do: grow},
		{do: unmap},
		{name: "regrow", do: grow},
	}}
}

// grantChunk is the size of a chunk that access is granted to: the smallest of
// most devices. The driver works for each chunk.
const grantChunk = 2 << 20

// grantGroup times granting access to n chunks of the owner, and revoking it.
func grantGroup(owner device, peers []device, n int) group {
	all := uint64(n) * grantChunk
	others := withoutRaw(peers)
	g := group{name: fmt.Sprintf("grant/%dx%s/peers-%d", n, size.Format(grantChunk), len(peers)), samples: math.MaxInt, maxLoops: 1}
	for _, op := range []string{"grant", "revoke"} {
		// As every contender, each operation has memory of its own.
		var r *vmm.Range
		both := &pass{
			open: func() (_ func() error, err error) {
				r, err = grownRange(owner, shape{size: all, chunk: grantChunk})
				return r.Close, err
			},
			calls: []call{{"grant", func() error { return r.Grant(vmm.AccessReadWrite, others...) },
				"revoke", func() error { return r.Revoke(others...) }}},
		}
		g.add(both.task(op, op, report.Case{Unit: unitUs, Bytes: all, Axes: axes("owner", owner.String(), "chunks", n, "peers", len(peers), "op", op)}))
	}
	if onHost(owner) {
		g.memory = all * uint64(len(g.tasks))
	}
	return g
}
