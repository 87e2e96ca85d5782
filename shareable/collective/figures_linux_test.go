//go:build cgo && linux

package collective

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/internal/testing/nccloop"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
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
	nonblocking  func() (time.Duration, error) // theirs with a communicator that does not block
	target       float64
}

func playFigures(m *process) (err error) {
	// The communicator that a process makes first gathers a little slower than the next, in C as
	// well: this group's is only for the identity of the C program's.
	first, err := Join(m.ctx, m.dev, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	f := &figures{process: m, g: first, n: 20, rounds: 20, size: 1 << 30} // 20 times as nccl-tests do
	if testShort() {
		f.n, f.rounds, f.size = 2, 5, 128<<20
	}
	if f.loop, err = f.openLoop(nccloop.Blocking); err != nil {
		return err
	}
	if err := first.Close(); err != nil {
		return err
	}
	g, err := Join(m.ctx, m.dev, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	f.g = g
	if f.nonblocking, err = f.openLoop(nccloop.Nonblocking); err != nil {
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
	return errors.Join(f.loop.Close(), f.nonblocking.Close(), g.Close(), f.src.Close(), f.dst.Close(), f.st.Close())
}

type figures struct {
	*process
	g           *Group
	loop        *nccloop.Loop // a program in C as most are
	nonblocking *nccloop.Loop
	st          *vmm.Stream
	src, dst    *vmm.Range
	n           int
	rounds      int
	size        uint64
}

// The libraries of the C program.
const cudaName, ncclName = "libcuda.so.1", "libnccl.so.2"

// openLoop has the C program's members meet over the group.
func (f *figures) openLoop(way nccloop.Way) (*nccloop.Loop, error) {
	var id [128]byte
	if f.g.Rank() == 0 {
		var err error
		if id, err = nccloop.NewID(ncclName); err != nil {
			return nil, err
		}
	}
	for at := 0; at < len(id); at += 32 {
		words := make([]uint64, 4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint64(id[at+8*i:])
		}
		headers, err := f.g.allGatherWords(f.ctx, words...)
		if err != nil {
			return nil, err
		}
		for i, w := range headers[0] {
			binary.LittleEndian.PutUint64(id[at+8*i:], w)
		}
	}
	return nccloop.Open(cudaName, ncclName, f.dev.Info().Ordinal, id, f.g.Rank(), f.g.Size(), way, 2*f.size)
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
	c := func(l *nccloop.Loop, op nccloop.Op, bytes []uint64, n int) func() (time.Duration, error) {
		return func() (time.Duration, error) { return l.Run(op, bytes, n) }
	}
	versions := func(op nccloop.Op, bytes []uint64, n int) (a, b func() (time.Duration, error)) {
		return c(f.loop, op, bytes, n), c(f.nonblocking, op, bytes, n)
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
	all := []contest{
		{name: "AllReduce", bytes: f.size, n: f.n, ours: f.do(AllReduce(half, f.src, Float32, Sum)), target: 0.99},
		{name: "AllGather", bytes: 2 * f.size, n: f.n, ours: f.do(AllGatherInto(f.dst, f.src)), target: 0.99},
		{name: "Send and Recv", bytes: f.size, n: f.n, ours: f.do(Send(f.src, other), Recv(half, other)), target: 0.99},
		{name: "AllGather of 200 and 300 MiB", bytes: unequal[0] + unequal[1], n: 1, ours: gather, target: 0.95},
	}
	for i, op := range []nccloop.Op{nccloop.AllReduce, nccloop.AllGather, nccloop.SendRecv, nccloop.GatherUnequal} {
		sends := same
		if op == nccloop.GatherUnequal {
			sends = unequal
		}
		all[i].theirs, all[i].nonblocking = versions(op, sends, all[i].n)
	}
	return all
}

// compare measures by turns. All members make the same calls in the same order. Each turn begins
// when all members are there, and takes as long as the member that takes longest.
func (f *figures) compare(c contest) (failed error) {
	note := func(way func() (time.Duration, error)) func() time.Duration {
		return func() time.Duration {
			took, err := way()
			all, lost := f.g.allGatherWords(f.ctx, uint64(took))
			if failed = errors.Join(failed, err, lost); failed != nil {
				return took
			}
			for _, words := range all {
				took = max(took, time.Duration(words[0]))
			}
			return took
		}
	}
	rounds := f.rounds
	if c.n == 1 {
		rounds *= 5
	}
	onOurs := func() (time.Duration, error) { // tells what is the memory's part
		f.nonblocking.Use(uint64(f.src.Ptr()), uint64(f.dst.Ptr()))
		defer f.nonblocking.Use(0, 0)
		return c.nonblocking()
	}
	took := versus.Rounds(rounds, note(c.ours), note(c.theirs), note(c.nonblocking), note(onOurs))
	if failed != nil || f.g.Rank() != 0 {
		return failed
	}
	low, high := versus.Interval(took[1], took[0]) // of the speeds
	gb := func(ns float64) float64 { return float64(c.bytes) * float64(c.n) / ns }
	a, b := versus.Median(took[0]), versus.Median(took[1])
	fmt.Printf("%s, %d MiB: %.1f GB/s, C %.1f: %.3f [%.3f, %.3f], target %.2f: %s; C that does not block %.1f, and on our memory %.1f\n",
		c.name, c.bytes>>20, gb(a), gb(b), b/a, low, high, c.target, versus.Verdict(low >= c.target), gb(versus.Median(took[2])), gb(versus.Median(took[3])))
	return nil
}
