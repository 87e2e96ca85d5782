//go:build linux

package host

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Limits of a GPU, so that what fails there fails here.
const (
	maxThreads       = 1024 // of a block
	maxThreadsZ      = 64
	maxGridX         = 1<<31 - 1
	maxGridYZ        = 65535
	maxCluster       = 8         // blocks
	maxArgs          = 4 << 10   // bytes
	anyShared        = 48 << 10  // without SetMaxDynamicShared
	maxShared        = 227 << 10 // with SetMaxDynamicShared
	processorThreads = 2048      // that a multiprocessor runs at once
	processorBlocks  = 32
	processorShared  = 228 << 10 // of which each block takes 1 KiB for itself
	blockShared      = 1 << 10
	suggestedThreads = 256
)

// module is loaded functions.
type module struct{ functions map[string]driver.Function }

// function is a kernel: a Go function that does the work of a grid.
type function struct {
	name   string
	params []driver.Param
	run    func(*driver.Launch) error
	shared uint32 // bytes of dynamic shared memory that a launch may have
}

// LoadModule loads the functions of code.Host.
func (v *device) LoadModule(code driver.Code) (m driver.Module, log string, err error) {
	const verb = "LoadModule"
	err = v.onContext(verb, func(c *context) error {
		if len(code.Host) == 0 {
			return refuse(verb, driver.ErrNotSupported, "this module has no Go functions for host memory")
		}
		for name, k := range code.Host {
			if err := checkKernel(verb, name, k); err != nil {
				return err
			}
		}
		c.d.lastID++
		m = driver.Module(c.d.lastID)
		loaded := &module{make(map[string]driver.Function)}
		for name, k := range code.Host {
			c.d.lastID++
			f := driver.Function(c.d.lastID)
			loaded.functions[name] = f
			c.functions[f] = &function{name: name, params: slices.Clone(k.Params), run: k.Run, shared: anyShared}
		}
		c.modules[m] = loaded
		return nil
	})
	return m, "", err
}

// checkKernel checks that a kernel can be called and that its parameters lie one after
// the other.
func checkKernel(verb, name string, k driver.HostKernel) error {
	if name == "" || k.Run == nil {
		return refuse(verb, driver.ErrInvalid, "kernel %q has no name or no function", name)
	}
	end := uint64(0)
	for i, p := range k.Params {
		if p.Size == 0 || uint64(p.Offset) < end {
			return refuse(verb, driver.ErrInvalid, "kernel %q: parameter %d has %d bytes at %d, after one that ends at %d", name, i, p.Size, p.Offset, end)
		}
		end = uint64(p.Offset) + uint64(p.Size)
	}
	if end > maxArgs {
		return refuse(verb, driver.ErrInvalid, "kernel %q: its parameters take %d bytes; the most is %d", name, end, maxArgs)
	}
	return nil
}

// UnloadModule removes a module and its functions. Launches that are queued still run.
func (v *device) UnloadModule(m driver.Module) error {
	const verb = "UnloadModule"
	return v.onContextEvenLost(verb, func(c *context) error {
		x, err := find(c, verb, "module", c.modules, m)
		if err != nil {
			return err
		}
		for _, f := range x.functions {
			delete(c.functions, f)
		}
		delete(c.modules, m)
		return nil
	})
}

// Function finds a kernel by its name.
func (v *device) Function(m driver.Module, name string) (f driver.Function, err error) {
	const verb = "Function"
	err = v.onContext(verb, func(c *context) error {
		x, err := find(c, verb, "module", c.modules, m)
		if err != nil {
			return err
		}
		f = x.functions[name]
		if f == 0 {
			return refuse(verb, driver.ErrInvalid, "module %d has no kernel %q", m, name)
		}
		return nil
	})
	return f, err
}

// Params lists a kernel's parameters.
func (v *device) Params(f driver.Function) (all []driver.Param, err error) {
	err = v.onFunction("Params", f, func(x *function) error {
		all = slices.Clone(x.params)
		return nil
	})
	return all, err
}

