package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// What the processes say to each other, a line each.
const (
	yourTurn  = "your turn"
	hasQueued = "has queued its work" // after the name of the role
	hasSeen   = "seen"
)

// memory sets the numbers to 8. The size comes from main and may be wrong, so memory copies 1 MiB
// at a time. The first copy beyond the memory is refused.
func (r *role) memory() error {
	return r.takeTurn("memory", func(m *ipc.Memory) error {
		eights := bytes.Repeat(binary.NativeEndian.AppendUint32(nil, 8), 1<<18)
		for off := uint64(0); off < m.Len(); off += uint64(len(eights)) {
			n := min(uint64(len(eights)), m.Len()-off)
			if err := r.stream.CopyIn(m.Ptr()+vmm.Ptr(off), eights[:n]); err != nil {
				return err
			}
		}
		return nil
	})
}

// code adds a number to others.
var code = kernel.Code{
	CUDA: `
extern "C" __global__ void add(int *x, unsigned long long n, int what)
{
	unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
	for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads)
		x[i] += what;
}
`,
	Host: kernel.Host{"add": func(x []int32, what int32) {
		for i := range x {
			x[i] += what
		}
	}},
}

// rtc adds 3 to the numbers.
func (r *role) rtc() (err error) {
	// Compiled before the turn, which others wait for.
	mod, err := kernel.Load(r.dev, code)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mod.Close()) }()
	f, err := mod.Func("add")
	if err != nil {
		return err
	}
	threads, blocks, err := f.SuggestBlock(0)
	if err != nil {
		return err
	}
	return r.takeTurn("rtc", func(m *ipc.Memory) error {
		c := kernel.Config{Grid: vmm.Dim{X: blocks}, Block: vmm.Dim{X: threads}}
		return f.Launch(r.stream, c, kernel.Pointer(m), m.Len()/4, int32(3))
	})
}

// takeTurn waits for its turn, opens main's memory, and queues work on it. Without main it
// fails: there is no memory then, and takeTurn makes none.
func (r *role) takeTurn(name string, work func(*ipc.Memory) error) (err error) {
	var d net.Dialer
	c, err := d.DialContext(r.ctx, "unix", r.file(socketFile))
	if err != nil {
		return fmt.Errorf("main is gone, or was never there: %w", err)
	}
	// Closed last: to main this is the sign that the memory is closed.
	defer func() { err = errors.Join(err, c.Close()) }()
	stop := context.AfterFunc(r.ctx, func() { _ = c.Close() })
	defer stop()
	lines := bufio.NewScanner(c)
	if err := expect(lines, yourTurn); err != nil {
		return err
	}
	h, err := ipc.ReadFile(r.file(memoryFile))
	if err != nil {
		return err
	}
	if h.Size == 0 { // main's program writes the first line alone, as roles.py
		h.Size = 4 * uint64(r.count)
	}
	if h.Size == 0 || h.Size%4 != 0 {
		return fmt.Errorf("size %d is not a positive multiple of 4", h.Size)
	}
	m, err := ipc.Open(r.dev, h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }() // it waits for the work
	if err := r.inOrder(func() error { return work(m) }); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, name, hasQueued); err != nil {
		return fmt.Errorf("main is gone: %w", err)
	}
	if err := expect(lines, hasSeen); err != nil {
		return err
	}
	fmt.Fprintf(r.w, "%s has changed %d numbers on %v\n", name, m.Len()/4, r.dev)
	return nil
}

// inOrder queues work after that of main, and records that it has finished.
func (r *role) inOrder(work func() error) (err error) {
	ready, err := r.openEvent(readyFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ready.Close()) }()
	finished, err := r.openEvent(finishedFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, finished.Close()) }()
	if err := r.stream.Wait(ready); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	return finished.Record(r.stream)
}

func (r *role) openEvent(file string) (*vmm.Event, error) {
	h, err := ipc.ReadFile(r.file(file))
	if err != nil {
		return nil, err
	}
	return ipc.OpenEvent(r.dev, h)
}

// expect reads the line that main has to say next.
func expect(lines *bufio.Scanner, line string) error {
	switch {
	case !lines.Scan():
		return fmt.Errorf("main is gone: %w", errors.Join(lines.Err(), net.ErrClosed))
	case lines.Text() != line:
		return fmt.Errorf("main says %q, not %q", lines.Text(), line)
	}
	return nil
}

// single is the number that all are.
func single(b []byte) (uint32, error) {
	first := binary.NativeEndian.Uint32(b)
	for i := 4; i < len(b); i += 4 {
		if v := binary.NativeEndian.Uint32(b[i:]); v != first {
			return 0, fmt.Errorf("number %d is %d, and the first is %d", i/4, v, first)
		}
	}
	return first, nil
}
