//go:build cgo && linux

package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/internal/nccloop"
	"github.com/cuvmm/cuvmm/internal/versus"
	"github.com/cuvmm/cuvmm/vmm"

	"github.com/stretchr/testify/require"
)

// TestFigures measures calls on vectors that were grown by 64 MiB beside a C program's on
// memory of cuMemAlloc, by turns in the same processes. Missed targets are reported.
func TestFigures(t *testing.T) {
	needsTwo(t)
	playAll(t, "figures", 5*time.Minute)
}

// TestFiguresBetweenHosts is TestFigures as if each process were on a host of its own.
func TestFiguresBetweenHosts(t *testing.T) {
	needsTwo(t)
	playAll(t, "figures", 5*time.Minute, append(sockets, "MEMBER_SHORT=1")...)
}

// contest is one operation, ours and C's, each n times and waited for. GB/s is bytes over
// time, as nccl-tests' algorithm bandwidth.
type contest struct {
	name         string
	bytes        uint64
	n            int
	ours, theirs func() (time.Duration, error)
	target       float64
}

func playFigures(m *process) (err error) {
	g, err := Join(m.ctx, m.dev, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	f := &figures{process: m, g: g, n: 10, rounds: 20, size: 1 << 30}
	if testShort() {
		f.n, f.rounds, f.size = 2, 5, 128<<20
	}
	if f.loop, err = f.openLoop(true); err != nil {
		return err
	}
	if err := f.open(); err != nil {
		return err
	}
	if g.Rank() == 0 {
		fmt.Println(g.Engine())
	}
	for _, c := range f.contests() {
		if err := f.compare(c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := f.overhead(); err != nil {
		return err
	}
	return errors.Join(f.loop.Close(), g.Close(), f.src.Close(), f.dst.Close(), f.st.Close())
}

type figures struct {
	*process
	g        *Group
	loop     *nccloop.Loop
	st       *vmm.Stream
	src, dst *vmm.Range
	n        int
	rounds   int
	size     uint64
}

// openLoop has the C program's members meet over the group.
func (f *figures) openLoop(blocking bool) (*nccloop.Loop, error) {
	const lib = "libnccl.so.2"
	var id [128]byte
	if f.g.Rank() == 0 {
		var err error
		if id, err = nccloop.NewID(lib); err != nil {
			return nil, err
		}
	}
	for at := 0; at < len(id); at += 32 {
		words := make([]uint64, 4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint64(id[at+8*i:])
		}
		told, err := f.g.tell(f.ctx, words...)
		if err != nil {
			return nil, err
		}
		for i, w := range told[0] {
			binary.LittleEndian.PutUint64(id[at+8*i:], w)
		}
	}
	return nccloop.Open("libcuda.so.1", lib, f.dev.Info().Ordinal, id, f.g.Rank(), f.g.Size(), blocking, 2*f.size)
}

func (f *figures) open() (err error) {
	if f.st, err = f.dev.NewStream(); err != nil {
		return err
	}
	if f.src, err = grown(f.dev, f.size); err != nil {
		return err
	}
	f.dst, err = grown(f.dev, 2*f.size)
	return err
}

// do is n times an operation of Group.Do.
func (f *figures) do(op ...Op) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		begun := time.Now()
		for range f.n {
			if err := f.g.Do(f.ctx, f.st, op...); err != nil {
				return 0, err
			}
		}
		err := f.g.Sync(f.ctx, f.st)
		return time.Since(begun), err
	}
}

func (f *figures) contests() []contest {
	same := []uint64{f.size, f.size}
	c := func(op nccloop.Op, bytes []uint64, n int) func() (time.Duration, error) {
		return func() (time.Duration, error) { return f.loop.Run(op, bytes, n) }
	}
	half := Part(f.dst, 0, f.size)
	other := f.g.Rank() ^ 1
	unequal := []uint64{f.size / 1024 * 200, f.size / 1024 * 300}
	gather := func() (time.Duration, error) {
		if err := f.dst.SetLen(0); err != nil {
			return 0, err
		}
		begun := time.Now()
		_, err := f.g.AllGather(f.ctx, f.st, f.dst, Part(f.src, 0, unequal[f.g.Rank()]))
		if err == nil {
			err = f.g.Sync(f.ctx, f.st)
		}
		return time.Since(begun), err
	}
	return []contest{
		{"AllReduce", f.size, f.n, f.do(AllReduce(half, f.src, Float32, Sum)), c(nccloop.AllReduce, same, f.n), 0.99},
		{"AllGather", 2 * f.size, f.n, f.do(AllGatherInto(f.dst, f.src)), c(nccloop.AllGather, same, f.n), 0.99},
		{"Send and Recv", f.size, f.n, f.do(Send(f.src, other), Recv(half, other)), c(nccloop.SendRecv, same, f.n), 0.99},
		{"AllGather of 200 and 300 MiB", unequal[0] + unequal[1], 1, gather, c(nccloop.GatherUnequal, unequal, 1), 0.95},
	}
}

// compare measures by turns. All members make the same calls in the same order.
func (f *figures) compare(c contest) (failed error) {
	note := func(way func() (time.Duration, error)) func() time.Duration {
		return func() time.Duration {
			took, err := way()
			failed = errors.Join(failed, err)
			return took
		}
	}
	rounds := f.rounds
	if c.n == 1 {
		rounds *= 5
	}
	took := versus.Rounds(rounds, note(c.ours), note(c.theirs))
	if failed != nil || f.g.Rank() != 0 {
		return failed
	}
	low, high := versus.Interval(took[1], took[0]) // of the speeds
	gb := func(ns float64) float64 { return float64(c.bytes) * float64(c.n) / ns }
	a, b := versus.Median(took[0]), versus.Median(took[1])
	fmt.Printf("%s, %d MiB: %.1f GB/s, C %.1f: %.3f [%.3f, %.3f], target %.2f: %s\n", c.name, c.bytes>>20, gb(a), gb(b), b/a, low, high, c.target, versus.Verdict(low >= c.target))
	return nil
}

// overhead measures the time to queue a small call, beside the same calls from C, and those of
// a communicator that blocks.
func (f *figures) overhead() (failed error) {
	nonblocking, err := f.openLoop(false)
	if err != nil {
		return err
	}
	small := []uint64{8, 8}
	const n = 200
	a, b := Part(f.dst, 0, 8), Part(f.src, 0, 8)
	if err := f.dst.SetLen(8); err != nil {
		return err
	}
	fromC := func(l *nccloop.Loop) func() time.Duration {
		return func() time.Duration {
			d, err := l.Queue(nccloop.AllReduce, small, n)
			failed = errors.Join(failed, err)
			return d / n
		}
	}
	took := versus.Rounds(3*f.rounds, func() time.Duration {
		begun := time.Now()
		for range n {
			failed = errors.Join(failed, f.g.Do(f.ctx, f.st, AllReduce(a, b, Float32, Sum)))
		}
		d := time.Since(begun)
		failed = errors.Join(failed, f.g.Sync(f.ctx, f.st))
		return d / n
	}, fromC(nonblocking), fromC(f.loop))
	if failed == nil && f.g.Rank() == 0 {
		ours, theirs, blocking := versus.Median(took[0]), versus.Median(took[1]), versus.Median(took[2])
		fmt.Printf("queueing a call: %.0f ns, from C %.0f: %+.0f ns, target 1000: %s; from C with a communicator that blocks %.0f\n", ours, theirs, ours-theirs, versus.Verdict(ours-theirs <= 1000), blocking)
	}
	begun := time.Now()
	const tells = 200
	for range tells {
		if _, err := f.g.tell(f.ctx, 1, 2); err != nil {
			return err
		}
	}
	if f.g.Rank() == 0 {
		fmt.Printf("members tell each other lengths in %v\n", (time.Since(begun) / tells).Round(time.Microsecond))
	}
	return errors.Join(failed, nonblocking.Close())
}

// TestRounds: in sixteen rounds each member's vector grows, and all gather. No byte is wrong,
// no address moves, no chunk is registered twice, and each registration is undone.
func TestRounds(t *testing.T) {
	needsTwo(t)
	for name, env := range map[string][]string{"nvlink": nil, "sockets": sockets} {
		t.Run(name, func(t *testing.T) {
			lines := playAll(t, "rounds", 2*time.Minute, env...)
			require.Len(t, lines, 2)
		})
	}
}
