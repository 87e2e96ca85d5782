package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
)

// result is what both workers have done together.
type result struct {
	Counts

	peak uint64 // the most memory that they had, seen from outside
	over int    // steps after which they had more than the budget
	idle uint64 // what the broker has at the end
}

// wait is the wait in the queue that so large a part of the requests did not exceed.
func (r *result) wait(part float64) time.Duration {
	if len(r.Waits) == 0 {
		return 0
	}
	slices.Sort(r.Waits)
	return time.Duration(r.Waits[int(part*float64(len(r.Waits)-1))]) * stepTime
}

// play plays one mode.
func play(o options) (r result, err error) {
	dev, err := vmm.Open(o.Device)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	dir, err := os.MkdirTemp("", "elastic")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.Path = filepath.Join(dir, "budget.sock")
	if o.Mode == "budget" {
		broker, err := budget.Serve(o.Path, budget.ServeOptions{Budgets: []budget.Budget{{Device: dev, Bytes: o.Budget}}})
		if err != nil {
			return r, err
		}
		defer func() {
			for end := time.Now().Add(time.Second); r.idle != o.Budget && time.Now().Before(end); time.Sleep(time.Millisecond) {
				r.idle = broker.Reports()[0].Idle // it hears a little later that a worker has ended
			}
			err = errors.Join(err, broker.Close())
		}()
	}
	var both pair
	defer func() { err = errors.Join(err, both.end()) }()
	for o.Worker = range both {
		if both[o.Worker], err = start(o); err != nil {
			return r, err
		}
	}
	return both.play(dev, o)
}

// pair is both workers.
type pair [2]*process

// play has the workers take turns, so that the figures do not depend on their speed.
func (both pair) play(dev *vmm.Device, o options) (r result, err error) {
	created, err := both.created() // they are ready
	if err != nil {
		return r, err
	}
	used := both.memory
	if !strings.HasPrefix(o.Device, "host") {
		used = func() uint64 { free, total, _ := dev.MemInfo(); return total - free }
		if o.Mode == "none" {
			fill, err := leave(dev, o.Budget-created)
			if err != nil {
				return r, err
			}
			defer func() { err = errors.Join(err, fill.Close()) }()
		}
	}
	stop := watch(used, created)
	defer func() { r.peak = stop() }()
	for step := range o.Seconds * int(time.Second/stepTime) {
		for _, p := range both {
			if err := p.Call("worker.Step", step, nil); err != nil {
				return r, err
			}
		}
		if created, err = both.created(); err != nil {
			return r, err
		}
		if created > o.Budget {
			r.over++
		}
	}
	for _, p := range both {
		var c Counts
		if err := p.Call("worker.Finish", 0, &c); err != nil {
			return r, err
		}
		r.Tokens, r.Served, r.Left, r.Waits = r.Tokens+c.Tokens, r.Served+c.Served, r.Left+c.Left, append(r.Waits, c.Waits...)
		r.Refused, r.Dropped, r.Again = r.Refused+c.Refused, r.Dropped+c.Dropped, r.Again+c.Again
	}
	if created, err = both.created(); created > 0 {
		err = fmt.Errorf("the workers still have %d bytes", created)
	}
	return r, err
}

// created is how much memory both have, as they say.
func (both pair) created() (sum uint64, err error) {
	for _, p := range both {
		var n uint64
		if err := p.Call("worker.Created", 0, &n); err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// watch reads every 10 ms how much is used, of which the workers have created so much. stop returns the most that they
// had.
func watch(used func() uint64, created uint64) (stop func() (peak uint64)) {
	others := used()
	others -= min(others, created)
	end, peak := make(chan struct{}), make(chan uint64)
	go func() {
		most := others
		for {
			select {
			case <-time.After(10 * time.Millisecond):
				most = max(most, used())
			case <-end:
				peak <- most - others
				return
			}
		}
	}()
	return func() uint64 { close(end); return <-peak }
}

// leave takes all free memory of a GPU but so much.
func leave(dev *vmm.Device, bytes uint64) (fill *vmm.Range, err error) {
	free, _, err := dev.MemInfo()
	if err != nil {
		return nil, err
	}
	fill, err = dev.NewRange(vmm.RangeOptions{Max: free - min(free, bytes)})
	if err != nil {
		return nil, err
	}
	return fill, fill.Grow(fill.Max())
}

// process is a worker, as the parent sees it.
type process struct {
	*rpc.Client

	cmd *exec.Cmd
}

// pipes are what a worker reads and writes.
type pipes struct {
	io.Reader
	io.WriteCloser
}

func start(o options) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{rpc.NewClient(pipes{out, in}), cmd}, nil
}

// end waits until both have ended.
func (both pair) end() (err error) {
	for _, p := range both {
		if p != nil {
			_ = p.Close()
			err = errors.Join(err, p.cmd.Wait())
		}
	}
	return err
}
