package main

import (
	"context"
	"errors"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/measure"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// copyGroup is what the contenders of one group of bw share. They copy from and
// to the same host memory, so its address makes no difference between them.
type copyGroup struct {
	copyKind
	dev      device
	size     uint64
	pattern  verify.Pattern
	up, down *buffer // host memory that is read, that is written; nil if unused
}

// setup makes the host memory.
func (s *copyGroup) setup(ctx context.Context) (func() error, error) {
	// Before any memory is made: then all cases of the group have the same reason.
	if err := s.unsupported(s.dev); err != nil {
		return nil, err
	}
	undo := func() error {
		err := freeAll(s.up, s.down)
		s.up, s.down = nil, nil
		return err
	}
	var err error
	if s.direction == h2d || s.direction == both {
		if s.up, err = hostBuffer(s.dev, s.host, s.size); err != nil {
			return nil, err
		}
		if err := s.up.fill(ctx, s.pattern); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	if s.direction == d2h || s.direction == both {
		if s.down, err = hostBuffer(s.dev, s.host, s.size); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	return undo, nil
}

// contender makes a copier whose device memory is of this kind and layout.
func (s *copyGroup) contender(ctx context.Context, kind string, layout shape) (_ contender, err error) {
	c := &copier{copyKind: s.copyKind, pattern: s.pattern}
	// Both ends of a copy. Between a host and a GPU the link is slower than any cache.
	c.cached = 2*s.size <= s.dev.Info().Cache && (s.direction == d2d || onHost(s.dev))
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	source := func() (*buffer, error) { return c.deviceEnd(ctx, s.dev, kind, layout) }
	target := func() (*buffer, error) { return c.deviceEnd(ctx, s.dev, kind, layout) }
	if s.direction == d2d {
		src, err := source()
		if err != nil {
			return nil, err
		}
		dst, err := target()
		if err != nil {
			return nil, err
		}
		c.transfers = append(c.transfers, transfer{src, dst})
	}
	// Host to device comes first: describe reports the first transfer as forward.
	if s.up != nil {
		dst, err := target()
		if err != nil {
			return nil, err
		}
		c.transfers = append(c.transfers, transfer{s.up, dst})
	}
	if s.down != nil {
		src, err := source()
		if err != nil {
			return nil, err
		}
		c.transfers = append(c.transfers, transfer{src, s.down})
	}

	var k *kernel.Builtins
	if s.engine == engineSM {
		if k, err = s.dev.kernels.load(); err != nil {
			return nil, err
		}
	}
	for _, t := range c.transfers {
		c.copies = append(c.copies, splitCopy(t.src.size, s.streams, func(off, n uint64) copyFunc {
			if k != nil {
				return c.copyBySM(s.dev, k, t, off, n)
			}
			return t.src.copyRange(t.dst, off, n)
		})...)
	}
	if s.call == callSync {
		for i, f := range c.copies {
			c.copies[i] = f.thenSync(s.dev.raw)
		}
	}
	if c.timer, err = newTimer(s.dev, len(c.copies), s.gateable()); err != nil {
		return nil, err
	}
	c.cost, err = c.timer.cost(ctx, c.copies...)
	return c, err
}

// transfer is one copy, from a buffer that holds the pattern to one that does not.
type transfer struct{ src, dst *buffer }

// copier is a contender that copies.
type copier struct {
	copyKind
	pattern   verify.Pattern
	transfers []transfer
	copies    []copyFunc // of each transfer as many as there are streams
	timer     *timer
	cost      float64   // of timing a sample, nanoseconds
	cached    bool      // the data fit into a cache
	own       []*buffer // freed by close
	undo      []func() error
}

// copyBySM copies n bytes at off by the processors of a device. They run on one stream.
func (c *copier) copyBySM(by device, k *kernel.Builtins, t transfer, off, n uint64) copyFunc {
	dst := span{t.dst.ptr + driver.Ptr(off), n, vmm.AccessReadWrite}
	src := span{t.src.ptr + driver.Ptr(off), n, vmm.AccessRead}
	on := c.wrapped(by)
	return func(s driver.Stream) error { return k.Copy(on(s), dst, src) }
}

// wrapped returns a function that wraps a stream of the device, always the same one, for
// launches.
func (c *copier) wrapped(by device) func(driver.Stream) *vmm.Stream {
	var on *vmm.Stream
	return func(s driver.Stream) *vmm.Stream {
		if on == nil {
			on = by.WrapStream(uintptr(s))
			c.undo = append(c.undo, on.Close)
		}
		return on
	}
}

// deviceEnd makes the device's end of a transfer, and writes all of it: memory of the host
// gets its pages so. c owns it.
func (c *copier) deviceEnd(ctx context.Context, dev device, kind string, layout shape) (*buffer, error) {
	b, err := deviceBuffer(dev, kind, layout)
	if err != nil {
		return nil, err
	}
	c.own = append(c.own, b)
	return b, b.poison(ctx)
}

func (c *copier) measure(ctx context.Context, loops int) (measure.Sample, error) {
	return c.timer.time(ctx, loops, c.copies...)
}

// verify copies once more and checks the targets. --corrupt flips a byte of the
// device buffer. That is the source where the target is host memory, and then
// the byte is flipped before the copy; else it is the target, after the copy.
func (c *copier) verify(ctx context.Context, mode verify.Mode, corrupt int64) (verify.Result, error) {
	result := verify.Result{Mode: mode}
	if mode == verify.Off {
		return result, nil
	}
	// What the samples left must not pass for the work of this copy. Until now no data were
	// needed on the device: memory is made anew several times, and filling it takes longer.
	for _, t := range c.transfers {
		if t.src.host == nil {
			if err := t.src.fill(ctx, c.pattern); err != nil {
				return result, err
			}
		}
		if err := t.dst.poison(ctx); err != nil {
			return result, err
		}
		if t.dst.host != nil {
			if err := t.src.flip(corrupt); err != nil {
				return result, err
			}
		}
	}
	if _, err := c.timer.time(ctx, 1, c.copies...); err != nil {
		return result, err
	}
	for _, t := range c.transfers {
		chunks := t.dst.chunks
		if t.dst.host == nil {
			if err := t.dst.flip(corrupt); err != nil {
				return result, err
			}
		} else {
			chunks = t.src.chunks // host memory has none, and an error is searched by the device's
		}
		r, err := t.dst.check(ctx, c.pattern, mode, chunks)
		result.Add(r)
		if err != nil {
			return result, err
		}
	}
	return result, nil
}

func (c *copier) describe(rc *report.Case, samples []measure.Sample) {
	rc.Flags = append(rc.Flags, c.timer.flag)
	if each := c.cost / float64(rc.Stats.Loops); each > 0.01*rc.Stats.Median {
		rc.Stats.Timer = &each
		rc.Flags = append(rc.Flags, timerCost)
	}
	if c.cached {
		rc.Flags = append(rc.Flags, cached)
	}
	switch c.direction {
	case d2d:
		traffic := 2 * rc.Stats.Value
		rc.Stats.Traffic = &traffic
	case both:
		// A transfer has ended when the last of its streams has.
		var ways [2][]float64
		for _, s := range samples {
			for i := range ways {
				ways[i] = append(ways[i], slices.Max(s.Parts[i*c.streams:(i+1)*c.streams]))
			}
		}
		rc.Stats.Both = &report.Both{
			Forward: bandwidth(c.transfers[0].src.size, median(ways[0])),
			Reverse: bandwidth(c.transfers[1].src.size, median(ways[1])),
		}
	}
}

func (c *copier) close() error {
	// Wrapped streams come before the streams, and all work has ended before the buffers go.
	err := undoAll(c.undo)
	c.undo = nil
	if c.timer != nil {
		err = errors.Join(err, c.timer.close())
	}
	return errors.Join(err, freeAll(c.own...))
}
