package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/spf13/cobra"
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
	sizes size.List
	asked bool // the sizes were; else those that the device has little memory for are left out
	busy  counts
	total size.One // of grow and regrow
}

func newOpsPlan() *opsPlan {
	all := []string{
		opReserve, opCreate, opMap, opSetAccess, opUnmap, opRelease, opFree, opExport, opImport,
		opPlainAlloc, opPlainFree, opAsyncAlloc, opAsyncFree, opGrow, opRegrow,
	}
	return &opsPlan{
		ops: choices{of: all, values: all, what: "OPS"}, sizes: size.List{2 << 20, 32 << 20, 128 << 20, 512 << 20, 2 << 30},
		busy: counts{0, 1}, total: 1 << 30,
	}
}

func (a *app) ops() *cobra.Command {
	var m measureFlags
	p := newOpsPlan()
	c := command(&cobra.Command{
		Use:   "ops",
		Short: "Measure the driver's calls, by the size of the chunk",
		Long: `Time each call that growing is made of, on one chunk: reserve and free (addresses),
create and release (memory), map and unmap, setaccess, export and import (of a
chunk made for it), beside cuMemAlloc and cuMemFree (plain-alloc and plain-free;
mmap on the host) and the device's pool, which is kept warm (async-alloc and
async-free); with the device idle, and while streams copy.
grow is what to choose a chunk size by: --total bytes by chunks of this size,
create and map for each and one setaccess for all. regrow is the same from chunks
that were kept: map and setaccess. Where --total is no multiple of the chunk it
is rounded down, to one chunk at least; the bytes of the case say what it was.
Every sample is one such call, or one such growth. Nothing is written, so
nothing is verified.`,
		Example: `  vmmbench ops
  vmmbench ops --op grow,regrow --size 2M:2G:x4 --busy 0`,
	})
	f := c.Flags()
	m.add(f, 100, 5*time.Second)
	f.Var(&p.ops, "op", "operations")
	f.Var(&p.sizes, "size", "bytes of a chunk: a list or a range; those of the default list as far as the memory goes")
	f.Var(&p.busy, "busy", "how many streams copy all the time meanwhile")
	f.Var(&p.total, "total", "bytes to grow to, an eighth of the free memory at most")
	c.RunE = func(c *cobra.Command, _ []string) error {
		p.asked = f.Changed("size")
		return a.measure(c.Context(), c.Name(), &m, p.groups)
	}
	return c
}

// fraction is the part of the free memory that one operation may take: two
// growths stand beside each other, and what others need is not known.
const fraction = 8

// groups plans one group for each size and number of busy streams.
func (p *opsPlan) groups(dev *vmm.Device, raw driver.Device, _ uint64) ([]group, error) {
	free, _, err := raw.MemInfo()
	if err != nil {
		return nil, err
	}
	var list []group
	for i, n := range p.sizes {
		if err := checkSize(n); err != nil {
			return nil, err
		}
		if !p.asked && i > 0 && n > free/fraction {
			break
		}
		s := newSeam(dev, raw, n, min(uint64(p.total), free/fraction))
		for _, streams := range p.busy {
			list = append(list, p.group(dev, raw, s, streams))
		}
	}
	return list, nil
}

func (p *opsPlan) group(dev *vmm.Device, raw driver.Device, s *seam, streams int) group {
	l := &load{dev: dev, raw: raw, n: streams}
	g := group{
		name: busyName("ops/"+size.Format(s.size), streams), samples: math.MaxInt, maxLoops: 1,
		setup: l.setup,
	}
	for _, op := range p.ops.values {
		name, bytes := opName(dev, op), s.size
		if op == opGrow || op == opRegrow {
			bytes *= uint64(s.count)
		}
		g.tasks = append(g.tasks, task{
			label: name,
			c: report.Case{
				ID: g.name + "/" + name, Unit: unitUs, Bytes: bytes,
				Axes: report.Axes{
					{Name: "device", Value: dev.String()}, {Name: "size", Value: s.size},
					{Name: "op", Value: name}, {Name: "busy", Value: streams},
				},
			},
			open: func(context.Context) (contender, error) { return s.contender(dev, op, l.ready) },
		})
	}
	return g
}

