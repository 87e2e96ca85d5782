package collectivetest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/hostengine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// survivor is a member with memory that outlives its group.
type survivor struct {
	g         *collective.Group
	st        *vmm.Stream
	all, mine *growable.Vector[uint64]
	want      []uint64 // what all has
	at        vmm.Ptr  // where all was
}

func newSurvivor(t *testing.T, g *collective.Group) *survivor {
	t.Helper()
	s := &survivor{g: g, st: newStream(t, g.Device())}
	for _, v := range []**growable.Vector[uint64]{&s.all, &s.mine} {
		var err error
		*v, err = growable.New[uint64](g.Device(), growable.Options{MaxLen: 1 << 20})
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, errors.Join(s.all.Close(), s.mine.Close(), s.st.Close())) })
	for range g.Rank() + 1 {
		require.NoError(t, s.mine.Append(uint64(g.Rank())))
	}
	return s
}

// sumOfFirst is a call that all members can make.
func sumOfFirst(s *survivor) collective.Op {
	first := collective.Part(s.mine, 0, 8)
	return collective.AllReduce(first, first, collective.Uint64, collective.Sum)
}

// gather gathers what the members have whose old ranks are these.
func (s *survivor) gather(ctx context.Context, ranks []int) error {
	if _, err := s.g.AllGather(ctx, s.st, s.all, s.mine); err != nil {
		return err
	}
	for _, rank := range ranks {
		for range rank + 1 {
			s.want = append(s.want, uint64(rank))
		}
	}
	return s.g.Sync(ctx, s.st)
}

