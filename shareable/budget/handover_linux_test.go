package budget_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// roleOf has this binary be a member of a hand-over.
const roleOf = "BUDGET_TEST_MEMBER"

func TestMain(m *testing.M) {
	if text := os.Getenv(roleOf); text != "" {
		var r role
		if err := errors.Join(json.Unmarshal([]byte(text), &r), r.run()); err != nil {
			fmt.Fprintln(os.Stderr, r.Name+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// role is what a member does.
type role struct {
	Name, Device, Path, Share string
	Base, Max, Chunk, Small   uint64
	Works                     bool // a graph is replayed on its memory, and a reader follows a vector of it
}

// reply is what it says after each command: "grow", to so many bytes, or "verify".
type reply struct {
	Took   int64
	Chunks int
	Err    string
	Stats  budget.Stats
	Loops  int64
}

func (p reply) failed() string { return p.Err }

// handed is a member's own state.
type handed struct {
	g     *vmm.Range
	k     *kernel.Builtins
	s     *vmm.Stream
	seed  uint64
	loops atomic.Int64
}

func (r role) run() (err error) {
	dev, err := vmm.Open(r.Device)
	if err != nil {
		return err
	}
	if r.Name == "reader" {
		return r.read(dev)
	}
	ctx := context.Background()
	m, err := budget.Join(ctx, r.Path, dev, budget.JoinOptions{Name: r.Name, Timeout: time.Minute})
	if err != nil {
		return err
	}
	h := &handed{}
	if h.g, err = dev.NewRange(vmm.RangeOptions{Max: r.Max, Chunk: r.Chunk}); err != nil {
		return err
	}
	if h.k, err = kernel.LoadBuiltins(dev); err != nil {
		return err
	}
	if h.s, err = dev.NewStream(); err != nil {
		return err
	}
	stop := dev.OnPressure(func(need error) bool { return h.give(need) })
	defer stop()
	if err := h.resize(r.Base); err != nil {
		return err
	}
	if r.Works {
		stop, err := h.work(dev, r.Share, r.Small)
		if err != nil {
			return err
		}
		defer stop()
	}
	fmt.Println("{}") // it is ready
	for out := json.NewEncoder(os.Stdout); ; {
		var word string
		var bytes uint64
		if _, err := fmt.Scanln(&word, &bytes); err != nil {
			return nil // the test has ended
		}
		var p reply
		if p.Took, err = h.do(word, bytes); err != nil {
			p.Err = err.Error()
		}
		p.Chunks, p.Stats, p.Loops = h.g.Stats().Chunks, m.Stats(), h.loops.Load()
		if err := out.Encode(p); err != nil {
			return err
		}
	}
}

func (h *handed) do(word string, bytes uint64) (took int64, err error) {
	begin := time.Now()
	switch word {
	case "grow":
		if err = h.g.Grow(bytes - h.g.Len()); err == nil {
			took = time.Since(begin).Nanoseconds()
			err = h.resize(bytes)
		}
	case "verify":
		err = h.verify()
	}
	return took, err
}

// resize brings Len to n bytes, and writes all of them.
func (h *handed) resize(n uint64) error {
	h.seed++
	return errors.Join(h.g.Grow(n-min(n, h.g.Len())), h.g.SetLen(n), h.k.FillPattern(h.s, h.g, kernel.Pattern{Seed: h.seed}), h.s.Sync())
}

func (h *handed) verify() error { return h.verifyAll(h.g) }

func (h *handed) verifyAll(m kernel.Memory) error {
	bad, first, err := h.k.VerifyPattern(h.s, m, kernel.Pattern{Seed: h.seed})
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d words are wrong, the first at %d", bad, first)
	}
	return err
}

// give is the function of OnPressure: it gives up the end of the vector.
func (h *handed) give(need error) bool {
	var e *vmm.OpError
	if !errors.As(need, &e) || e.Op != "give" {
		return false
	}
	n := h.g.Len()
	return h.g.SetLen(n-min(n, e.Size)) == nil && h.g.Clip() == nil && h.g.Len() < n
}

// read verifies what another process publishes, until the test ends.
func (r role) read(dev *vmm.Device) error {
	v, err := shareable.Attach(context.Background(), r.Share, "small", dev, shareable.AttachOptions{Wait: true})
	if err != nil {
		return err
	}
	if err := v.Wait(context.Background(), r.Small); err != nil {
		return err
	}
	k, err := kernel.LoadBuiltins(dev)
	if err != nil {
		return err
	}
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	h := &handed{k: k, s: s, seed: 1}
	fmt.Println("{}") // it is ready
	go func() {
		for {
			if err := h.verifyAll(v); err != nil {
				fmt.Fprintln(os.Stderr, "reader:", err)
				os.Exit(1)
			}
			h.loops.Add(1)
		}
	}()
	for out := json.NewEncoder(os.Stdout); ; {
		if _, err := fmt.Scanln(new(string), new(uint64)); err != nil {
			return nil // the test has ended
		}
		if err := out.Encode(reply{Loops: h.loops.Load()}); err != nil {
			return err
		}
	}
}

// work replays a captured graph on memory of its own, which it publishes, without end.
func (h *handed) work(dev *vmm.Device, path string, size uint64) (stop func(), err error) {
	small, err := dev.NewRange(vmm.RangeOptions{Max: size, Share: vmm.ShareFD})
	if err != nil {
		return nil, err
	}
	s, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(small.Grow(size), small.SetLen(size)); err != nil {
		return nil, err
	}
	if err := errors.Join(h.k.FillPattern(s, small, kernel.Pattern{Seed: 1}), s.Sync()); err != nil {
		return nil, err
	}
	server, err := shareable.Listen(dev, path, shareable.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := server.Publish("small", small, shareable.PublishOptions{}); err != nil {
		return nil, err
	}
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	if err := h.k.FillPattern(s, small, kernel.Pattern{Seed: 1}); err != nil {
		return nil, err
	}
	graph, err := s.EndCapture()
	if err != nil {
		return nil, err
	}
	exec, err := graph.Instantiate()
	if err != nil {
		return nil, err
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
			}
			if err := errors.Join(exec.Launch(s), s.Sync()); err != nil {
				fmt.Fprintln(os.Stderr, "graph:", err)
				return
			}
			h.loops.Add(1)
		}
	}()
	return func() { close(end); <-ended }, nil
}

// child is another process, which replies to each command with a line of JSON.
type child[R interface{ failed() string }] struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// startChild returns once the process has said that it is ready, with a reply to no command.
func startChild[R interface{ failed() string }](t *testing.T, cmd *exec.Cmd) *child[R] {
	t.Helper()
	c := &child[R]{t: t, cmd: cmd}
	cmd.Stderr = os.Stderr
	var err error
	c.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	c.out = json.NewDecoder(out)
	require.NoError(t, cmd.Start())
	t.Cleanup(c.end)
	c.reply()
	return c
}

func (c *child[R]) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

func (c *child[R]) reply() (p R) {
	c.t.Helper()
	require.NoError(c.t, c.out.Decode(&p))
	require.Empty(c.t, p.failed())
	return p
}

func (c *child[R]) do(word string, bytes uint64) R {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, word, bytes)
	require.NoError(c.t, err)
	return c.reply()
}

// startRole starts a member in a process of its own.
func startRole(t *testing.T, r role) *child[reply] {
	t.Helper()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleOf+"="+string(text))
	return startChild[reply](t, cmd)
}

