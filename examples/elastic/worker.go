package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/rpc"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
)

// workerEnv is the environment variable that has a process be a worker, with these options.
const workerEnv = "CUVMM_ELASTIC_WORKER"

// work is a worker. It does what the parent calls over conn, until the parent closes that.
func work(text string, conn io.ReadWriteCloser) (err error) {
	var o options
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	dev, err := vmm.Open(o.Device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	switch o.Mode {
	case "halves":
		dev.SetLimit(o.Budget / 2)
	case "budget":
		m, err := budget.Join(context.Background(), o.Path, dev, budget.JoinOptions{Name: fmt.Sprint("worker-", o.Worker)})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
	}
	w, err := newWorker(dev, o)
	defer func() { err = errors.Join(err, w.close()) }()
	if err != nil {
		return err
	}
	s := rpc.NewServer()
	if err := s.RegisterName("worker", w); err != nil {
		return err
	}
	s.ServeConn(conn)
	return nil
}

// Counts is what a worker has done.
type Counts struct {
	Tokens  int   // of outputs
	Served  int   // requests that have ended
	Left    int   // clients that have left the queue
	Refused int   // a request that ran got no memory, so the newest one was dropped
	Dropped int   // a request was dropped since the other worker needed memory
	Again   int   // tokens whose keys and values are computed again
	Waits   []int // steps in the queue of each request, until it began or its client left
}

// slot has the memory of one request after another, at the same address.
type slot struct {
	kv      *vmm.Range
	request *request // nil: the slot is free
}

// worker serves requests. The parent calls its methods that are exported.
type worker struct {
	options

	random  *rand.Rand // of the requests
	dev     *vmm.Device
	stop    func() // of OnPressure
	program program

	// mu is held for no call that needs memory: give, which releases memory, waits for it.
	mu      sync.Mutex
	slots   []*slot
	queue   []*request
	running []*slot // the newest request is the last
	growing *slot   // it gets memory, so give leaves it alone
	counts  Counts
	err     error // memory could not be released
}

// newWorker makes a worker. The caller must close it, even after an error.
func newWorker(dev *vmm.Device, o options) (w *worker, err error) {
	w = &worker{options: o, random: rand.New(rand.NewPCG(o.Seed, uint64(o.Worker))), dev: dev}
	w.stop = dev.OnPressure(w.give)
	for range o.Budget / o.Token / (leastPrompt + ahead) {
		kv, err := dev.NewRange(vmm.RangeOptions{Max: maxTokens * w.Token, Chunk: ahead * w.Token, Name: "keys and values"})
		if err != nil {
			return w, err
		}
		w.slots = append(w.slots, &slot{kv: kv})
	}
	if w.program, err = newProgram(dev, len(w.slots)); err != nil {
		return w, err
	}
	return w, w.append() // to no request: the first launch may need more memory than others
}

// Step is the worker's turn.
func (w *worker) Step(step int, _ *int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrive(step)
	if err := errors.Join(w.grow(), w.begin(step)); err != nil {
		return err
	}
	return errors.Join(w.append(), w.err)
}

// Created is how much memory the worker has.
func (w *worker) Created(_ int, bytes *uint64) error {
	*bytes = w.dev.Stats().Committed
	return nil
}

// Finish gives all memory back.
func (w *worker) Finish(_ int, c *Counts) error {
	*c = w.counts
	return w.close()
}

// arrive adds new requests to the queue. Clients that have waited for too long leave.
func (w *worker) arrive(step int) {
	w.queue = slices.DeleteFunc(append(w.queue, arrive(w.options, w.random, step)...), func(r *request) bool {
		leaves := !r.begun && step-r.arrived >= int(patience)
		if leaves {
			w.counts.Left++
			w.counts.Waits = append(w.counts.Waits, step-r.arrived)
		}
		return leaves
	})
}

// grow gets memory for the next token of each request that runs. If there is none, the newest request is dropped.
func (w *worker) grow() error {
	for _, s := range slices.Clone(w.running) {
		for s.request != nil { // it may be dropped meanwhile
			err := w.ensure(s, 1)
			if err == nil {
				break
			}
			if !errors.Is(err, vmm.ErrOutOfMemory) {
				return err
			}
			w.counts.Refused++
			w.drop(w.running[len(w.running)-1])
		}
	}
	return nil
}

// begin begins requests of the queue, while there are slots, and memory for a chunk more than a request has tokens.
func (w *worker) begin(step int) error {
	for _, s := range w.slots {
		if s.request != nil || len(w.queue) == 0 {
			continue
		}
		s.request, w.queue = w.queue[0], w.queue[1:]
		if err := w.ensure(s, ahead); err != nil {
			w.drop(s)
			if errors.Is(err, vmm.ErrOutOfMemory) {
				return nil
			}
			return err
		}
		w.running = append(w.running, s)
		if !s.request.begun {
			s.request.begun = true
			w.counts.Waits = append(w.counts.Waits, step-s.request.arrived)
		}
	}
	return nil
}

// ensure has room for so many more tokens of a slot. It releases mu while it gets memory.
func (w *worker) ensure(s *slot, more int) error {
	need := uint64(s.request.has()+more)*w.Token - s.kv.Len()
	w.growing = s
	w.mu.Unlock()
	err := s.kv.Grow(need)
	w.mu.Lock()
	w.growing = nil
	return err
}

// append appends a token to each request that runs, or all that it has if it has just begun, by one launch of the graph.
// When a request ends, all before its last token is compared.
func (w *worker) append() error {
	rows := make([]row, len(w.slots))
	for i, s := range w.slots {
		rows[i].At = s.kv.Ptr()
		r := s.request
		if r == nil {
			continue
		}
		from := s.kv.Len()
		if from > 0 {
			r.made++
			w.counts.Tokens++
		}
		to := uint64(r.has()) * w.Token
		if err := s.kv.SetLen(to); err != nil {
			return err
		}
		rows[i].Seed, rows[i].Check, rows[i].From, rows[i].To = r.seed, from/8, from/8, to/8
		if r.made == r.output {
			rows[i].Check = 0
		}
	}
	// The library does not know what memory the kernel uses by rows. Since mu is held, none goes until it has ended.
	if err := w.program.run(rows); err != nil {
		return err
	}
	for i, s := range w.slots {
		if rows[i].Bad > 0 {
			return fmt.Errorf("%d of %d words of a request are wrong", rows[i].Bad, rows[i].From)
		}
		if s.request != nil && s.request.made == s.request.output {
			w.counts.Served++
			w.free(s)
		}
	}
	return nil
}

// give is the function of OnPressure. If the other worker needs memory, the newest requests are dropped. If this one
// does, nothing is: the other one is asked next, and if that is not enough, grow drops a request.
func (w *worker) give(need error) (released bool) {
	var e *vmm.OpError
	if !errors.As(need, &e) || e.Op != "give" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	given := uint64(0)
	for _, s := range slices.Backward(slices.Clone(w.running)) {
		if given < e.Size && s != w.growing {
			given += s.kv.Cap()
			w.counts.Dropped++
			w.drop(s)
		}
	}
	return given > 0
}

// drop frees the memory of a request, which is the first of the queue again.
func (w *worker) drop(s *slot) {
	w.counts.Again += int(s.kv.Len() / w.Token)
	w.queue = slices.Insert(w.queue, 0, s.request)
	w.free(s)
}

// free gives the memory of a slot back. Its address stays.
func (w *worker) free(s *slot) {
	s.request = nil
	w.running = slices.DeleteFunc(w.running, func(o *slot) bool { return o == s })
	w.err = errors.Join(w.err, s.kv.SetLen(0), s.kv.Clip())
}

func (w *worker) close() error {
	w.stop()
	err := w.program.close()
	for _, s := range w.slots {
		err = errors.Join(err, s.kv.Close())
	}
	return err
}
