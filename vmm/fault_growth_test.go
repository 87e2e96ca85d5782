package vmm_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
)

// faults runs try with no fault, then with each call of it failing, then with each two of
// them. Try returns the calls that it made.
func faults(t *testing.T, try func(t *testing.T, at ...int) (calls []string)) {
	t.Helper()
	n := len(try(t))
	require.Greater(t, n, 1)
	for i := 1; i <= n; i++ {
		after := len(try(t, i))
		for j := i + 1; j <= after; j++ {
			if (i+j)%testgate.Effort(8, 1, 1) == 0 {
				try(t, i, j)
			}
		}
	}
}

// forgiven reports whether the library makes up for one of the calls that failed: memory that
// the driver does not release is kept and counted, and where events fail a stream is
// waited for.
func forgiven(calls []string, at []int) bool {
	for _, i := range at {
		if i <= len(calls) && slices.Contains([]string{"Release", "NewEvent", "Record", "SyncEvent", "Done", "Capturing"}, calls[i-1]) {
			return true
		}
	}
	return len(at) == 0
}

// only reports whether no call but those of that name failed.
func only(name string, calls []string, at []int) bool {
	for _, i := range at {
		if i <= len(calls) && calls[i-1] != name {
			return false
		}
	}
	return true
}

// extended checks that a range is as it was, apart from memory above Cap.
func (w *world) extended(before picture, g *vmm.Range, note string) {
	w.t.Helper()
	w.registered(note)
	now := w.picture(g)
	require.GreaterOrEqual(w.t, len(now.Segments), len(before.Segments), note)
	require.GreaterOrEqual(w.t, now.Cap, before.Cap, note)
	now.Segments, now.Access = now.Segments[:len(before.Segments)], now.Access[:len(before.Access)]
	now.Cap = before.Cap
	require.Equal(w.t, before, now, note)
}

// TestFaultsInAQueuedClip: if the clip fails, nothing has changed. Its memory is retiring
// and counted until it is unmapped, and can be reclaimed.
func TestFaultsInAQueuedClip(t *testing.T) {
	for _, kept := range []uint64{0, 64 * page} {
		faults(t, func(t *testing.T, at ...int) []string {
			w := newWorld(t, 2)
			d := w.devs[0]
			vmm.SetNoWorker(d, true)
			d.SetReleaseThreshold(kept)
			g := ranged(t, w, 5*page)
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			raw(t, w.devs[1]) // its own stream is one more to wait for
			s := stream(t, d)
			require.NoError(t, g.UsedBy(s))
			require.NoError(t, g.SetLen(2*page))
			before := w.picture(g)

			w.arm(at...)
			clip := g.Clip()
			_, trim := d.Trim(kept)
			calls := w.disarm()
			note := fmt.Sprintf("calls %v of %v: %v, %v", at, calls, clip, trim)
			if clip != nil {
				isInjected(w, clip)
				w.same(before, g, exact, note)
				require.Zero(t, g.Stats().Retiring, note)
				require.NoError(t, g.Clip(), note)
			} else {
				require.EqualValues(t, 2*page, g.Cap(), note)
				require.Equal(t, before.Contents, w.contents(g), note)
				if trim != nil {
					isInjected(w, trim)
					require.NotZero(t, g.Stats().Retiring+d.Stats().Quarantined, note)
				} else if !forgiven(calls, at) {
					t.Fatal("not reported: " + note)
				}
			}
			if pending := g.Stats().Retiring; pending > 0 {
				require.NoError(t, g.Grow(page), note)
				require.Equal(t, pending-page, g.Stats().Retiring, note)
				require.NoError(t, g.Clip(), note)
			}
			require.NoError(t, vmm.Drain(d), note)
			require.Zero(t, g.Stats().Retiring, note)
			require.NoError(t, g.Append(pattern(3*page, 1)), note)
			vmm.SetNoWorker(d, false)
			require.NoError(t, s.Close())
			require.NoError(t, g.Close(), note)
			w.end()
			return calls
		})
	}
}

// TestFaultsInGrowthAhead: whichever two calls of it fail, the range is as it was, apart from
// memory that growth ahead had before. What could not be undone is counted, growth past it
// returns the reason, and Close releases everything.
func TestFaultsInGrowthAhead(t *testing.T) {
	for _, kept := range []int{0, 1} {
		faults(t, func(t *testing.T, at ...int) (calls []string) {
			bubble(t, 1, func(t *testing.T, w *paced) {
				d := w.devs[0]
				d.SetReleaseThreshold(64 * page)
				g := ahead(t, d)
				keepChunks(t, w.world, slices.Repeat([]uint64{1}, kept)...)
				require.NoError(t, g.Append(pattern(page, 1)))
				synctest.Wait()
				before := w.picture(g)
				w.arm(at...)
				require.NoError(t, g.SetLen(3*page))
				synctest.Wait()
				calls = w.disarm()
				note := fmt.Sprintf("calls %v of %v", at, calls)
				before.Len, before.Contents = 3*page, w.contents(g)
				if only("MemInfo", calls, at) { // it need not know
					require.NoError(t, g.Close())
					return
				}
				st := g.Stats()
				require.EqualValues(t, 1, st.GrowAheadFailures, note)
				if st.Quarantined == 0 {
					w.extended(before, g, note)
				} else {
					require.EqualValues(t, 4*page, g.Cap(), note)
				}
				if err := g.Append(pattern(2*page, 2)); st.Quarantined == 0 {
					require.NoError(t, err, note)
				} else {
					require.ErrorIs(t, err, errInjected, note)
					require.EqualValues(t, 3*page, g.Len(), note)
					require.NoError(t, g.Append(pattern(page, 2)), note)
				}
				require.NoError(t, g.Close(), note)
			})
			return calls
		})
	}
}

