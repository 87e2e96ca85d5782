package collective

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
)

// RegisterOptions configures Group.Register; its zero value is the default.
type RegisterOptions struct {
	// Window registers the memory as a symmetric window of NCCL, in which small calls take
	// less time: all members have to call Register with it at the same time, with as many
	// bytes, and to use the same offsets. The memory has to be one chunk that cannot grow, a
	// Range of which Max is one chunk, made with RangeOptions.Share and ShareFD. Over several chunks NCCL accepts a window, and the next
	// call in it loses the device of every member.
	Window bool
}

// Registration is memory that a group knows. Safe for concurrent use. The caller can Close it;
// the Close of the group does so as well.
type Registration struct {
	g    *Group
	stop func()    // ends watching; nil of a window
	hold func()    // releases the memory of a window; nil else
	once sync.Once // of end
	err  error     // of end

	// Guarded by mu.
	mu     sync.Mutex
	chunks map[vmm.Ptr]uint64 // handles of the engine, by the chunk's address
	failed error              // the first chunk that could not be registered
}

// Register makes memory known to the group, chunk by chunk, as long as it is open: chunks by
// which the memory grows later are registered once they are mapped, and the registration of
// each is undone before it is unmapped. None is registered twice. NCCL needs none of it; between
// hosts it can read and write registered memory without a copy in between, and has not to
// register it anew. Within a host it makes no difference, apart from windows.
//
// Memory that is registered keeps its pages. It returns vmm.ErrInvalid for what does not grow,
// and vmm.ErrNotSupported for an NCCL before 2.19, or with Window before 2.27. If a chunk that
// is mapped later cannot be registered, the memory is used without, and Registration.Err says
// so.
func (g *Group) Register(ctx context.Context, v Memory, o RegisterOptions) (*Registration, error) {
	const name = "register"
	if g == nil || g.dev == nil {
		return nil, g.op(name, errNoGroup)
	}
	if err := g.begin(ctx); err != nil {
		return nil, g.op(name, err)
	}
	defer g.end()
	r := &Registration{g: g, chunks: map[vmm.Ptr]uint64{}}
	of, err := rangeOf(v)
	if err == nil {
		if o.Window {
			err = r.window(ctx, of)
		} else {
			err = r.watch(of)
		}
	}
	if err != nil {
		return nil, g.op(name, errors.Join(err, r.end()))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.regs[r] = struct{}{}
	return r, nil
}

// watch registers the chunks that are there and those that come.
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
	err := r.g.call(context.Background(), func() (err error) {
		handle, err = r.g.e.Register(s.Addr, s.Size)
		return err
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if r.failed == nil {
			r.failed = fmt.Errorf("register %d bytes at %v: %w", s.Size, s.Addr, err)
		}
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
	// An engine that was aborted has undone all of them.
	err := r.g.call(context.Background(), func() error { return r.g.e.Deregister(handle) })
	if err == nil || errors.Is(err, ErrAborted) {
		r.g.counters.deregistered.Add(1)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = fmt.Errorf("undo the registration of %d bytes at %v: %w", s.Size, s.Addr, err)
	}
}

// window registers the only chunk of a range, which is held.
func (r *Registration) window(ctx context.Context, of *vmm.Range) error {
	all := of.Segments()
	if (len(all) != 1 || all[0].Size != of.Max()) && !r.g.opts.hooks.anyWindow {
		return fmt.Errorf("%w: a window has to be one chunk that cannot grow; this range has %d chunks, of %d bytes at most: a collective call over two would lose the device", vmm.ErrInvalid, len(all), of.Max())
	}
	if of.Options().Share&vmm.ShareFD == 0 {
		return fmt.Errorf("%w: a window needs memory that can be exported, made with RangeOptions.Share and ShareFD", vmm.ErrInvalid)
	}
	hold, err := of.Hold(0, of.Len())
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
		return err
	}
	r.g.counters.registered.Add(1)
	r.chunks[all[0].Addr] = handle
	return nil
}

// Chunks is how many chunks are registered now.
func (r *Registration) Chunks() int {
	if r == nil || r.g == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.chunks)
}

// Err is nil if all chunks are registered, else why the first of the others is not.
func (r *Registration) Err() error {
	if r == nil || r.g == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Close undoes the registration of all chunks. Twice is fine, and so is a nil Registration.
func (r *Registration) Close() error {
	if r == nil || r.g == nil {
		return nil
	}
	r.g.mu.Lock()
	delete(r.g.regs, r)
	r.g.mu.Unlock()
	return r.g.op("undo a registration", r.end())
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
			err := r.g.call(context.Background(), func() error { return r.g.e.DeregisterWindow(windows[p]) })
			if err == nil || errors.Is(err, ErrAborted) {
				r.g.counters.deregistered.Add(1)
			} else {
				r.err = errors.Join(r.err, err)
			}
		}
		if r.hold != nil {
			r.hold()
		}
	})
	return r.err
}
