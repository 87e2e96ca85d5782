// Command distributed has several processes, each with a GPU of its own, build one table of
// vectors that all of them have. Try it on the GPUs of one host; or on several hosts, where torchrun,
// mpirun or srun starts it:
//
//	go run ./examples/distributed -n 2
//	torchrun --nnodes 2 --nproc-per-node 8 --no-python distributed
//
// In each round each member appends rows to its own part, some more and some fewer, and all gather
// what is new. No address changes. In the end rank 0 searches the table for the row nearest to a query.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/vmm"
)

type options struct {
	processes, rounds, rows, width int
	timeout                        time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.processes, "n", 0, "processes to start on this host; 0: what started this process says how many there are")
	flag.IntVar(&o.rounds, "rounds", 16, "rounds of appending and gathering")
	flag.IntVar(&o.rows, "rows", 1000, "rows that rank 0 appends in each round; rank 1 appends twice as many, and so on")
	flag.IntVar(&o.width, "width", 64, "numbers in a row")
	flag.DurationVar(&o.timeout, "timeout", time.Minute, "the longest wait for another process")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		log.Fatal(err)
	}
}

// run is a member of the group that the environment names, or starts one of o.processes.
func run(ctx context.Context, o options) error {
	env, err := collective.FromEnvironment()
	switch {
	case err == nil:
		return member(ctx, os.Stdout, env, o)
	case o.processes > 0:
		return start(ctx, o.processes)
	}
	return err
}

// start starts the processes of a group on this host, and waits for them. If one fails, the
// others are stopped.
func start(ctx context.Context, n int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	sub, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, n)
	for rank := range n {
		cmd := exec.CommandContext(sub, self, os.Args[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), "RANK="+strconv.Itoa(rank), "LOCAL_RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(n), "CUVMM_GROUP_ADDRESS="+address)
		go func() { ended <- cmd.Run() }()
	}
	var first error
	for range n {
		if err := <-ended; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// freeAddress is an address on this host at which nothing listens.
func freeAddress(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// member is one process of the group.
func member(ctx context.Context, out io.Writer, env collective.Environment, o options) (err error) {
	dev, err := vmm.Open(fmt.Sprintf("cuda:%d", env.LocalRank))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	g, err := collective.Join(ctx, dev, collective.Options{Timeout: o.timeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	return work(ctx, out, g, o)
}

// work is what each member does.
func work(ctx context.Context, out io.Writer, g *collective.Group, o options) (err error) {
	dev := g.Device()
	st, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	mine, err := growable.NewRows[float32](dev, o.width, growable.RowsOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mine.Close()) }()
	all, err := growable.NewRows[float32](dev, o.width, growable.RowsOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	address := all.Ptr()
	gathered := uint64(0) // bytes of mine
	for round := range o.rounds {
		for i := range o.rows * (g.Rank() + 1) {
			if err := mine.Append(row(g.Rank(), round, i, o.width)...); err != nil {
				return err
			}
		}
		added := mine.Range().Len() - gathered
		if _, err := g.AllGather(ctx, st, all, collective.Part(mine, gathered, added)); err != nil {
			return err
		}
		gathered += added
	}
	if err := g.Sync(ctx, st); err != nil {
		return err
	}
	members := g.Size()
	if want := o.rounds * o.rows * members * (members + 1) / 2; all.Len() != want {
		return fmt.Errorf("%d rows, not %d", all.Len(), want)
	}
	if all.Ptr() != address {
		return fmt.Errorf("the rows moved from %v to %v", address, all.Ptr())
	}
	if g.Rank() != 0 {
		return nil
	}
	return search(out, all, members, o)
}

// row makes a row that is another for each rank, round and i.
func row(rank, round, i, width int) []float32 {
	all := make([]float32, width)
	for j := range all {
		all[j] = float32(math.Sin(float64(1+rank)*float64(j+1) + float64(round)/8 + float64(i)/1024))
	}
	return all
}

// search prints the row nearest to one that the last member has appended in the last round.
func search(out io.Writer, all *growable.Rows[float32], members int, o options) error {
	query := row(members-1, o.rounds-1, o.rows*members/2, o.width)
	type found struct {
		at       int
		distance float64
	}
	best, at := found{-1, math.Inf(1)}, 0
	for x, err := range all.All() {
		if err != nil {
			return err
		}
		var d float64
		for j := range x {
			d += float64(x[j]-query[j]) * float64(x[j]-query[j])
		}
		if d < best.distance {
			best = found{at, d}
		}
		at++
	}
	fmt.Fprintf(out, "%d rows of %d members; the nearest is row %d, at a distance of %g\n", at, members, best.at, math.Sqrt(best.distance))
	if best.distance != 0 {
		return errors.New("the row is not there as it was appended")
	}
	return nil
}