// times are the times of hand-overs.
type times []int64

func (all times) at(part float64) time.Duration {
	slices.Sort(all)
	return time.Duration(all[min(int(part*float64(len(all))), len(all)-1)])
}

// interval is the 95 % interval of the ratio of a quantile of all to that of others, by resampling both.
func (all times) interval(part float64, others times) (low, high float64) {
	random := rand.New(rand.NewPCG(65, 65))
	draw := func(from times) float64 {
		some := make(times, len(from))
		for i := range some {
			some[i] = from[random.IntN(len(from))]
		}
		return float64(some.at(part))
	}
	ratios := make([]float64, 2000)
	for i := range ratios {
		ratios[i] = draw(all) / draw(others)
	}
	slices.Sort(ratios)
	return ratios[50], ratios[1949]
}

func (all times) String() string {
	return fmt.Sprintf("p50 %v, p99 %v of %d", all.at(0.5).Round(10*time.Microsecond), all.at(0.99).Round(10*time.Microsecond), len(all))
}

// TestHandOver: memory goes from one process to another and back, while a captured graph of the first one is
// replayed, and a third process reads what that one publishes; every byte of both is verified after each hand-over. On a GPU the times are set beside those of two
// processes in C that make the same calls, in blocks that take turns.
func TestHandOver(t *testing.T) {
	for _, drv := range handOverDevices(t) {
		for _, c := range []struct {
			name   string
			chunk  uint64
			rounds int
		}{{"64 KiB", 64 << 10, drv.rounds}, {"2 MiB", 2 << 20, drv.few}, {"64 MiB", 64 << 20, drv.rounds}, {"ladder", 0, drv.rounds}} {
			if fits := c.chunk >= 2<<20 || c.chunk == 0; fits != (drv.c != "") {
				continue
			}
			t.Run(drv.name+" "+c.name, func(t *testing.T) {
				scale := drv.scale
				var ours, cs times
				for left := c.rounds; left > 0; left -= drv.block {
					some, chunks := handOver(t, drv, c.chunk, scale, min(left, drv.block))
					ours = append(ours, some...)
					if drv.c != "" {
						chunk := c.chunk
						if chunk == 0 {
							chunk = max(20*scale/uint64(chunks)&^(2<<20-1), 2<<20)
							for 20*scale%chunk != 0 || 63*scale%chunk != 0 {
								chunk -= 2 << 20
							}
						}
						cs = append(cs, handOverInC(t, drv.c, min(left, drv.block), 63*scale, 43*scale, 20*scale, chunk)...)
					}
				}
				t.Logf("%d GiB in chunks of %s: %v", 20*scale>>30, c.name, ours)
				if drv.c != "" {
					t.Logf("in C: %v", cs)
					for _, q := range []struct{ part, most float64 }{{0.5, 1.3}, {0.99, 2}} {
						low, high := ours.interval(q.part, cs)
						t.Logf("p%.0f: ratio %.3f [%.3f %.3f], target %.1f: %s", 100*q.part, float64(ours.at(q.part))/float64(cs.at(q.part)), low, high, q.most, versus.Verdict(high <= q.most))
					}
				}
			})
		}
	}
}

