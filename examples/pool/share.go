package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// sharedFD is the first descriptor that exec.Cmd passes on.
const sharedFD = 3

// patience is how long the other process may take.
const patience = time.Minute

// self is this program; the test has another one.
var self = func(ctx context.Context, args ...string) (*exec.Cmd, error) {
	name, err := os.Executable()
	return exec.CommandContext(ctx, name, args...), err
}

// offer is what the process that exports tells the other one, beside the pool's descriptor.
type offer struct {
	Block    ipc.Token
	Ready    ipc.Handle // of an event that is recorded once the block is written
	Finished ipc.Handle // of one that the other process records once it has freed the block
}

// result is what the other process tells once it has recorded the event.
type result struct{ Sum uint64 }

// share has another process read a block of a pool of the driver's, in the order of the guide:
// each process waits in a stream for the other one's event. What they tell each other says that
// the event has been recorded, and not that it has been reached.
func (d *demo) share() (err error) {
	for _, f := range []vmm.Feature{vmm.FeaturePoolShareFD, vmm.FeatureLegacyIPC} {
		if err := d.dev.Supports(f); errors.Is(err, vmm.ErrNotSupported) {
			fmt.Fprintln(d.w, "two processes:", err)
			return nil
		}
	}
	p, err := pool.NewDriver(d.dev, pool.Options{Share: vmm.ShareFD})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	ready, err := d.dev.NewEvent(vmm.EventInterprocess)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ready.Close()) }()
	finished, err := d.dev.NewEvent(vmm.EventInterprocess)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, finished.Close()) }()
	other, err := startImporter(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.end()) }()

	b, err := p.Alloc(d.stream, size)
	if err != nil {
		return err
	}
	var r result
	if err = errors.Join(d.work(d.stream, b, 0), ready.Record(d.stream)); err == nil {
		r, err = other.use(p, b, ready, finished)
	}
	if err == nil { // of a process that has failed there is nothing to wait for
		fmt.Fprintln(d.w, "two processes: the other one reads a sum of", r.Sum)
		err = d.stream.Wait(finished)
	}
	return errors.Join(err, p.Free(d.stream, b))
}

// importer is the other process.
type importer struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	out    io.Reader
}

// startImporter starts a process and passes it the pool.
func startImporter(p *pool.DriverPool) (i *importer, err error) {
	fd, err := ipc.ExportPool(p)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "pool")
	defer f.Close()
	i = &importer{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	i.cancel = cancel
	if i.cmd, err = self(ctx, "-import", p.Device().Info().Open); err == nil {
		i.cmd.ExtraFiles, i.cmd.Stderr = []*os.File{f}, os.Stderr
		i.in, err = i.cmd.StdinPipe()
	}
	if err == nil {
		i.out, err = i.cmd.StdoutPipe()
	}
	if err == nil {
		err = i.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return i, nil
}

// use has the process use a block. It returns once the process has recorded finished.
func (i *importer) use(p *pool.DriverPool, b pool.Block, ready, finished *vmm.Event) (r result, err error) {
	var o offer
	if o.Block, err = ipc.ExportPointer(p, b); err != nil {
		return r, err
	}
	if o.Ready, err = ipc.EventHandle(ready); err != nil {
		return r, err
	}
	if o.Finished, err = ipc.EventHandle(finished); err != nil {
		return r, err
	}
	if err := json.NewEncoder(i.in).Encode(o); err != nil {
		return r, err
	}
	err = json.NewDecoder(i.out).Decode(&r)
	return r, err
}

// end waits for the end of the process.
func (i *importer) end() error {
	defer i.cancel()
	return errors.Join(i.in.Close(), i.cmd.Wait())
}

// importBlock is what the other process does: it gets an offer from r and reads the block.
func importBlock(device string, f *os.File, r io.Reader, w io.Writer) (err error) {
	var o offer
	if err := json.NewDecoder(r).Decode(&o); err != nil {
		return err
	}
	dev, err := vmm.Open(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	in, err := ipc.ImportPool(dev, int(f.Fd()))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	ready, err := ipc.OpenEvent(dev, o.Ready)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ready.Close()) }()
	finished, err := ipc.OpenEvent(dev, o.Finished)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, finished.Close()) }()
	kernels, err := kernel.LoadBuiltins(dev)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kernels.Close()) }()
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }() // it waits, so this process ends after its work

	if err := s.Wait(ready); err != nil {
		return err
	}
	b, err := in.Import(o.Block)
	if err != nil {
		return err
	}
	sum, err := kernel.SumUint[uint32](kernels, s, b)
	if err = errors.Join(err, b.Free(s), finished.Record(s)); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(result{sum})
}
