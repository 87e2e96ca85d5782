package main

import (
	"errors"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

const size = 4096 // bytes of a block

// inOrder allocates, uses and frees in the order of one stream. Nothing waits. What the stream
// does next can have the memory at once, since it runs after what the stream did before.
func (d *demo) inOrder() error {
	return d.with(pool.Options{}, func(p *pool.Pool) error {
		b, err := p.Alloc(d.stream, size)
		if err != nil {
			return err
		}
		if err := errors.Join(d.work(d.stream, b, 0), p.Free(d.stream, b)); err != nil {
			return err
		}
		next, err := p.Alloc(d.stream, size)
		if err != nil {
			return err
		}
		fmt.Fprintln(d.w, "in stream order: the same memory again:", next.Ptr() == b.Ptr())
		return errors.Join(d.work(d.stream, next, 1), p.Free(d.stream, next))
	})
}

// acrossStreams allocates in one stream, uses the memory in a second one and frees it in a
// third one. Events order the three: the pool orders nothing but the free.
func (d *demo) acrossStreams() error {
	return d.with(pool.Options{}, func(p *pool.Pool) (err error) {
		third, err := d.dev.NewStream()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, third.Close()) }()

		b, err := p.Alloc(d.stream, size)
		if err != nil {
			return err
		}
		if err := after(d.other, d.stream); err != nil {
			return err
		}
		if err := d.work(d.other, b, 0); err != nil {
			return err
		}
		if err := after(third, d.other); err != nil {
			return err
		}
		if err := p.Free(third, b); err != nil {
			return err
		}
		fmt.Fprintln(d.w, "across streams: freed by the third")
		return nil
	})
}

// after has a stream wait for what another one has to do now.
func after(s, other *vmm.Stream) error {
	e, err := other.Record()
	if err != nil {
		return err
	}
	return errors.Join(s.Wait(e), e.Close())
}

// atOnce frees a block without an order. The pool asks nothing: the caller knows that the work
// has ended.
func (d *demo) atOnce() error {
	return d.with(pool.Options{}, func(p *pool.Pool) error {
		b, err := p.Alloc(d.stream, size)
		if err != nil {
			return err
		}
		if err := errors.Join(d.work(d.stream, b, 0), d.stream.Sync()); err != nil {
			return err
		}
		fmt.Fprintln(d.w, "at once: freed after a synchronisation")
		return p.FreeNow(b)
	})
}

// plain gives memory of no pool up in the order of a stream. UsedBy says which stream uses the
// range. Clip does not wait for it: the memory goes back once the kernel has ended.
func (d *demo) plain() error {
	r, err := d.dev.Alloc(size)
	if err != nil {
		return err
	}
	err = errors.Join(
		r.UsedBy(d.stream),
		kernel.Iota(d.kernels, d.stream, r, uint32(0), 1),
		r.SetLen(0), r.Clip(),
	)
	fmt.Fprintln(d.w, "plain memory: given up in stream order")
	return errors.Join(err, r.Close())
}

// onPeer allocates, uses and frees in a stream of another device. The memory is the pool's
// device's.
func (d *demo) onPeer() error {
	if d.peer == nil {
		fmt.Fprintln(d.w, "on a peer: there is no second device")
		return nil
	}
	return d.with(pool.Options{}, func(p *pool.Pool) (err error) {
		if err := p.Grant(vmm.AccessReadWrite, d.peer); err != nil {
			return err
		}
		s, err := d.peer.NewStream()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		b, err := p.Alloc(s, size)
		if err != nil {
			return err
		}
		if err := s.Fill(b.Ptr(), 7, 4, size/4); err != nil {
			return err
		}
		// The owner reads what the peer wrote, once it has.
		sum := uint64(0)
		if err = after(d.stream, s); err == nil {
			sum, err = kernel.SumUint[uint32](d.kernels, d.stream, b)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(d.w, "on a peer: %v wrote memory of %v, whose sum is %d\n", d.peer, p.Device(), sum)
		return p.Free(s, b)
	})
}
