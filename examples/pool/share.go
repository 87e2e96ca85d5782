package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// sharedFD is the first descriptor that exec.Cmd passes on.
const sharedFD = 3

// self is this program; the test has another one.
var self = func(args ...string) (*exec.Cmd, error) {
	name, err := os.Executable()
	return exec.Command(name, args...), err
}

// share has another process read a block. The pool is made with Options.Share: then its
// chunks can be exported. What is shared is the chunk that the block lies in, as a descriptor,
// with where the block begins in it.
func (d *demo) share() error {
	if err := d.dev.Supports(vmm.FeatureShareFD); errors.Is(err, vmm.ErrNotSupported) {
		fmt.Fprintln(d.w, "two processes:", err)
		return nil
	}
	return d.with(pool.Options{Share: vmm.ShareFD}, func(p *pool.Pool) error {
		b, err := p.Alloc(d.stream, size)
		if err != nil {
			return err
		}
		// The importer may use the memory after the work that this stream has now.
		if err := errors.Join(d.work(d.stream, b, 0), d.stream.Sync()); err != nil {
			return err
		}
		if err := d.exportTo(p, b); err != nil {
			return err
		}
		// The importer has let go of the memory: it frees first.
		return p.Free(d.stream, b)
	})
}

// exportTo runs a process that reads the block, and waits for its end.
func (d *demo) exportTo(p *pool.Pool, b pool.Block) error {
	seg, err := segmentOf(p, b)
	if err != nil {
		return err
	}
	c, err := seg.Chunk()
	if err != nil {
		return err
	}
	fd, err := c.Export()
	if err = errors.Join(err, c.Close()); err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "shared memory")
	defer f.Close()
	cmd, err := self(
		"-import", d.dev.Info().Open,
		"-chunk", fmt.Sprint(seg.Size), "-off", fmt.Sprint(uint64(b.Ptr()-seg.Addr)), "-size", fmt.Sprint(b.Size()),
	)
	if err != nil {
		return err
	}
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stdout, cmd.Stderr = d.w, os.Stderr
	return cmd.Run()
}

// segmentOf is the chunk that a block begins in. One as short as here lies in one chunk.
func segmentOf(p *pool.Pool, b pool.Block) (vmm.Segment, error) {
	for _, seg := range p.Reservation().Segments() {
		if b.Ptr() >= seg.Addr && b.Ptr()+vmm.Ptr(b.Size()) <= seg.Addr+vmm.Ptr(seg.Size) {
			return seg, nil
		}
	}
	return vmm.Segment{}, fmt.Errorf("no chunk with a block at %v", b.Ptr())
}

// imported is a block of another process's pool.
type imported struct {
	device           string
	chunk, off, size uint64
}

// run maps the memory behind f and reads the block.
func (in imported) run(w io.Writer, f *os.File) (err error) {
	dev, err := vmm.Open(in.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	c, err := dev.Import(int(f.Fd()), in.chunk, vmm.Prop{})
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	r, err := dev.Reserve(in.chunk, vmm.ReserveOptions{})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	// The mapping holds the memory, so the chunk may be closed. Access is this process's own:
	// what the owner has granted does not count here.
	if err := errors.Join(r.Grant(vmm.AccessReadWrite, dev), r.Map(0, c), c.Close()); err != nil {
		return err
	}
	kernels, err := kernel.LoadBuiltins(dev)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kernels.Close()) }()
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	sum, err := kernel.SumUint[uint32](kernels, s, part{r, in.off, in.size})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "two processes: the other one reads a sum of %d\n", sum)
	return nil
}

// part is a part of a reservation, for kernels.
type part struct {
	r    *vmm.Reservation
	off  uint64
	size uint64
}

// MemoryArg sets m to the part.
func (p part) MemoryArg(m *vmm.MemoryArg) { p.r.MemoryArg(m, p.off, p.size) }