// goOn shrinks the group of each, and gathers 100 times.
func goOn(t *testing.T, all []*survivor, ranks []int) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for i, s := range all {
		s.at = s.all.Range().Ptr()
		wg.Go(func() {
			next, err := s.g.Shrink(t.Context())
			if err != nil {
				errs[i] = err
				return
			}
			s.g = next
			for k := 0; k < 100 && err == nil; k++ {
				err = s.gather(t.Context(), ranks)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	for i, s := range all {
		require.Equal(t, s.at, s.all.Range().Ptr(), "memory stays where it is")
		require.Equal(t, i, s.g.Rank())
		require.Equal(t, len(all), s.g.Size())
		got := make([]uint64, s.all.Len())
		_, err := s.all.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, s.want, got)
		wg.Go(func() { errs[i] = s.g.Close() })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

// others is a list without one of its elements.
func others[T any](all []T, but int) []T {
	left := append([]T(nil), all[:but]...)
	return append(left, all[but+1:]...)
}

// TestShrink: whichever member dies, before a call, with one that is queued or in one that waits,
// the others go on, with the vectors they had.
func TestShrink(t *testing.T) {
	for victim := range 3 {
		for name, call := range map[string]func(s *survivor) error{
			"before": func(*survivor) error { return nil },
			"queued": func(s *survivor) error {
				return s.g.Do(t.Context(), s.st, sumOfFirst(s))
			},
			"waiting": func(s *survivor) error {
				_, err := s.g.AllGather(t.Context(), s.st, s.all, s.mine)
				return err
			},
		} {
			t.Run(fmt.Sprintf("rank %d, %s", victim, name), func(t *testing.T) {
				t.Parallel()
				var all []*survivor
				for _, g := range collectivetest.Groups(t, 3) {
					all = append(all, newSurvivor(t, g))
				}
				left := others(all, victim)
				var wg sync.WaitGroup
				for _, s := range left {
					wg.Go(func() {
						err := call(s)
						if name == "waiting" && !errors.Is(err, collective.ErrPeerGone) {
							t.Errorf("%v", err)
						}
					})
				}
				if name == "queued" {
					wg.Wait()
				}
				require.NoError(t, collectivetest.Kill(all[victim].g))
				wg.Wait()
				for _, s := range left {
					if name == "queued" {
						err := s.st.Sync()
						require.ErrorIs(t, err, collective.ErrPeerGone)
						require.ErrorContains(t, err, fmt.Sprintf("rank %d", victim))
						require.NoError(t, s.mine.SetLen(0))
						for range s.g.Rank() + 1 {
							require.NoError(t, s.mine.Append(uint64(s.g.Rank())))
						}
					}
				}
				goOn(t, left, others([]int{0, 1, 2}, victim))
			})
		}
	}
}

// TestShrinkRefused: without a group, without connections, and after the end.
func TestShrinkRefused(t *testing.T) {
	_, err := (*collective.Group)(nil).Shrink(t.Context())
	require.ErrorIs(t, err, vmm.ErrInvalid)
	g := collectivetest.New(t, collectivetest.Options{Silent: true}, vmmtest.Device(t))[0]
	_, err = g.Shrink(t.Context())
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	g = collectivetest.Groups(t, 1)[0]
	next, err := g.Shrink(t.Context())
	require.NoError(t, err, "one alone lives")
	require.NoError(t, next.Close())
	_, err = g.Shrink(t.Context())
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// The member that is killed is a process of its own. It meets the others, and makes no call.

const (
	victimVar   = "VMM_TEST_VICTIM_MEETS_AT"
	victimsRank = "VMM_TEST_VICTIM_RANK"
)

// TestVictim is what that process runs.
func TestVictim(t *testing.T) {
	at := os.Getenv(victimVar)
	if at == "" {
		t.Skip("of TestShrinkAfterSIGKILL")
	}
	rank, err := strconv.Atoi(os.Getenv(victimsRank))
	require.NoError(t, err)
	g, err := collectivetest.JoinOn(t.Context(), vmmtest.Device(t), collective.Options{Rank: rank, Size: 3}, &hostengine.Worlds{}, address(at))
	require.NoError(t, err)
	fmt.Println("joined")
	<-t.Context().Done()
	_ = g.Abort()
}

// address is a listener of another process.
type address string

func (address) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (address) Close() error              { return nil }
func (a address) Addr() net.Addr          { return a }
func (address) Network() string           { return "tcp" }
func (a address) String() string          { return string(a) }

// TestShrinkAfterSIGKILL: three members, of which one is a process that SIGKILL ends while the
// others wait for it.
func TestShrinkAfterSIGKILL(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for range testgate.Effort(2, 20, 20) {
		for _, victim := range []int{1, 2} {
			at, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestVictim$", "-test.v")
			cmd.Env = append(os.Environ(), victimVar+"="+at.Addr().String(), victimsRank+"="+strconv.Itoa(victim))
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())

			worlds := &hostengine.Worlds{}
			ranks := others([]int{0, 1, 2}, victim)
			groups, errs := make([]*collective.Group, len(ranks)), make([]error, len(ranks))
			var wg sync.WaitGroup
			for i, rank := range ranks {
				dev := vmmtest.Device(t)
				wg.Go(func() {
					groups[i], errs[i] = collectivetest.JoinOn(t.Context(), dev, collective.Options{Rank: rank, Size: 3, Timeout: time.Minute}, worlds, at)
				})
			}
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
			for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "joined"; {
			}
			var left []*survivor
			for _, g := range groups {
				s := newSurvivor(t, g)
				left = append(left, s)
				require.NoError(t, g.Do(t.Context(), s.st, sumOfFirst(s)))
			}
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			for i, s := range left {
				_, err := s.mine.ReadAt(make([]uint64, 1), 0)
				require.ErrorIs(t, err, collective.ErrPeerGone)
				require.ErrorContains(t, err, fmt.Sprintf("rank %d", victim))
				require.NoError(t, s.mine.SetLen(0))
				for range ranks[i] + 1 {
					require.NoError(t, s.mine.Append(uint64(ranks[i])))
				}
			}
			goOn(t, left, ranks)
		}
	}
}
