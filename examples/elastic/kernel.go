package main

import (
	"errors"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// row is what a step does with a slot. Its fields are those of struct row below. Words have 8 bytes.
type row struct {
	At       vmm.Ptr // of the slot: it stays the same, whether there is memory or not
	Seed     uint64  // of the request
	Check    uint64  // the words from here to From are compared with what was written
	From, To uint64  // the words to write
	Bad      uint64  // how many of those that were compared are wrong
}

// code writes and compares keys and values: each word depends on its request and its place.
var code = kernel.Code{
	CUDA: `
typedef unsigned long long u64;

struct row { u64 *at, seed, check, from, to, bad; };

extern "C" __global__ void step(row *all, u64)
{
	const row r = all[blockIdx.x];
	for (u64 i = r.check + blockIdx.y * blockDim.x + threadIdx.x; i < r.to; i += gridDim.y * blockDim.x) {
		const u64 word = (r.seed + i) * 0x9e3779b97f4a7c15;
		if (i >= r.from)
			r.at[i] = word;
		else if (r.at[i] != word)
			atomicAdd(&all[blockIdx.x].bad, 1ull);
	}
}
`,
	Host: kernel.Host{"step": func(all []row) {
		for n, r := range all {
			words := kernel.Slice[uint64](r.At, r.To)
			for i := r.Check; i < r.To; i++ {
				word := (r.Seed + i) * 0x9e3779b97f4a7c15
				if i >= r.From {
					words[i] = word
				} else if words[i] != word {
					all[n].Bad++
				}
			}
		}
	}},
}

// program is a step as a captured graph. It is launched in each step, and has not changed since the process began.
type program struct {
	module *kernel.Module
	stream *vmm.Stream
	rows   *growable.Vector[row]
	graph  *vmm.Graph
	exec   *vmm.GraphExec
}

// newProgram makes the graph for so many slots. The caller must close it, even after an error.
func newProgram(dev *vmm.Device, slots int) (p program, err error) {
	if p.module, err = kernel.Load(dev, code); err != nil {
		return p, err
	}
	step, err := p.module.Func("step")
	if err != nil {
		return p, err
	}
	if p.stream, err = dev.NewStream(); err != nil {
		return p, err
	}
	if p.rows, err = growable.New[row](dev, growable.Options{MaxLen: slots}); err != nil {
		return p, err
	}
	if err = errors.Join(p.rows.Append(make([]row, slots)...), p.stream.BeginCapture()); err != nil {
		return p, err
	}
	c := kernel.Config{Grid: vmm.Dim{X: uint32(slots), Y: 4}, Block: vmm.Dim{X: 256}}
	err = step.Launch(p.stream, c, p.rows)
	var failed error
	if p.graph, failed = p.stream.EndCapture(); err == nil && failed == nil {
		p.exec, err = p.graph.Instantiate()
	}
	return p, errors.Join(err, failed)
}

// run launches the graph for these rows, and reads them again when it has run.
func (p *program) run(rows []row) error {
	if _, err := p.rows.WriteAt(rows, 0); err != nil {
		return err
	}
	if err := errors.Join(p.exec.Launch(p.stream), p.stream.Sync()); err != nil {
		return err
	}
	_, err := p.rows.ReadAt(rows, 0)
	return err
}

func (p *program) close() error {
	return errors.Join(p.exec.Close(), p.graph.Close(), p.stream.Close(), p.rows.Close(), p.module.Close())
}
