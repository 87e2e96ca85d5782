package collective

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// RegisterOptions configures Group.Register; its zero value is the default.
type RegisterOptions struct {
	// Window registers the memory as a symmetric window of NCCL, in which small calls take
	// less time. All members have to call Register with it at the same time, with as many
	// bytes, and to use the same offsets in later calls. The memory has to be a Range whose
	// Max is one chunk, mapped, and made with RangeOptions.Share and ShareFD. While it is
	// registered, SetLen to less, Clip, Sleep and Close of it return vmm.ErrBusy. A window
	// over several chunks is vmm.ErrInvalid: in NCCL the next call in it would lose the
	// device of every member.
	Window bool
}

// Registration is memory that is registered with a group. Safe for concurrent use. The caller
// may Close it; closing or aborting the group does so as well.
type Registration struct {
	g    *Group
	stop func()    // ends the vmm.Watch; nil for a window
	hold func()    // lets a window's memory be unmapped again; nil if this is none
	once sync.Once // of end
	err  error     // of end

	// Guarded by mu.
	mu     sync.Mutex
	chunks map[vmm.Ptr]uint64 // handles of the engine, by the chunk's address
	failed error              // the first chunk that could not be registered
}

// Register registers the chunks of memory with NCCL, until the Registration is closed: those that
// are mapped now, and those by which the memory grows later, each once. The registration of a
// chunk ends before the chunk is unmapped, since registered memory keeps its pages. Calls work
// without: between hosts NCCL can send from registered memory, and receive into it, without a
// copy in between; within a host only windows make a difference.
//
// It returns vmm.ErrInvalid for memory that does not grow, vmm.ErrPermission for memory that the
// group's device cannot read, and vmm.ErrNotSupported for an NCCL before 2.19, or with Window
// before 2.27. If a chunk that is mapped later cannot be registered,
// calls use it all the same, and Registration.Err returns why.
func (g *Group) Register(ctx context.Context, v Memory, o RegisterOptions) (*Registration, error) {
	const name = "register"
	if err := g.begin(ctx); err != nil {
		return nil, g.op(name, err)
	}
	defer g.end()
	r := &Registration{g: g, chunks: map[vmm.Ptr]uint64{}}
	of, err := rangeOf(v)
	switch {
	case err != nil:
	case of.Access(g.dev) == vmm.AccessNone:
		err = fmt.Errorf("%w: %v cannot read memory of %v", vmm.ErrPermission, g.dev, of.Device())
	case o.Window:
		err = r.window(ctx, of)
	default:
		err = r.watch(of)
	}
	if err != nil {
		return nil, g.op(name, errors.Join(err, r.end()))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.regs[r] = struct{}{}
	return r, nil
}

// watch registers the chunks that are mapped now and later.
func (r *Registration) watch(of *vmm.Range) (err error) {
	r.stop, err = of.Watch(vmm.Watch{Mapped: r.mapped, Unmapping: r.unmapping})
	if err != nil {
		return err
	}
	return r.Err()
}

// mapped registers a chunk.
func (r *Registration) mapped(s vmm.Segment) {
	var handle uint64
	var failed error
	err := r.g.call(context.Background(), func() (err error) {
		if handle, err = r.g.e.Register(s.Addr, s.Size); errors.Is(err, ErrFailed) {
			failed, err = err, nil // the group goes on; if it cannot, its next call says so
		}
		return err
	})
	err = cmp.Or(failed, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed = cmp.Or(r.failed, fmt.Errorf("register %d bytes at %v: %w", s.Size, s.Addr, err))
		return
	}
	r.g.counters.registered.Add(1)
	r.chunks[s.Addr] = handle
}

// unmapping undoes the registration of a chunk.
func (r *Registration) unmapping(s vmm.Segment) {
	r.mu.Lock()
	handle, ok := r.chunks[s.Addr]
	delete(r.chunks, s.Addr)
	r.mu.Unlock()
	if !ok {
		return
	}
	err := r.g.deregister(func() error { return r.g.e.Deregister(handle) })
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = cmp.Or(r.failed, fmt.Errorf("undo the registration of %d bytes at %v: %w", s.Size, s.Addr, err))
}

// deregister calls f, which undoes a registration. That of an engine that is aborted undoes all.
func (g *Group) deregister(f func() error) error {
	err := g.call(context.Background(), f)
	if err != nil && g.stopped() != nil { // also if it is f that has ended the group
		<-g.aborted
		if errors.Is(err, ErrAborted) {
			err = nil
		}
	}
	if err == nil {
		g.counters.deregistered.Add(1)
	}
	return err
}

// window registers the only chunk of a range, and keeps it mapped until end.
func (r *Registration) window(ctx context.Context, of *vmm.Range) error {
	all := of.Segments()
	if (len(all) != 1 || all[0].Size != of.Max()) && !r.g.opts.hooks.anyWindow {
		return fmt.Errorf("%w: a window has to be one chunk that cannot grow; this range has %d chunks, of %d bytes at most: a collective call over two would lose the device", vmm.ErrInvalid, len(all), of.Max())
	}
	if of.Options().Share&vmm.ShareFD == 0 {
		return fmt.Errorf("%w: a window needs memory that can be exported, made with RangeOptions.Share and ShareFD", vmm.ErrInvalid)
	}
	hold, err := inside.VMM.HoldRange(of, "a window of a group", 0, of.Cap())
	if err != nil {
		return err
	}
	r.hold = hold
	var handle uint64
	err = r.g.call(ctx, func() (err error) {
		handle, err = r.g.e.RegisterWindow(all[0].Addr, of.Cap())
		return err
	})
	if err != nil {
		if r.g.stopped() != nil {
			<-r.g.aborted // until then NCCL may have the memory
		}
		return err
	}
	r.g.counters.registered.Add(1)
	r.chunks[all[0].Addr] = handle
	return nil
}

// Chunks is how many chunks are registered now.
func (r *Registration) Chunks() int {
	r = nonnil.Of(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.chunks)
}

// Err returns why the first chunk could not be registered, or its registration could not be
// undone. It is nil if there is none.
func (r *Registration) Err() error {
	r = nonnil.Of(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Close undoes the registration of all chunks, and returns the errors of a window; those of
// other chunks are in Err. Twice is fine, and so is a nil Registration.
func (r *Registration) Close() error {
	if r == nil || r.g == nil {
		return nil
	}
	err := r.end()
	// Not before: until then Close of the group waits for it.
	r.g.mu.Lock()
	delete(r.g.regs, r)
	r.g.mu.Unlock()
	return r.g.op("undo a registration", err)
}

// end undoes the registration of all chunks, once.
func (r *Registration) end() error {
	r.once.Do(func() {
		if r.stop != nil {
			r.stop()
		}
		r.mu.Lock()
		windows := maps.Clone(r.chunks)
		clear(r.chunks)
		r.mu.Unlock()
		for _, p := range slices.Sorted(maps.Keys(windows)) {
			r.err = errors.Join(r.err, r.g.deregister(func() error { return r.g.e.DeregisterWindow(windows[p]) }))
		}
		if r.hold != nil {
			r.hold()
		}
	})
	return r.err
}