// handOverDevice is where memory is handed over.
type handOverDevice struct {
	name, c            string
	page, scale        uint64 // scale is 1/126 of the budget
	rounds, few, block int
}

func handOverDevices(t *testing.T) []handOverDevice {
	t.Helper()
	onHost := handOverDevice{name: "host:0?page=64K", page: 64 << 10, scale: 512 << 10, rounds: 8, few: 8, block: 8}
	if testing.Short() {
		onHost.rounds = 2
	}
	all := []handOverDevice{onHost}
	if os.Getenv("VMM_TEST_DRIVER") != "cuda" {
		return all
	}
	rounds, few := 1000, 100
	if text := os.Getenv("BUDGET_TEST_ROUNDS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		require.NoError(t, err)
		few = rounds / 5
	}
	bin := filepath.Join(t.TempDir(), "handover")
	out, err := exec.Command("cc", "-O2", "-I/usr/local/cuda/include", "-o", bin, "testdata/handover.c", "-lcuda", "-lpthread",
		"-L/usr/local/cuda/lib64/stubs", "-L/usr/lib/x86_64-linux-gnu").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return append(all, handOverDevice{name: "cuda:0", c: bin, page: 2 << 20, scale: 1 << 30, rounds: rounds, few: few, block: max(few/2, 20)})
}

// handOver makes so many hand-overs, to and fro, of memory that its owner uses.
func handOver(t *testing.T, drv handOverDevice, chunk, scale uint64, rounds int) (all times, chunks int) {
	t.Helper()
	dev, err := vmm.Open(drv.name)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	small := min(scale, 32<<20)
	kernels := 32 * drv.page // what those of both have, and the other vector
	path := filepath.Join(t.TempDir(), "b.sock")
	share := filepath.Join(t.TempDir(), "s.sock")
	s, err := budget.Serve(path, budget.ServeOptions{Budgets: []budget.Budget{{Device: dev, Bytes: 126*scale + 2*kernels}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	a := startRole(t, role{Name: "a", Device: drv.name, Path: path, Base: 83 * scale, Max: 128 * scale, Chunk: chunk, Works: true, Small: small, Share: share})
	b := startRole(t, role{Name: "b", Device: drv.name, Path: path, Base: 43 * scale, Max: 128 * scale, Chunk: chunk})
	reader := startRole(t, role{Name: "reader", Device: drv.name, Small: small, Share: share})
	was := b.do("verify", 0).Chunks
	for i := range rounds {
		taker, n, least := b, 63*scale, uint64(0) // a holds more than its share
		if i%2 == 1 {
			taker, n, least = a, 83*scale, 41*scale+2*kernels // and now b does
		}
		require.NoError(t, budget.SetTerms(t.Context(), path, dev, budget.Change{Member: "a", Least: &least}, shareable.AttachOptions{}))
		p := taker.do("grow", n)
		all = append(all, p.Took)
		a.do("verify", 0)
		if p = b.do("verify", 0); i == 0 {
			chunks = p.Chunks - was
		}
	}
	require.NotZero(t, a.do("verify", 0).Loops)
	require.NotZero(t, reader.do("verify", 0).Loops)
	reader.end()
	reports, err := budget.Reports(t.Context(), path, dev, shareable.AttachOptions{})
	require.NoError(t, err)
	require.Zero(t, reports[0].Counts.Expired)
	a.end()
	b.end()
	return all, chunks
}

func handOverInC(t *testing.T, bin string, rounds int, a, b, bytes, chunk uint64) (all times) {
	t.Helper()
	cmd := exec.Command(bin, strconv.Itoa(rounds), fmt.Sprint(a), fmt.Sprint(b), fmt.Sprint(bytes), fmt.Sprint(chunk))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	for _, line := range strings.Fields(string(out)) {
		n, err := strconv.ParseInt(line, 10, 64)
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}