// FunctionInfo knows the threads of a block only: nothing was compiled.
func (v *device) FunctionInfo(f driver.Function) (info driver.FunctionInfo, err error) {
	err = v.onFunction("FunctionInfo", f, func(*function) error {
		info.MaxThreads = maxThreads
		return nil
	})
	return info, err
}

// SetMaxDynamicShared allows launches with more dynamic shared memory. There is none
// here, but a launch beyond the limit is refused as on the card.
func (v *device) SetMaxDynamicShared(f driver.Function, n uint32) error {
	const verb = "SetMaxDynamicShared"
	return v.onFunction(verb, f, func(x *function) error {
		if n > maxShared {
			return refuse(verb, driver.ErrInvalid, "%d bytes; the most is %d", n, maxShared)
		}
		x.shared = max(n, anyShared)
		return nil
	})
}

// Occupancy is that of a GPU on which threads, blocks and shared memory are scarce and
// registers are not.
func (v *device) Occupancy(f driver.Function, threads, shared uint32) (blocks int, err error) {
	const verb = "Occupancy"
	err = v.onFunction(verb, f, func(x *function) error {
		if threads == 0 {
			return refuse(verb, driver.ErrInvalid, "blocks of no threads")
		}
		blocks = x.occupancy(threads, shared)
		return nil
	})
	return blocks, err
}

func (x *function) occupancy(threads, shared uint32) int {
	if threads > maxThreads || shared > x.shared {
		return 0
	}
	return int(min(processorBlocks, processorThreads/threads, processorShared/(shared+blockShared)))
}

// SuggestBlock is the same for every kernel. A processor stands for a multiprocessor.
func (v *device) SuggestBlock(f driver.Function, shared uint32) (threads, blocks uint32, err error) {
	const verb = "SuggestBlock"
	err = v.onFunction(verb, f, func(x *function) error {
		each := x.occupancy(suggestedThreads, shared)
		if each == 0 {
			return refuse(verb, driver.ErrInvalid, "%d bytes of shared memory; kernel %q may have %d", shared, x.name, x.shared)
		}
		threads, blocks = suggestedThreads, uint32(each*runtime.NumCPU())
		return nil
	})
	return threads, blocks, err
}

// Launch queues a kernel. Its memory is checked as that of a copy.
func (v *device) Launch(f driver.Function, l *driver.Launch, s driver.Stream) error {
	const verb = "Launch"
	o := &op{work: work{kind: launching}}
	err := v.onFunction(verb, f, func(x *function) error {
		if err := x.checkLaunch(verb, l); err != nil {
			return err
		}
		mine := *l
		mine.Grid, mine.Block = atLeastOne(l.Grid), atLeastOne(l.Block)
		mine.Args, mine.Memory = slices.Clone(l.Args), slices.Clone(l.Memory)
		name, run := x.name, x.run
		o.run = func(c *context) bool { return c.runKernel(name, run, &mine) }
		return nil
	})
	if err != nil {
		return err
	}
	for _, m := range l.Memory {
		if m.Access > driver.AccessReadWrite {
			return refuse(verb, driver.ErrInvalid, "%v to memory at %v", m.Access, m.Addr)
		}
		o.use(m.Addr, max(m.Size, 1), m.Access)
		o.memory[len(o.memory)-1].open = m.Size == 0
	}
	return v.queue(verb, s, o)
}

// atLeastOne is d with 1 for 0.
func atLeastOne(d driver.Dim) driver.Dim {
	return driver.Dim{X: max(d.X, 1), Y: max(d.Y, 1), Z: max(d.Z, 1)}
}

