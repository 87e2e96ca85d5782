package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Operations, as --op takes them.
const (
	opReserve    = "reserve"
	opCreate     = "create"
	opMap        = "map"
	opSetAccess  = "setaccess"
	opUnmap      = "unmap"
	opRelease    = "release"
	opFree       = "free"
	opExport     = "export"
	opImport     = "import"
	opPlainAlloc = "plain-alloc"
	opPlainFree  = "plain-free"
	opAsyncAlloc = "async-alloc"
	opAsyncFree  = "async-free"
	opGrow       = "grow"
	opRegrow     = "regrow"
)

// opsPlan is what ops measures.
type opsPlan struct {
	ops   choices
	sizes size.List // empty: as many of opsSizes as the device has memory for
	busy  counts
	total size.One // of grow and regrow
}

func newOpsPlan() *opsPlan {
	all := []string{
		opReserve, opCreate, opMap, opSetAccess, opUnmap, opRelease, opFree, opExport, opImport,
		opPlainAlloc, opPlainFree, opAsyncAlloc, opAsyncFree, opGrow, opRegrow,
	}
	return &opsPlan{
		ops: choices{of: all, values: all, what: "OPS"}, busy: counts{0, 1}, total: 1 << 30,
	}
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
	p := newOpsPlan()
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
  grow                     --total bytes by chunks of this size: create and map
                           for each chunk, one setaccess for all
  regrow                   the same from kept chunks: map and setaccess only
To choose a chunk size, look at grow. If --total is no multiple of the chunk, it is
rounded down, to one chunk at least; the case has the bytes that it was. Every sample is
one call or one growth. Nothing is written, so nothing is verified.`,
		Example: `  vmmbench ops
  vmmbench ops --op grow,regrow --size 2M:2G:x4 --busy 0`,
	}, p, 100, 5*time.Second)
	return c
}

// memoryShare is the part of the free memory, one in so many, that one operation
// may take. Two growths have memory at a time, and other programs need some too.
const memoryShare = 8

// groups plans one group for each size and number of busy streams.
func (p *opsPlan) groups(devs []device, _ uint64) ([]group, error) {
	if err := checkMost("--total", uint64(p.total)); err != nil {
		return nil, err
	}
	dev := devs[0]
	free, _, err := dev.raw.MemInfo()
	if err != nil {
		return nil, err
	}
	var list []group
	// Without --size: those that the memory is enough for, the smallest at least.
	sizes := p.sizes
	if len(sizes) == 0 {
		tooLarge := func(n uint64) bool { return n > free/memoryShare }
		sizes = slices.DeleteFunc(slices.Clone(opsSizes), tooLarge)
		sizes = append(sizes, opsSizes[0])[:max(len(sizes), 1)]
	}
	for _, n := range sizes {
		if err := checkSize(n); err != nil {
			return nil, err
		}
		for _, streams := range p.busy {
			s := newChunkOps(dev, n, min(uint64(p.total), free/memoryShare))
			list = append(list, p.group(dev, s, streams))
		}
	}
	return list, nil
}

func (p *opsPlan) group(dev device, s *chunkOps, streams int) group {
	busy := &busyStreams{dev: dev, n: streams}
	g := group{
		name: busyName("ops/"+size.Format(s.size), streams), samples: math.MaxInt, maxLoops: 1,
		setup: busy.setup,
	}
	for _, op := range p.ops.values {
		// The payload of a growth is all its chunks.
		name, bytes := opName(dev, op), s.size
		if op == opGrow || op == opRegrow {
			bytes *= uint64(s.count)
		}
		g.add(task{
			label: name,
			c:     report.Case{Unit: unitUs, Bytes: bytes, Axes: axes("device", dev.String(), "size", s.size, "op", name, "busy", streams)},
			open:  func(context.Context) (contender, error) { return s.newOperation(dev, op, busy.waitQueued) },
		})
	}
	return g
}

// opName is the report's name of an operation.
func opName(dev device, op string) string {
	switch op {
	case opPlainAlloc:
		return memName(dev, memPlain)
	case opPlainFree:
		if dev.Driver().Name() == "cuda" {
			return "cuMemFree"
		}
		return "munmap"
	case opAsyncAlloc:
		return memName(dev, memAsync)
	case opAsyncFree:
		return "freeAsync"
	}
	return op
}

// chunkOps are the operations of a driver on chunks of one size.
type chunkOps struct {
	drv    driver.Driver
	raw    driver.Device
	prop   driver.Prop
	grants []driver.Grant
	size   uint64
	count  int // chunks of a growth

	allocator                  driver.Allocator // nil: the device has none
	chunk, share, plain, async pass
}

func newChunkOps(dev device, size, total uint64) *chunkOps {
	home := location(dev)
	s := &chunkOps{
		drv: dev.Driver(), raw: dev.raw, size: size, count: int(max(total/size, 1)),
		prop: driver.Prop{Location: home}, grants: []driver.Grant{{To: home, Access: driver.AccessReadWrite}},
	}
	s.allocator, _ = dev.raw.(driver.Allocator)
	s.chunk.do, s.share.do, s.plain.do, s.async.do = s.timeChunk, s.timeShare, s.timePlain, s.timeAsync
	return s
}

// stopwatch has the time of each call, by its name.
type stopwatch map[string]time.Duration

func (w stopwatch) call(name string, f func() error) error {
	began := time.Now()
	err := f()
	w[name] += time.Since(began)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// pass makes calls that need each other, as map needs create, and times each of them. Its
// operations take their times from it. If the time of one was taken before, the calls are
// made again.
type pass struct {
	do    func(stopwatch) error
	times stopwatch // not taken yet
}

func (p *pass) take(ctx context.Context, name string, ready func(context.Context)) (time.Duration, error) {
	if _, ok := p.times[name]; !ok {
		ready(ctx)
		p.times = stopwatch{}
		if err := p.do(p.times); err != nil {
			p.times = nil
			return 0, err
		}
	}
	took := p.times[name]
	delete(p.times, name)
	return took, nil
}

// operation is a contender that times one call of a pass.
type operation struct {
	noData
	name  string
	ready func(context.Context) // called before the pass is made
	pass  *pass
	undo  undo
}

// newOperation makes the contender of an operation. ready is called before each pass.
func (s *chunkOps) newOperation(dev device, op string, ready func(context.Context)) (contender, error) {
	o := &operation{name: op, ready: ready, pass: &s.chunk}
	switch op {
	case opExport, opImport:
		o.pass = &s.share
		return o, dev.Supports(driver.FeatureShareFD)
	case opGrow:
		o.pass = &pass{do: s.timeGrow}
	case opRegrow:
		// The chunks are made once, before the first sample, and kept for all.
		kept, err := s.create()
		if err != nil {
			return nil, errors.Join(err, s.release(kept))
		}
		take := func() ([]driver.Handle, error) { return kept, nil }
		o.pass = &pass{do: func(w stopwatch) error { return s.timeMapping(w, opRegrow, take) }}
		o.undo.add(func() error { return s.release(kept) })
	case opPlainAlloc, opPlainFree, opAsyncAlloc, opAsyncFree:
		if s.allocator == nil {
			return nil, notSupported(dev, opName(dev, op))
		}
		if o.pass = &s.plain; op == opAsyncAlloc || op == opAsyncFree {
			o.pass = &s.async
			_, undo, err := keepPool(dev)
			if err != nil {
				return nil, err
			}
			o.undo.add(undo)
		}
	}
	return o, nil
}

// timeChunk makes all the calls from a reservation to memory with access, and
// those that undo them.
func (s *chunkOps) timeChunk(w stopwatch) (err error) {
	undo := func(name string, f func() error) { err = errors.Join(err, w.call(name, f)) }
	var p driver.Ptr
	if err := w.call(opReserve, func() (err error) { p, err = s.drv.Reserve(s.size, 0); return err }); err != nil {
		return err
	}
	defer undo(opFree, func() error { return s.drv.Free(p, s.size) })
	var h driver.Handle
	if err := w.call(opCreate, func() (err error) { h, err = s.drv.Create(s.size, s.prop); return err }); err != nil {
		return err
	}
	defer undo(opRelease, func() error { return s.drv.Release(h) })
	if err := w.call(opMap, func() error { return s.drv.Map(p, s.size, h) }); err != nil {
		return err
	}
	defer undo(opUnmap, func() error { return s.drv.Unmap(p, s.size) })
	return w.call(opSetAccess, func() error { return s.drv.SetAccess(p, s.size, s.grants) })
}

// timeShare exports a chunk that is made for it and imports it again.
func (s *chunkOps) timeShare(w stopwatch) (err error) {
	prop := s.prop
	prop.Share = driver.ShareFD
	h, err := s.drv.Create(s.size, prop)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.drv.Release(h)) }()
	var fd int
	if err := w.call(opExport, func() (err error) { fd, err = s.drv.Export(h); return err }); err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "chunk")
	defer func() { err = errors.Join(err, file.Close()) }()
	var imported driver.Handle
	if err := w.call(opImport, func() (err error) { imported, err = s.drv.Import(fd, s.size, prop); return err }); err != nil {
		return err
	}
	return s.drv.Release(imported)
}

// timePlain allocates and frees plain memory.
func (s *chunkOps) timePlain(w stopwatch) error {
	plain := s.allocator
	var p driver.Ptr
	if err := w.call(opPlainAlloc, func() (err error) { p, err = plain.AllocPlain(s.size); return err }); err != nil {
		return err
	}
	return w.call(opPlainFree, func() error { return plain.FreePlain(p) })
}

// timeAsync allocates from the device's pool and frees into it.
func (s *chunkOps) timeAsync(w stopwatch) error {
	plain := s.allocator
	own := s.raw.CopyStream()
	var p driver.Ptr
	if err := w.call(opAsyncAlloc, func() (err error) { p, err = plain.AllocAsync(s.size, own); return err }); err != nil {
		return err
	}
	err := w.call(opAsyncFree, func() error { return plain.FreeAsync(p, own) })
	return errors.Join(err, s.raw.SyncStream(own))
}

// timeGrow times a growth with new memory, which is released afterwards.
func (s *chunkOps) timeGrow(w stopwatch) (err error) {
	var made []driver.Handle
	defer func() { err = errors.Join(err, s.release(made)) }()
	return s.timeMapping(w, opGrow, func() ([]driver.Handle, error) {
		made, err = s.create()
		return made, err
	})
}

// timeMapping times taking chunks, mapping them side by side and one setaccess
// for all of them. Reserving the addresses and unmapping are not timed.
func (s *chunkOps) timeMapping(w stopwatch, name string, take func() ([]driver.Handle, error)) (err error) {
	all := s.size * uint64(s.count)
	p, err := s.drv.Reserve(all, 0)
	if err != nil {
		return err
	}
	var mapped uint64 // bytes so far: if a call fails, only these are unmapped
	defer func() {
		if mapped > 0 {
			err = errors.Join(err, s.drv.Unmap(p, mapped))
		}
		err = errors.Join(err, s.drv.Free(p, all))
	}()
	return w.call(name, func() error {
		chunks, err := take()
		if err != nil {
			return err
		}
		for _, h := range chunks {
			if err := s.drv.Map(p+driver.Ptr(mapped), s.size, h); err != nil {
				return err
			}
			mapped += s.size
		}
		return s.drv.SetAccess(p, mapped, s.grants)
	})
}

// create makes the chunks of a growth. The caller must release them, also those
// that are returned beside an error.
func (s *chunkOps) create() (made []driver.Handle, err error) {
	made = make([]driver.Handle, 0, s.count)
	for range s.count {
		h, err := s.drv.Create(s.size, s.prop)
		if err != nil {
			return made, err
		}
		made = append(made, h)
	}
	return made, nil
}

// release releases all handles, also if one of them fails.
func (s *chunkOps) release(handles []driver.Handle) error {
	var err error
	for _, h := range handles {
		err = errors.Join(err, s.drv.Release(h))
	}
	return err
}

func (o *operation) measure(ctx context.Context, _ int) (measure.Sample, error) {
	took, err := o.pass.take(ctx, o.name, o.ready)
	return measure.Sample{NS: float64(took)}, err
}

func (o *operation) close() error { return o.undo.close() }

// Operations on other devices' access.
const (
	opGrant  = "grant"
	opRevoke = "revoke"
)

// grantChunk is the size of a chunk that access is granted to: the smallest of
// most devices. The driver works for each chunk.
const grantChunk = 2 << 20

// grantGroup times granting access to n chunks of the owner, and revoking it.
func grantGroup(owner device, peers []device, n int) group {
	all := uint64(n) * grantChunk
	others := withoutRaw(peers)
	g := group{name: fmt.Sprintf("grant/%dx%s/peers-%d", n, size.Format(grantChunk), len(peers)), samples: math.MaxInt, maxLoops: 1}
	for _, op := range []string{opGrant, opRevoke} {
		g.add(task{
			label: op,
			c:     report.Case{Unit: unitUs, Bytes: all, Axes: axes("owner", owner.String(), "chunks", n, "peers", len(peers), "op", op)},
			open: func(context.Context) (contender, error) {
				// As every contender, each operation has memory of its own.
				r, err := grownRange(owner, shape{size: all, chunk: grantChunk})
				if err != nil {
					return nil, err
				}
				both := func(w stopwatch) error { // since each of them needs the other
					if err := w.call(opGrant, func() error { return r.Grant(vmm.AccessReadWrite, others...) }); err != nil {
						return err
					}
					return w.call(opRevoke, func() error { return r.Revoke(others...) })
				}
				return &operation{name: op, ready: func(context.Context) {}, undo: undo{r.Close}, pass: &pass{do: both}}, nil
			},
		})
	}
	if onHost(owner) {
		g.memory = all * uint64(len(g.tasks))
	}
	return g
}
