package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Func is a kernel of a Module, valid until that is closed. Safe for concurrent use.
type Func struct {
	f       *vmm.Function
	params  []vmm.Param // nil: not known
	strides []uint64    // on the host, of the slices that a Go function takes; by parameter
}

// function is f as package vmm has it.
func (f *Func) function() *vmm.Function {
	f = nonnil.Of(f)
	return f.f
}

// Name is the kernel's name in the code.
func (f *Func) Name() string { return f.function().Name() }

// Info describes the kernel as it was compiled.
func (f *Func) Info() (vmm.FunctionInfo, error) { return f.function().Info() }

// SetMaxDynamicShared allows launches with up to n bytes of dynamic shared memory; see
// vmm.Function.SetMaxDynamicShared.
func (f *Func) SetMaxDynamicShared(n uint32) error { return f.function().SetMaxDynamicShared(n) }

// Occupancy is how many blocks of that many threads, each with shared bytes of dynamic
// shared memory, run at once on one multiprocessor.
func (f *Func) Occupancy(threads, shared uint32) (blocks int, err error) {
	return f.function().Occupancy(threads, shared)
}

// SuggestBlock is the number of threads in a block with which the kernel occupies the
// device best, and how many such blocks fill the device.
func (f *Func) SuggestBlock(shared uint32) (threads, blocks uint32, err error) {
	return f.function().SuggestBlock(shared)
}

// Launch queues the kernel on the stream, with its arguments in order; see the package's
// documentation. Wrong arguments, and what is beyond a limit of the device, return
// vmm.ErrInvalid and queue nothing; memory that cannot be used is as for
// vmm.Function.Launch. To launch the same again and again, Bind costs less.
func (f *Func) Launch(s *vmm.Stream, c Config, args ...any) error {
	b, err := f.Bind(c, args...)
	if err != nil {
		return err
	}
	return b.Launch(s)
}

// Bound is a kernel with its arguments: what is launched again and again. Memory among them
// is looked at anew for each launch, so the kernel gets the length that a vector has then.
// The number of threads stays as Bind or SetConfig set it. Not safe for concurrent use.
type Bound struct {
	f       *Func
	launch  vmm.Launch
	nothing bool               // Over nothing
	args    []arg              // by position
	offs    [][2]uint32        // of each, where its pieces lie in launch.Args
	held    []int              // positions of the args that have memory
	memory  []vmm.LaunchMemory // of these, one or two each, as at the last launch
	now     vmm.MemoryArg      // for Launch alone: a local one would be allocated
}

// listMemory makes the entries for the memory of all arguments.
func (b *Bound) listMemory() {
	b.held, b.memory = b.held[:0], b.memory[:0]
	for i := range b.args {
		a := &b.args[i]
		if !a.holds {
			continue
		}
		b.held = append(b.held, i)
		b.memory = append(b.memory, vmm.LaunchMemory{MemoryArg: a.fixed})
		if a.also != nil {
			b.memory = append(b.memory, vmm.LaunchMemory{})
		}
	}
}

// Bind checks the arguments and packs them for launches.
func (f *Func) Bind(c Config, args ...any) (*Bound, error) {
	if f.function() == nil {
		return nil, fmt.Errorf("launch: %w: no function", vmm.ErrInvalid)
	}
	b := &Bound{f: f, args: make([]arg, len(args))}
	for i, v := range args {
		a, err := newArg(v)
		if err != nil {
			return nil, fmt.Errorf("launch %s: argument %d: %w", f.Name(), i+1, err)
		}
		b.args[i] = a
	}
	offs, size, err := layOut(b.args, f.params, f.strides)
	if err != nil {
		return nil, fmt.Errorf("launch %s: %w", f.Name(), err)
	}
	b.offs = offs
	b.listMemory()
	b.launch = vmm.Launch{Args: make([]byte, size), Memory: make([]vmm.Span, 0, len(b.memory))}
	b.SetConfig(c)
	for i := range b.args {
		b.put(i)
	}
	return b, nil
}

var errUnbound = fmt.Errorf("launch: %w: nothing is bound", vmm.ErrInvalid)

// put writes an argument's value where the kernel looks for it.
func (b *Bound) put(i int) {
	a, off := &b.args[i], b.offs[i]
	if a.pieces == 2 {
		copy(b.launch.Args[off[0]:], a.bytes[:8])
		copy(b.launch.Args[off[1]:], a.bytes[8:])
		return
	}
	copy(b.launch.Args[off[0]:], a.bytes)
}

// SetConfig changes how many threads the launches have, and how.
func (b *Bound) SetConfig(c Config) {
	b.nothing = c.nothing
	b.launch.Grid, b.launch.Block, b.launch.Shared = c.Grid, c.Block, c.Shared
	b.launch.Cluster, b.launch.Cooperative, b.launch.Priority = c.Cluster, c.Cooperative, c.Priority
}

// Set changes an argument, counted from 0, to another of the same size.
func (b *Bound) Set(i int, v any) error {
	if b.f == nil {
		return errUnbound
	}
	if i < 0 || i >= len(b.args) {
		return fmt.Errorf("launch %s: %w: argument %d of %d", b.f.Name(), vmm.ErrInvalid, i+1, len(b.args))
	}
	a, err := newArg(v)
	if err == nil && (len(a.bytes) != len(b.args[i].bytes) || a.pieces != b.args[i].pieces) {
		err = fmt.Errorf("%w: %s in place of %s", vmm.ErrInvalid, a.text, b.args[i].text)
	}
	if old := b.args[i]; err == nil && a.memory != nil && old.memory != nil && argOf(a.memory).Stride != argOf(old.memory).Stride {
		err = fmt.Errorf("%w: %s has items of another size than %s", vmm.ErrInvalid, a.text, old.text)
	}
	if err != nil {
		return fmt.Errorf("launch %s: argument %d: %w", b.f.Name(), i+1, err)
	}
	b.args[i] = a
	b.put(i)
	b.listMemory()
	return nil
}

// Launch queues the kernel. It allocates nothing.
func (b *Bound) Launch(s *vmm.Stream) error {
	if b.f == nil {
		return errUnbound
	}
	// Only what has changed since the last launch is written again.
	n := 0 // in memory
	for _, i := range b.held {
		a := &b.args[i]
		if a.memory == nil { // a vmm.Ptr, which stays what it is
			n++
			continue
		}
		m := &b.now
		a.memory.MemoryArg(m)
		if a.read {
			m.Access = min(m.Access, vmm.AccessRead)
		}
		if b.memory[n].Set(m) {
			binary.NativeEndian.PutUint64(b.launch.Args[b.offs[i][0]:], uint64(m.Addr))
			if a.pieces == 2 {
				binary.NativeEndian.PutUint64(b.launch.Args[b.offs[i][1]:], m.Count)
			}
		}
		n++
		if a.also != nil {
			a.also.MemoryArg(m)
			b.memory[n].Set(m)
			n++
		}
	}
	if b.nothing {
		return nil
	}
	return b.f.f.Launch(s, &b.launch, b.memory)
}