// sleepers is two ranges, one granted to a peer, and how they look awake.
type sleepers struct {
	*world
	all  []*vmm.Range
	seen []picture
}

func newSleepers(t *testing.T) *sleepers {
	t.Helper()
	w := newWorld(t, 2)
	a, b := ranged(t, w, 2*page), ranged(t, w, 3*page)
	require.NoError(t, a.Grant(vmm.AccessReadWrite, w.devs[1]))
	require.NoError(t, b.Grow(page))
	s := &sleepers{world: w, all: []*vmm.Range{a, b}}
	for _, g := range s.all {
		s.seen = append(s.seen, s.look(g))
	}
	return s
}

// look is a picture, apart from how often the memory was replaced.
func (s *sleepers) look(g *vmm.Range) picture {
	p := s.picture(g)
	p.Gen = 0
	return p
}

// asleep checks that each range is wholly asleep or wholly awake, as it was, and says
// which. A range that sleeps has no memory but what is quarantined, or after a Sleep that failed
// all of it, and its contents.
func (s *sleepers) asleep(t *testing.T, k vmm.SleepMode, failed bool, note string) (which []bool) {
	t.Helper()
	var committed, held uint64
	for i, g := range s.all {
		st := g.Stats()
		if !st.Asleep {
			require.Equal(t, s.seen[i], s.look(g), note)
			committed += g.Cap()
		} else {
			require.Zero(t, g.Cap(), note)
			require.Equal(t, st.Quarantined, st.Committed, note)
			require.ErrorIs(t, g.Grow(1), vmm.ErrAsleep, note)
			if failed {
				committed += s.seen[i].Cap
			}
			if failed || k == vmm.SleepKeep {
				require.Equal(t, s.seen[i].Len, g.Len(), note)
				held += g.Len()
			}
		}
		which = append(which, st.Asleep)
	}
	s.registered(note)
	st := s.devs[0].Stats()
	require.Equal(t, committed, st.Committed-st.Quarantined, note)
	require.Equal(t, held, st.Asleep, note)
	return which
}

// recover wakes all and checks that nothing is lost.
func (s *sleepers) recover(t *testing.T, which []bool, k vmm.SleepMode, failed bool, note string) {
	t.Helper()
	require.NoError(t, vmm.Wake(s.all...), note)
	for i, g := range s.all {
		now := s.look(g)
		if which[i] && k == vmm.SleepDrop && !failed {
			require.Zero(t, g.Len(), note)
			now.Len, now.Contents = s.seen[i].Len, s.seen[i].Contents
		}
		require.Equal(t, s.seen[i], now, note)
		require.NoError(t, g.Append(pattern(3*page, 1)), note)
		require.NoError(t, g.Close(), note)
	}
	s.end()
}

func TestFaultsInSleep(t *testing.T) {
	for _, k := range []vmm.SleepMode{vmm.SleepDrop, vmm.SleepKeep} {
		faults(t, func(t *testing.T, at ...int) []string {
			s := newSleepers(t)
			s.arm(at...)
			err := vmm.Sleep(k, s.all...)
			calls := s.disarm()
			note := fmt.Sprintf("keep %d, calls %v of %v: %v", k, at, calls, err)
			which := s.asleep(t, k, err != nil, note)
			if err != nil {
				isInjected(s.world, err)
				if len(at) == 1 {
					require.Equal(t, []bool{false, false}, which, note)
					require.Zero(t, s.devs[0].Stats().Quarantined, note)
				}
			} else {
				require.Equal(t, []bool{true, true}, which, note)
				require.True(t, forgiven(calls, at), note)
			}
			s.recover(t, which, k, err != nil, note)
			return calls
		})
	}
}

func TestFaultsInWake(t *testing.T) {
	for _, k := range []vmm.SleepMode{vmm.SleepDrop, vmm.SleepKeep} {
		faults(t, func(t *testing.T, at ...int) []string {
			s := newSleepers(t)
			require.NoError(t, vmm.Sleep(k, s.all...))
			s.arm(at...)
			err := vmm.Wake(s.all...)
			calls := s.disarm()
			note := fmt.Sprintf("keep %d, calls %v of %v: %v", k, at, calls, err)
			if err != nil {
				isInjected(s.world, err)
				require.Equal(t, []bool{true, true}, s.asleep(t, k, false, note))
				if len(at) == 1 {
					require.Zero(t, s.devs[0].Stats().Quarantined, note)
				}
			} else {
				require.Empty(t, at, note)
			}
			s.recover(t, []bool{true, true}, k, false, note)
			return calls
		})
	}
}

// TestSleepWithoutHostMemory: all stay awake. Sleep works as soon as there is some.
func TestSleepWithoutHostMemory(t *testing.T) {
	s := newSleepers(t)
	old := vmm.SetAddressLimit(1)
	err := vmm.Sleep(vmm.SleepKeep, s.all...)
	vmm.SetAddressLimit(old)
	require.ErrorIs(t, err, vmm.ErrAddressSpace)
	require.Equal(t, []bool{false, false}, s.asleep(t, vmm.SleepKeep, true, ""))
	require.NoError(t, vmm.Sleep(vmm.SleepKeep, s.all...))
	s.recover(t, s.asleep(t, vmm.SleepKeep, false, ""), vmm.SleepKeep, false, "")
}