// checkLaunch checks a launch against the limits of a GPU.
func (x *function) checkLaunch(verb string, l *driver.Launch) error {
	grid, block, cluster := atLeastOne(l.Grid), atLeastOne(l.Block), atLeastOne(l.Cluster)
	end := uint64(0)
	if n := len(x.params); n > 0 {
		end = uint64(x.params[n-1].Offset) + uint64(x.params[n-1].Size)
	}
	switch {
	case grid.X > maxGridX || grid.Y > maxGridYZ || grid.Z > maxGridYZ:
		return refuse(verb, driver.ErrInvalid, "kernel %q: a grid of %v; the most is %d, %d and %d", x.name, grid, maxGridX, maxGridYZ, maxGridYZ)
	case block.X > maxThreads || block.Y > maxThreads || block.Z > maxThreadsZ || block.Size() > maxThreads:
		return refuse(verb, driver.ErrInvalid, "kernel %q: a block of %v; the most is %d threads, and %d in z", x.name, block, maxThreads, maxThreadsZ)
	case l.Shared > x.shared:
		return refuse(verb, driver.ErrInvalid, "kernel %q: %d bytes of shared memory; it may have %d", x.name, l.Shared, x.shared)
	case grid.X%cluster.X != 0 || grid.Y%cluster.Y != 0 || grid.Z%cluster.Z != 0 || cluster.Size() > maxCluster:
		return refuse(verb, driver.ErrInvalid, "kernel %q: clusters of %v in a grid of %v; the most is %d blocks", x.name, cluster, grid, maxCluster)
	case uint64(len(l.Args)) != end:
		return refuse(verb, driver.ErrInvalid, "kernel %q: %d bytes of arguments; it takes %d", x.name, len(l.Args), end)
	}
	if l.Cooperative {
		if most := x.occupancy(uint32(block.Size()), l.Shared) * runtime.NumCPU(); grid.Size() > uint64(most) {
			return refuse(verb, driver.ErrInvalid, "kernel %q: %d blocks cannot run at once; the most is %d", x.name, grid.Size(), most)
		}
	}
	return nil
}

// runKernel runs a kernel. If it faults, all devices are lost.
func (c *context) runKernel(name string, run func(*driver.Launch) error, l *driver.Launch) bool {
	// It gets a copy, because a graph may launch it again.
	mine := *l
	mine.Args, mine.Memory = slices.Clone(l.Args), slices.Clone(l.Memory)
	// In a goroutine of its own: runtime.Goexit then ends that one and not the stream's,
	// and SetPanicOnFault ends with it.
	done := make(chan string, 1)
	go func() {
		// What the kernel fails with is its own code: it is made text here, with no lock held.
		why := "it ended its goroutine"
		defer func() {
			if p := recover(); p != nil {
				why = panicText(p)
			}
			done <- why
		}()
		debug.SetPanicOnFault(true)
		if err := run(&mine); err != nil {
			why = fmt.Sprint(err)
		} else {
			why = ""
		}
	}()
	why := <-done
	if why == "" {
		return true
	}
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	c.d.lose(fmt.Sprintf("kernel %q on host:%d: %s", name, c.state.ordinal, why))
	return false
}

// panicText returns what a kernel panicked with.
func panicText(p any) (text string) {
	defer func() {
		if recover() != nil {
			text = "panic, and another one when asked why"
		}
	}()
	if fault, ok := p.(interface{ Addr() uintptr }); ok {
		return fmt.Sprintf("invalid memory access at %#x", fault.Addr())
	}
	return fmt.Sprintf("panic: %v", p)
}

// onContext calls f with the device's context, under workMu.
func (v *device) onContext(verb string, f func(*context) error) error {
	if err := v.checkOpen(verb); err != nil {
		return err
	}
	c := v.context
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	if c.stopped() {
		return c.stoppedError(verb)
	}
	return f(c)
}

// onContextEvenLost is onContext for calls that free something. They work on a lost
// device and after a reset.
func (v *device) onContextEvenLost(verb string, f func(*context) error) error {
	if v.closed.Load() {
		return v.closedError(verb)
	}
	c := v.context
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	return f(c)
}

// find finds what a context has. The caller holds workMu.
func find[K comparable, V any](c *context, verb, what string, all map[K]V, k K) (V, error) {
	x, ok := all[k]
	if !ok {
		return x, refuse(verb, driver.ErrInvalid, "host:%d has no %s %v", c.state.ordinal, what, k)
	}
	return x, nil
}

// onFunction makes a call with a function of the device, under workMu.
func (v *device) onFunction(verb string, f driver.Function, call func(*function) error) error {
	return v.onContext(verb, func(c *context) error {
		x, err := find(c, verb, "function", c.functions, f)
		if err != nil {
			return err
		}
		return call(x)
	})
}
