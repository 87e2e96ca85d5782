package collectivetest_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// live gathers and shrinks until the member is alone, or ctx ends, which is its death at whatever
// it does then.
func (s *survivor) live(ctx context.Context) error {
	for {
		err := s.all.SetLen(0)
		if err == nil {
			_, err = s.g.AllGather(ctx, s.st, s.all, s.mine)
		}
		if err == nil {
			err = s.g.Sync(ctx, s.st)
		}
		if err == nil && s.g.Size() == 1 {
			return s.g.Close()
		}
		for err != nil {
			if ctx.Err() != nil {
				return collectivetest.Kill(s.g)
			}
			ofOthers := errors.Is(err, collective.ErrAborted) || errors.Is(err, collective.ErrPeerGone) || errors.Is(err, os.ErrDeadlineExceeded)
			if !ofOthers || s.g.Size() == 1 {
				return errors.Join(err, s.g.Abort())
			}
			var next *collective.Group
			if next, err = s.g.Shrink(ctx); err == nil {
				s.g = next
			}
		}
	}
}

// TestShrinkToOne: members die in any order, one after the other or several at once, also while the
// others shrink, until one is left. It goes on alone, with what it had.
func TestShrinkToOne(t *testing.T) {
	for seed := range uint64(testgate.Effort(3, 20, 100)) {
		random := rand.New(rand.NewPCG(seed, 32))
		n := 2 + random.IntN(6)
		devs := make([]*vmm.Device, n)
		for i := range devs {
			devs[i] = vmmtest.Device(t)
		}
		var lives sync.WaitGroup
		all, die, errs := make([]*survivor, n), make([]context.CancelFunc, n), make([]error, n)
		for i, g := range collectivetest.New(t, collectivetest.Options{}, devs...) {
			all[i] = newSurvivor(t, g)
			var ctx context.Context
			ctx, die[i] = context.WithCancel(t.Context())
			lives.Go(func() { errs[i] = all[i].live(ctx) })
		}
		deaths := random.Perm(n)
		for _, victim := range deaths[1:] {
			<-time.After(time.Duration(max(0, random.IntN(60)-20)) * time.Millisecond)
			die[victim]()
		}
		lives.Wait()
		require.NoError(t, errors.Join(errs...), "seed %d, %d members", seed, n)
		last := all[deaths[0]]
		require.Equal(t, 1, last.g.Size())
		got := make([]uint64, last.all.Len())
		_, err := last.all.ReadAt(got, 0)
		require.NoError(t, err)
		require.Len(t, got, deaths[0]+1)
		for _, x := range got {
			require.EqualValues(t, deaths[0], x)
		}
		die[deaths[0]]()
	}
}

// TestAllCallsAtOnce: whatever is called beside what, every call returns, and the devices can be
// closed.
func TestAllCallsAtOnce(t *testing.T) {
	for seed := range uint64(testgate.Effort(3, 20, 100)) {
		var members, calls sync.WaitGroup
		for i, g := range collectivetest.Groups(t, 3) {
			s := newSurvivor(t, g)
			ctx, cancel := context.WithCancel(t.Context())
			t.Cleanup(cancel)
			again := func(f func() error) {
				calls.Go(func() {
					for f() == nil {
					}
				})
			}
			again(func() error { return g.Do(ctx, s.st, sumOfFirst(s)) })
			again(func() error { return g.Sync(ctx, s.st) })
			again(func() error { return errors.Join(s.st.Sync(), g.Err()) })
			again(func() error { _, err := s.mine.ReadAt(make([]uint64, 1), 0); return errors.Join(err, g.Err()) })
			members.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				<-time.After(time.Duration(random.IntN(8)) * time.Millisecond)
				for _, k := range random.Perm(4) {
					switch k {
					case 0:
						cancel()
					case 1:
						calls.Go(func() { _ = g.Abort() })
					case 2:
						calls.Go(func() { _ = g.Close() })
					case 3:
						calls.Go(func() {
							if next, err := g.Shrink(ctx); err == nil {
								_ = next.Abort()
							}
						})
					}
				}
			})
		}
		members.Wait()
		calls.Wait()
	}
}
