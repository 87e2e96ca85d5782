//go:build cgo && linux

package collective

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

func testShort() bool { return os.Getenv("MEMBER_SHORT") != "" }

// value is the element i of what a member appends.
func value(rank, i int) uint32 { return uint32(rank*40_503+i) * 2_654_435_761 }

// addend is how many elements a member appends in a round.
func addend(rank, round int) int { return (3+rank+round%5)<<18 + 17*round + rank }

const rounds = 16

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

// playRounds appends and gathers, and then looks at all that was gathered.
func playRounds(m *process) error {
	g, err := Join(m.ctx, m.dev, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	st, err := m.dev.NewStream()
	if err != nil {
		return err
	}
	var v [2]*growable.Vector[uint32]
	var regs [2]*Registration
	for i := range v {
		if v[i], err = growable.New[uint32](m.dev, growable.Options{}); err != nil {
			return err
		}
		if regs[i], err = g.Register(m.ctx, v[i], RegisterOptions{}); err != nil {
			return err
		}
	}
	mine, all := v[0], v[1]
	at := [2]vmm.Ptr{mine.Ptr(), all.Ptr()}
	begun := time.Now()
	for round := range rounds {
		from := mine.Range().Len()
		part := make([]uint32, addend(g.Rank(), round))
		for i := range part {
			part[i] = value(g.Rank(), mine.Len()+i)
		}
		if err := mine.Append(part...); err != nil {
			return err
		}
		if _, err := g.AllGather(m.ctx, st, all, Part(mine, from, mine.Range().Len()-from)); err != nil {
			return err
		}
	}
	if err := g.Sync(m.ctx, st); err != nil {
		return err
	}
	took := time.Since(begun)
	if at != [2]vmm.Ptr{mine.Ptr(), all.Ptr()} {
		return errors.New("an address has moved")
	}
	if err := gathered(all, g.Size()); err != nil {
		return err
	}
	if err := sums(m, g, st, all); err != nil {
		return err
	}
	chunks := 0
	for i, r := range regs {
		if err := r.Err(); err != nil {
			return err
		}
		if n := len(v[i].Range().Segments()); r.Chunks() != n {
			return fmt.Errorf("%d of %d chunks are registered", r.Chunks(), n)
		}
		chunks += r.Chunks()
	}
	if s := g.Stats(); s.Registered != uint64(chunks) || s.Deregistered != 0 {
		return fmt.Errorf("%d chunks, and %+v", chunks, s)
	}
	if err := errors.Join(mine.Close(), all.Close()); err != nil { // while they are registered
		return err
	}
	s := g.Stats()
	if s.Registered != s.Deregistered {
		return fmt.Errorf("at the end: %+v", s)
	}
	fmt.Printf("%d rounds in %v, %d chunks registered, %d undone\n", rounds, took.Round(time.Millisecond), s.Registered, s.Deregistered)
	return errors.Join(g.Close(), st.Close())
}

// gathered looks at each element that was gathered.
func gathered(all *growable.Vector[uint32], size int) error {
	have := make([]uint32, all.Len())
	if _, err := all.ReadAt(have, 0); err != nil {
		return err
	}
	at, next := 0, make([]int, size)
	for round := range rounds {
		for rank := range size {
			for range addend(rank, round) {
				if at == len(have) || have[at] != value(rank, next[rank]) {
					return fmt.Errorf("element %d, of rank %d in round %d, is wrong; there are %d", at, rank, round, len(have))
				}
				at++
				next[rank]++
			}
		}
	}
	if at != len(have) {
		return fmt.Errorf("%d elements instead of %d", len(have), at)
	}
	return nil
}

// sums compares the sum of all elements, by the members together, with the one made here.
func sums(m *process, g *Group, st *vmm.Stream, all *growable.Vector[uint32]) error {
	total, err := growable.New[uint32](m.dev, growable.Options{})
	if err != nil {
		return err
	}
	if err := errors.Join(total.Grow(all.Len()), total.SetLen(all.Len())); err != nil {
		return err
	}
	if err := g.Do(m.ctx, st, AllReduce(total, all, Uint32, Sum)); err != nil {
		return err
	}
	if err := g.Sync(m.ctx, st); err != nil {
		return err
	}
	a, b := make([]uint32, all.Len()), make([]uint32, all.Len())
	_, errA := all.ReadAt(a, 0)
	_, errB := total.ReadAt(b, 0)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	for i := range a {
		if b[i] != a[i]*uint32(g.Size()) {
			return fmt.Errorf("the sum of element %d is %d, not %d", i, b[i], a[i]*uint32(g.Size()))
		}
	}
	return total.Close()
}
