// Command kvcache keeps the keys and values of 1,000 sequences under a limit of memory: those that
// were used least recently sleep in host memory, and wake when they are used. Try it, on a GPU if
// there is one:
//
//	go run ./examples/kvcache
//	go run ./examples/kvcache -device host -sequences 200 -limit 33554432
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"sync"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

type load struct {
	sequences, steps, workers int
	limit                     uint64
}

func main() {
	device := flag.String("device", "auto", "which device; auto is the first GPU, or host memory")
	var l load
	flag.IntVar(&l.sequences, "sequences", 1000, "how many `sequences`")
	flag.IntVar(&l.steps, "steps", 5000, "how often a sequence is used after its first tokens")
	flag.IntVar(&l.workers, "workers", 4, "how many `workers` use sequences at once")
	flag.Uint64Var(&l.limit, "limit", 128<<20, "`bytes` of memory on the device")
	flag.Parse()
	if l.sequences < 1 || l.workers < 1 {
		log.Fatal("-sequences and -workers: at least 1")
	}
	dev, err := vmm.Open(*device)
	if err == nil {
		err = errors.Join(run(os.Stdout, dev, l), dev.Close())
	}
	if err != nil {
		log.Fatal(err)
	}
}

const (
	width     = 512 // float16 elements of one token, keys and values of all layers
	layers    = 4
	maxTokens = 4096 // of one sequence
	mostNew   = 16   // tokens that one step appends
)

func run(w io.Writer, dev *vmm.Device, l load) (err error) {
	defer dev.SetLimit(dev.SetLimit(l.limit))
	c := NewCache(dev, width, maxTokens)
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := l.run(c); err != nil {
		return err
	}
	st, mem := c.Stats(), dev.Stats()
	fmt.Fprintf(w, "%d sequences are right: %d put to sleep, %d woken\n", l.sequences, st.Slept, st.Woken)
	fmt.Fprintf(w, "%d of %d bytes at most, %d asleep in host memory\n", mem.PeakCommitted, l.limit, mem.Asleep)
	return errors.Join(st.SleepErr, sumKeys(w, c, 0))
}

// run has workers share out the steps, and then checks every sequence. The first error ends it.
func (l load) run(c *Cache) error {
	for id := range l.sequences {
		if err := c.Add(uint64(id)); err != nil {
			return err
		}
	}
	tokens := make([]int, l.sequences) // of each sequence; used as its rows are, by one worker at a time
	err := l.share(l.sequences+l.steps, func(ctx context.Context, step int) error {
		id := uint64(step)
		if step >= l.sequences { // each has been used once
			id = rand.Uint64N(uint64(l.sequences))
		}
		return c.Use(ctx, id, func(rows *growable.Rows[uint16]) error { return grow(rows, id, &tokens[id]) })
	})
	if err != nil {
		return err
	}
	return l.share(l.sequences, func(ctx context.Context, step int) error {
		id := uint64(step)
		return c.Use(ctx, id, func(rows *growable.Rows[uint16]) error { return check(rows, id, tokens[id]) })
	})
}

// share has the workers do n steps.
func (l load) share(n int, do func(ctx context.Context, step int) error) error {
	ctx, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	steps := make(chan int)
	var workers sync.WaitGroup
	for range l.workers {
		workers.Go(func() {
			for step := range steps {
				if err := do(ctx, step); err != nil {
					fail(err) // the first counts
				}
			}
		})
	}
	for step := 0; step < n && ctx.Err() == nil; step++ {
		steps <- step
	}
	close(steps)
	workers.Wait()
	return context.Cause(ctx)
}

// grow checks what the sequence has, which may just have been woken, and appends tokens.
func grow(rows *growable.Rows[uint16], id uint64, tokens *int) error {
	if err := check(rows, id, *tokens); err != nil {
		return err
	}
	add := min(1+rand.IntN(mostNew), rows.MaxLen()-*tokens)
	more := make([]uint16, add*width)
	for i := range more {
		more[i] = element(id, *tokens+i/width)
	}
	if err := rows.Append(more...); err != nil {
		return err
	}
	*tokens += add
	return nil
}

// check compares the length and every element with what was appended.
func check(rows *growable.Rows[uint16], id uint64, tokens int) error {
	if rows.Len() != tokens {
		return fmt.Errorf("sequence %d has %d tokens, not %d", id, rows.Len(), tokens)
	}
	token := 0
	for b, err := range rows.Blocks(nil) {
		if err != nil {
			return err
		}
		for i, x := range b {
			if want := element(id, token+i/width); x != want {
				return fmt.Errorf("token %d of sequence %d has %d, not %d", token+i/width, id, x, want)
			}
		}
		token += len(b) / width
	}
	return nil
}

// element is the elements of one token.
func element(id uint64, token int) uint16 { return uint16(id*31) + uint16(token) }