// opName is what the report calls an operation.
func opName(dev *vmm.Device, op string) string {
	cuda := dev.Driver().Name() == "cuda"
	switch op {
	case opPlainAlloc:
		return memName(dev, memPlain)
	case opPlainFree:
		if cuda {
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

// seam is a driver and the chunk that its calls are timed on.
type seam struct {
	drv   driver.Driver
	raw   driver.Device
	prop  driver.Prop
	who   []driver.Grant
	size  uint64
	count int // chunks of a growth
}

func newSeam(dev *vmm.Device, raw driver.Device, size, total uint64) *seam {
	home := driver.Location{Kind: driver.LocationDevice, ID: dev.Info().Ordinal}
	return &seam{
		drv: dev.Driver(), raw: raw, size: size, count: int(max(total/size, 1)),
		prop: driver.Prop{Location: home}, who: []driver.Grant{{To: home, Access: driver.AccessReadWrite}},
	}
}

// stopwatch times the calls of one name and lets the others pass.
type stopwatch struct {
	name string
	took time.Duration
}

func (w *stopwatch) call(name string, f func() error) error {
	began := time.Now()
	err := f()
	if took := time.Since(began); name == w.name {
		w.took += took
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// operation is a contender that does everything one call needs, and times it.
type operation struct {
	name  string
	ready func(context.Context)
	do    func(*stopwatch) error
	undo  func() error
}

// contender makes the contender of an operation. ready is called before each sample.
func (s *seam) contender(dev *vmm.Device, op string, ready func(context.Context)) (contender, error) {
	o := &operation{name: op, ready: ready, undo: func() error { return nil }}
	switch op {
	case opExport, opImport:
		if err := dev.Supports(driver.FeatureShareFD); err != nil {
			return nil, err
		}
		o.do = s.share
	case opGrow:
		o.do = s.grow
	case opRegrow:
		kept, err := s.create()
		if err != nil {
			return nil, errors.Join(err, s.release(kept))
		}
		o.do = func(w *stopwatch) error {
			return s.lay(w, opRegrow, func() ([]driver.Handle, error) { return kept, nil })
		}
		o.undo = func() error { return s.release(kept) }
	case opPlainAlloc, opPlainFree, opAsyncAlloc, opAsyncFree:
		return o, s.ordinary(dev, o)
	default:
		o.do = s.chunk
	}
	return o, nil
}

// ordinary completes the contender of a call that is not of this project's kind.
func (s *seam) ordinary(dev *vmm.Device, o *operation) error {
	plain, ok := s.raw.(driver.Allocator)
	if !ok {
		return missing(dev, opName(dev, o.name))
	}
	if o.name == opPlainAlloc || o.name == opPlainFree {
		o.do = func(w *stopwatch) error { return s.plain(w, plain) }
		return nil
	}
	// A pool that gives back what is freed at each synchronise is no pool.
	if err := plain.SetPoolThreshold(math.MaxUint64); err != nil {
		return err
	}
	o.do = func(w *stopwatch) error { return s.async(w, plain) }
	o.undo = func() error { return plain.SetPoolThreshold(0) }
	return nil
}

// chunk takes a chunk from its addresses to its access, and gives it back.
func (s *seam) chunk(w *stopwatch) (err error) {
	give := func(name string, f func() error) { err = errors.Join(err, w.call(name, f)) }
	var p driver.Ptr
	if err := w.call(opReserve, func() (err error) { p, err = s.drv.Reserve(s.size, 0); return err }); err != nil {
		return err
	}
	defer give(opFree, func() error { return s.drv.Free(p, s.size) })
	var h driver.Handle
	if err := w.call(opCreate, func() (err error) { h, err = s.drv.Create(s.size, s.prop); return err }); err != nil {
		return err
	}
	defer give(opRelease, func() error { return s.drv.Release(h) })
	if err := w.call(opMap, func() error { return s.drv.Map(p, s.size, h) }); err != nil {
		return err
	}
	defer give(opUnmap, func() error { return s.drv.Unmap(p, s.size) })
	return w.call(opSetAccess, func() error { return s.drv.SetAccess(p, s.size, s.who) })
}

// share exports a chunk that is made for it and takes it in again.
func (s *seam) share(w *stopwatch) (err error) {
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
	var again driver.Handle
	if err := w.call(opImport, func() (err error) { again, err = s.drv.Import(fd, s.size, prop); return err }); err != nil {
		return err
	}
	return s.drv.Release(again)
}

func (s *seam) plain(w *stopwatch, plain driver.Allocator) error {
	var p driver.Ptr
	if err := w.call(opPlainAlloc, func() (err error) { p, err = plain.AllocPlain(s.size); return err }); err != nil {
		return err
	}
	return w.call(opPlainFree, func() error { return plain.FreePlain(p) })
}

func (s *seam) async(w *stopwatch, plain driver.Allocator) error {
	own := s.raw.CopyStream()
	var p driver.Ptr
	if err := w.call(opAsyncAlloc, func() (err error) { p, err = plain.AllocAsync(s.size, own); return err }); err != nil {
		return err
	}
	err := w.call(opAsyncFree, func() error { return plain.FreeAsync(p, own) })
	return errors.Join(err, s.raw.SyncStream(own))
}

// grow takes memory anew and gives it back.
func (s *seam) grow(w *stopwatch) (err error) {
	var made []driver.Handle
	defer func() { err = errors.Join(err, s.release(made)) }()
	return s.lay(w, opGrow, func() ([]driver.Handle, error) {
		made, err = s.create()
		return made, err
	})
}

// lay times taking chunks, mapping them side by side and giving access to all
// of them at once. What is not timed: the addresses, and the unmap.
func (s *seam) lay(w *stopwatch, name string, take func() ([]driver.Handle, error)) (err error) {
	all := s.size * uint64(s.count)
	p, err := s.drv.Reserve(all, 0)
	if err != nil {
		return err
	}
	var mapped uint64
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
		return s.drv.SetAccess(p, mapped, s.who)
	})
}

// create takes the chunks of a growth. What it gives beside an error is to be
// released too.
func (s *seam) create() (made []driver.Handle, err error) {
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

func (s *seam) release(handles []driver.Handle) error {
	var err error
	for _, h := range handles {
		err = errors.Join(err, s.drv.Release(h))
	}
	return err
}

func (o *operation) measure(ctx context.Context, _ int) (measure.Sample, error) {
	o.ready(ctx)
	w := stopwatch{name: o.name}
	err := o.do(&w)
	return measure.Sample{NS: float64(w.took)}, err
}

// verify has no data to check.
func (o *operation) verify(context.Context, verify.Mode, int64) (verify.Result, error) {
	return verify.Result{Mode: verify.Off}, nil
}

func (o *operation) describe(c *report.Case, _ []measure.Sample) {
	c.Flags = append(c.Flags, "wall-clock")
}
func (o *operation) close() error { return o.undo() }
