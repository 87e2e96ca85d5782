// Command elastic serves a language model in two processes that share the memory of one device: each has a
// cache of keys and values, and one is busy while the other is quiet. Try it, on host memory or a GPU:
//
//	go run ./examples/elastic
//	go run ./examples/elastic -device cuda:0 -budget 65536 -token 512
//
// It plays the same requests three times, and prints what became of them:
//
//   - halves: each process has a limit of half the memory.
//   - none: no one coordinates. Each process takes what it needs. On a GPU the parent first takes all memory but the
//     budget, so that it really runs out. On the host there is more than the budget, so no request is refused. Column
//     "over" counts the steps after which both together had more: a GPU would have been full.
//   - budget: both are members of a budget, whose broker is the parent. A process that needs memory gets what the
//     other one does not use. If that is not enough, the one that has more than its share drops its newest requests.
//
// # The requests
//
// A step is 20 ms of a clock of its own, so that figures do not depend on the machine. In a step a worker appends one
// token to each request that runs, and computes all tokens of requests that begin; then it is the other one's turn.
// Each worker is busy for 10 s and quiet for 10 s, while the other one is quiet and busy. Requests arrive at random
// (Poisson): 14.5 a second at a busy worker and 1.8 at a quiet one if the budget has room for 16,384 tokens, and in
// proportion to the budget otherwise. A prompt has 64 to 448 tokens (uniform). An output has 128 on average
// (exponential), at least 16 and at most 512. A token has 32 KiB of keys and values, as of 16 layers with 8 heads of
// 64 numbers. A client leaves after 5 s in the queue.
//
// So on average a worker has work for nine tenths of its half, and while it is busy for 1.6 halves.
//
// # What is printed
//
//   - tokens of outputs, in all and a second; requests served; clients that left
//   - p50, p90, p99: the wait of a request until it began, or its client left
//   - refused: a request got no memory for its next token, so the newest one was dropped
//   - dropped: a request was dropped since the other worker needed memory
//   - again: tokens of those, which are computed again
//   - MiB: the most memory that both had, as seen from outside every 10 ms
//   - over: steps after which both had created more than the budget
//
// When a request ends, the keys and values of all its tokens but the last are compared with what was appended.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// options are the flags of the parent, which it passes to the workers.
type options struct {
	Device, Mode  string
	Seconds       int
	Seed          uint64
	Budget, Token uint64 // bytes
	Worker        int
	Path          string // of the broker
}

func main() {
	if text := os.Getenv(workerEnv); text != "" {
		if err := work(text, pipes{os.Stdin, os.Stdout}); err != nil {
			log.Fatal(err)
		}
		return
	}
	var o options
	var budget, token uint64
	flag.StringVar(&o.Device, "device", "host:0", "which `device`: host:0, cuda:0")
	flag.StringVar(&o.Mode, "mode", "all", "halves, none, budget or all")
	flag.IntVar(&o.Seconds, "seconds", 60, "`seconds` of requests, 50 steps each")
	flag.Uint64Var(&o.Seed, "seed", 1, "of the requests")
	flag.Uint64Var(&budget, "budget", 512, "`MiB` for both workers")
	flag.Uint64Var(&token, "token", 32, "`KiB` of keys and values of a token")
	flag.Parse()
	o.Budget, o.Token = budget<<20, token<<10
	if err := run(os.Stdout, o); err != nil {
		log.Fatal(err)
	}
}

var modes = []string{"halves", "none", "budget"}

// run plays one mode or all, and prints a line for each.
func run(w io.Writer, o options) error {
	chosen := []string{o.Mode}
	if o.Mode == "all" {
		chosen = modes
	}
	if o.Token == 0 || o.Budget/2/o.Token < maxTokens || o.Seconds < 1 {
		return errors.New("-budget: half of it must have room for one request; -seconds: at least 1")
	}
	fmt.Fprintf(w, heading, "mode", "tokens", "a second", "served", "left", "p50", "p90", "p99", "refused", "dropped", "again", "MiB", "over")
	for _, o.Mode = range chosen {
		if !slices.Contains(modes, o.Mode) {
			return fmt.Errorf("no mode %q", o.Mode)
		}
		r, err := play(o)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Mode, err)
		}
		fmt.Fprintf(w, line, o.Mode, r.Tokens, r.Tokens/o.Seconds, r.Served, r.Left, r.wait(0.5), r.wait(0.9), r.wait(0.99),
			r.Refused, r.Dropped, r.Again, r.peak>>20, r.over)
	}
	return nil
}

const (
	heading = "%-6s %8s %8s %7s %6s %6s %6s %6s %8s %8s %8s %6s %6s\n"
	line    = "%-6s %8d %8d %7d %6d %6v %6v %6v %8d %8d %8d %6d %6d\n"
)

// What the package comment says.
const (
	stepTime = 20 * time.Millisecond
	phase    = 10 * time.Second / stepTime // steps in which a worker stays busy, or quiet
	patience = 5 * time.Second / stepTime  // steps after which a client leaves the queue
	busy     = 14.5                        // requests a second
	quiet    = 1.8
	of       = 16384 // tokens for which the budget has room, at these rates

	leastPrompt, mostPrompt             = 64, 448
	leastOutput, meanOutput, mostOutput = 16, 128, 512
	ahead                               = 64 // tokens in a chunk of memory
	maxTokens                           = mostPrompt + mostOutput + ahead
)

// request is one request. It is in the queue or in a slot.
type request struct {
	seed    uint64
	arrived int // the step
	begun   bool
	prompt  int
	output  int
	made    int // tokens of the output
}

// has is how many tokens have keys and values.
func (r *request) has() int { return r.prompt + r.made }

// arrive makes the requests that arrive at a worker at a step. They do not depend on what became of others.
func arrive(o options, random *rand.Rand, step int) (all []*request) {
	rate := busy
	if (step/int(phase)+o.Worker)%2 == 1 {
		rate = quiet
	}
	least := math.Exp(-rate * stepTime.Seconds() * float64(o.Budget/o.Token) / of)
	for p := random.Float64(); p > least; p *= random.Float64() {
		all = append(all, &request{
			seed:    random.Uint64(),
			arrived: step,
			prompt:  leastPrompt + random.IntN(mostPrompt-leastPrompt+1),
			output:  min(max(int(meanOutput*random.ExpFloat64()), leastOutput), mostOutput),
		})
	}
	return all
}
