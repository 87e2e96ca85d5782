package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// reuse is a pool of one block's size, so that who gets that memory shows, and two streams, of
// which the first can be held back.
type reuse struct {
	t    *testing.T
	w    *world
	p    *pool.Pool
	s    *vmm.Stream
	to   *vmm.Stream
	g    *gates
	n    uint64
	b    pool.Block
	open func()

	more []*vmm.Stream // closed at the end
}

// sizes of blocks in a slab and of others.
var sizes = map[string]uint64{"slab": 8 * kib, "short": 66 * kib, "long": 4 * chunk}

// freed has a block of n bytes freed in s behind a gate.
func freed(t *testing.T, n uint64, on pool.Reuse) *reuse {
	t.Helper()
	w := newWorld(t, 1, 64*mib)
	r := &reuse{t: t, w: w, n: n, g: w.gates(0), s: w.stream(0), to: w.stream(0),
		p: w.pool(pool.Options{Max: 4 * chunk, ReleaseThreshold: 4 * chunk, NoReuse: pool.ReuseAll &^ on})}
	r.b = alloc(t, r.p, r.s, n)
	r.open = r.g.hold(r.s)
	require.NoError(t, r.s.Fill(r.b.Ptr(), 1, 4, n/4))
	require.NoError(t, r.p.Free(r.s, r.b))
	return r
}

// gets reports whether a stream gets the memory of the block that was freed.
func (r *reuse) gets(s *vmm.Stream) bool {
	r.t.Helper()
	var all []pool.Block
	got := false
	for range 40 { // more than there is memory for
		b, err := r.p.Alloc(s, r.n)
		if err != nil {
			require.ErrorIs(r.t, err, vmm.ErrOutOfMemory)
			break
		}
		got = got || b.Ptr() == r.b.Ptr()
		all = append(all, b)
		if got {
			break
		}
	}
	for _, b := range all {
		require.NoError(r.t, r.p.Free(s, b))
	}
	require.NoError(r.t, pool.Check(r.p))
	return got
}

func (r *reuse) waits() uint64 { return statsOf(r.t, r.p).Waits }

func (r *reuse) end() {
	r.t.Helper()
	r.open()
	for _, s := range r.more {
		closeAll(r.t, s)
	}
	closeAll(r.t, r.s, r.to, r.p)
	r.w.end()
}

// each runs f with blocks of each kind, freed with those policies on.
func each(t *testing.T, on pool.Reuse, f func(t *testing.T, r *reuse)) {
	t.Helper()
	for name, n := range sizes {
		t.Run(name, func(t *testing.T) {
			r := freed(t, n, on)
			f(t, r)
			r.end()
		})
	}
}

// TestSameStreamReusesAtOnce, with all policies off and without a driver call.
func TestSameStreamReusesAtOnce(t *testing.T) {
	each(t, 0, func(t *testing.T, r *reuse) {
		require.Empty(t, r.w.calls(func() {
			b := alloc(t, r.p, r.s, r.n)
			require.Equal(t, r.b.Ptr(), b.Ptr())
			require.NoError(t, r.p.Free(r.s, b))
		}))
	})
}

// TestAStreamReusesWhatItFreedOfAnother: a block counts where it was freed.
func TestAStreamReusesWhatItFreedOfAnother(t *testing.T) {
	for name, n := range sizes {
		t.Run(name, func(t *testing.T) {
			r := freed(t, n, 0)
			b := alloc(t, r.p, r.s, n)
			open := r.g.hold(r.to)
			require.NoError(t, r.p.Free(r.to, b))
			r.open()
			require.NoError(t, r.s.Sync())
			again := alloc(t, r.p, r.to, n)
			require.Equal(t, b.Ptr(), again.Ptr())
			require.NoError(t, r.p.Free(r.to, again))
			require.False(t, r.gets(r.s), "it was freed in the other stream")
			open()
			r.end()
		})
	}
}

func TestNothingIsReusedElsewhereWithoutPolicies(t *testing.T) {
	each(t, 0, func(t *testing.T, r *reuse) {
		require.False(t, r.gets(r.to))
		r.open()
		r.g.passed(r.s) // but package vmm has not seen it
		require.False(t, r.gets(r.to))
	})
}

// TestFollowEvents: a wait for an event that was recorded after the free is enough, also by
// way of a third stream.
func TestFollowEvents(t *testing.T) {
	waits := map[string]func(t *testing.T, r *reuse){
		"Wait": func(t *testing.T, r *reuse) {
			e, err := r.s.Record()
			require.NoError(t, err)
			require.NoError(t, r.to.Wait(e))
			closeAll(t, e)
		},
		"WaitFence": func(t *testing.T, r *reuse) {
			f, err := fences.Fence(r.s)
			require.NoError(t, err)
			require.NoError(t, fences.WaitFence(r.to, f))
			f.Free()
		},
		"by way of a third stream": func(t *testing.T, r *reuse) {
			third := r.w.stream(0)
			e, err := r.s.Record()
			require.NoError(t, err)
			require.NoError(t, third.Wait(e))
			require.NoError(t, e.Record(third))
			require.NoError(t, r.to.Wait(e))
			closeAll(t, e)
			r.more = append(r.more, third)
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			for size, n := range sizes {
				t.Run(size, func(t *testing.T) {
					r := freed(t, n, pool.ReuseFollowEvents)
					require.False(t, r.gets(r.to), "it does not wait yet")
					early, err := r.s.Record()
					require.NoError(t, err)
					b := alloc(t, r.p, r.s, n)
					require.NoError(t, r.p.Free(r.s, b))
					require.NoError(t, r.to.Wait(early))
					require.False(t, r.gets(r.to), "that event came before the free")
					wait(t, r)
					require.NoError(t, r.p.SetReuse(pool.ReuseAll&^pool.ReuseFollowEvents&^pool.ReuseInternalDependencies))
					require.False(t, r.gets(r.to), "the policy is off")
					require.NoError(t, r.p.SetReuse(pool.ReuseFollowEvents))
					calls := r.w.calls(func() { require.True(t, r.gets(r.to)) })
					if n > 64*kib { // else it has slabs of its own first
						require.Empty(t, calls)
					}
					closeAll(t, early)
					require.Zero(t, r.waits())
					r.end()
				})
			}
		})
	}
}

func TestOpportunistic(t *testing.T) {
	each(t, pool.ReuseOpportunistic, func(t *testing.T, r *reuse) {
		require.False(t, r.gets(r.to), "the work has not ended")
		r.open()
		r.g.passed(r.s)
		require.NoError(t, r.p.SetReuse(0))
		require.False(t, r.gets(r.to), "the policy is off")
		require.NoError(t, r.p.SetReuse(pool.ReuseOpportunistic))
		require.True(t, r.gets(r.to))
		require.Zero(t, r.waits())
	})
}

// TestOpportunisticWithLaterWork: that a stream has more to do does not matter.
func TestOpportunisticWithLaterWork(t *testing.T) {
	each(t, pool.ReuseOpportunistic, func(t *testing.T, r *reuse) {
		require.False(t, r.gets(r.to)) // which asks
		open := r.g.hold(r.s)
		r.open()
		f, err := fences.Fence(r.to)
		require.NoError(t, err)
		f.Free()
		require.Eventually(t, func() bool { return r.gets(r.to) }, patience, waitStep)
		open()
	})
}

// TestInternalDependencies inserts a wait, and only if no other memory can be had.
func TestInternalDependencies(t *testing.T) {
	each(t, pool.ReuseInternalDependencies, func(t *testing.T, r *reuse) {
		require.True(t, r.gets(r.to))
		require.EqualValues(t, 1, r.waits())
		b := alloc(t, r.p, r.to, r.n)
		require.NoError(t, r.to.Fill(b.Ptr(), 2, 4, r.n/4))
		done, err := r.to.Done()
		require.NoError(t, err)
		require.False(t, done, "it waits for the first stream")
		require.NoError(t, r.p.Free(r.to, b))
		require.EqualValues(t, 1, r.waits())
	})
	for name, n := range sizes {
		t.Run("enough memory/"+name, func(t *testing.T) {
			w := newWorld(t, 1, 64*mib)
			p, g, s, to := w.pool(pool.Options{NoReuse: pool.ReuseOpportunistic}), w.gates(0), w.stream(0), w.stream(0)
			b := alloc(t, p, s, n)
			open := g.hold(s)
			require.NoError(t, p.Free(s, b))
			c := alloc(t, p, to, n)
			require.NotEqual(t, b.Ptr(), c.Ptr())
			require.Zero(t, statsOf(t, p).Waits)
			require.NoError(t, p.Free(to, c))
			open()
			closeAll(t, s, to, p)
			w.end()
		})
	}
}

// TestSynchronisedMemoryIsEveryones: what a call has proved finished is reused in any stream,
// with all policies off.
func TestSynchronisedMemoryIsEveryones(t *testing.T) {
	proofs := map[string]func(r *reuse, e *vmm.Event) error{
		"Stream.Sync": func(r *reuse, _ *vmm.Event) error { return r.s.Sync() },
		"Event.Sync":  func(_ *reuse, e *vmm.Event) error { return e.Sync() },
		"Device.Sync": func(r *reuse, _ *vmm.Event) error { return r.w.devs[0].Sync() },
		"Event.Done": func(r *reuse, e *vmm.Event) error {
			r.g.passed(r.s)
			done, err := e.Done()
			require.True(r.t, done)
			return err
		},
		"Stream.Done": func(r *reuse, _ *vmm.Event) error {
			r.g.passed(r.s)
			done, err := r.s.Done()
			require.True(r.t, done)
			return err
		},
		"Stream.Close": func(r *reuse, _ *vmm.Event) error { return r.s.Close() },
		"Sync of a stream that waits": func(r *reuse, e *vmm.Event) error {
			third := r.w.stream(0)
			require.NoError(r.t, third.Wait(e))
			require.NoError(r.t, third.Sync())
			return third.Close()
		},
	}
	for name, proof := range proofs {
		t.Run(name, func(t *testing.T) {
			each(t, 0, func(t *testing.T, r *reuse) {
				e, err := r.s.Record()
				require.NoError(t, err)
				require.False(t, r.gets(r.to))
				r.open()
				require.NoError(t, proof(r, e))
				require.True(t, r.gets(r.to))
				closeAll(t, e)
			})
		})
	}
}

// TestAnEarlierEventProvesNothing about what was freed after it.
func TestAnEarlierEventProvesNothing(t *testing.T) {
	each(t, 0, func(t *testing.T, r *reuse) {
		b := alloc(t, r.p, r.s, r.n)
		e, err := r.s.Record()
		require.NoError(t, err)
		open := r.g.hold(r.s)
		require.NoError(t, r.p.Free(r.s, b))
		r.open()
		require.NoError(t, e.Sync())
		require.False(t, r.gets(r.to))
		open()
		closeAll(t, e)
	})
}

// TestOrderOfAttempts is what Alloc documents: the same stream's, idle, followed, asked for,
// moved, new, waited for, and what OnOOM frees.
func TestOrderOfAttempts(t *testing.T) {
	const n = 2 * chunk
	w := newWorld(t, 1, 64*mib)
	g := w.gates(0)
	var spare []pool.Block
	var p *pool.Pool
	asked := 0
	p = w.pool(pool.Options{Max: 16 * chunk, ReleaseThreshold: 64 * mib, OnOOM: func(s *vmm.Stream, _ uint64) bool {
		asked++
		if len(spare) == 0 {
			return false
		}
		err := p.Free(s, spare[0])
		spare = spare[1:]
		return err == nil
	}})
	s, idle, followed, ended, held := w.stream(0), w.stream(0), w.stream(0), w.stream(0), w.stream(0)
	from := map[vmm.Ptr]string{}
	var blocks []pool.Block
	for _, x := range []struct {
		name string
		on   *vmm.Stream
	}{{"own", s}, {"idle", idle}, {"followed", followed}, {"ended", ended}, {"held", held}, {"live", s}, {"live", s}, {"live", s}} {
		b := alloc(t, p, x.on, n)
		from[b.Ptr()] = x.name
		blocks = append(blocks, b)
		if x.name == "live" {
			spare = append(spare, b)
		}
	}
	// Nothing can be created: the pool is as large as it may be.
	openFollowed, openHeld := g.hold(followed), g.hold(held)
	for i, on := range []*vmm.Stream{s, idle, followed, ended, held} {
		require.NoError(t, p.Free(on, blocks[i]))
	}
	require.NoError(t, idle.Sync())
	e, err := followed.Record()
	require.NoError(t, err)
	require.NoError(t, s.Wait(e))
	g.passed(ended)
	var got []string
	var live []pool.Block
	for range 5 {
		b := alloc(t, p, s, n)
		got = append(got, from[b.Ptr()])
		live = append(live, b)
	}
	require.Equal(t, []string{"own", "idle", "followed", "ended", "held"}, got)
	require.EqualValues(t, 1, statsOf(t, p).Waits)
	require.Zero(t, asked)
	b := alloc(t, p, s, n)
	require.Equal(t, "live", from[b.Ptr()])
	require.Equal(t, 1, asked)
	for _, b := range append(append(live, b), spare...) {
		require.NoError(t, p.Free(s, b))
	}
	openFollowed()
	openHeld()
	closeAll(t, e, s, idle, followed, ended, held, p)
	w.end()
}

// TestMovedBeforeNew: idle chunks move before memory is created, and memory is created before
// a stream has to wait.
func TestMovedBeforeNew(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{ReleaseThreshold: 64 * mib, Max: 12 * chunk}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	var all []pool.Block
	for range 4 {
		all = append(all, alloc(t, p, s, 2*chunk))
	}
	require.NoError(t, p.Free(s, all[0]))
	require.NoError(t, p.Free(s, all[2])) // not beside each other
	require.NoError(t, s.Sync())
	created := statsOf(t, p).Created
	long := alloc(t, p, s, 4*chunk)
	st := statsOf(t, p)
	require.Equal(t, created, st.Created)
	require.EqualValues(t, 4*chunk, st.Remapped)
	require.NoError(t, pool.Check(p))

	open := g.hold(s)
	require.NoError(t, p.Free(s, long))
	next := alloc(t, p, other, 4*chunk)
	st = statsOf(t, p)
	require.Equal(t, created+4*chunk, st.Created)
	require.Zero(t, st.Waits)
	require.NoError(t, p.Free(other, next))
	open()
	for _, b := range []pool.Block{all[1], all[3]} {
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, s, other, p)
	w.end()
}

// TestWaitingForMemoryInPieces: pieces that several streams have freed become one block once
// all their work has ended.
func TestWaitingForMemoryInPieces(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{Max: 8 * chunk, NoReuse: pool.ReuseOpportunistic | pool.ReuseFollowEvents}), w.gates(0)
	s, to := w.stream(0), w.stream(0)
	var all []pool.Block
	for range 4 {
		all = append(all, alloc(t, p, s, 2*chunk))
	}
	open := g.hold(s)
	require.NoError(t, s.Fill(all[0].Ptr(), 1, 4, 100))
	require.NoError(t, p.Free(s, all[0]))
	require.NoError(t, p.Free(s, all[2]))
	w.watch(openAtWait(open))
	b := alloc(t, p, to, 4*chunk)
	w.watch(nil)
	require.EqualValues(t, 1, statsOf(t, p).Waits)
	require.NoError(t, pool.Check(p))
	for _, b := range []pool.Block{b, all[1], all[3]} {
		require.NoError(t, p.Free(to, b))
	}
	closeAll(t, s, to, p)
	w.end()
}

// TestSameCallsSameAddresses: with opportunistic reuse off nothing depends on how fast
// streams are.
func TestSameCallsSameAddresses(t *testing.T) {
	run := func(late bool) (offs []uint64) {
		w := newWorld(t, 1, 64*mib)
		p, g := w.pool(pool.Options{NoReuse: pool.ReuseOpportunistic, ReleaseThreshold: 2 * mib}), w.gates(0)
		rnd := newRand(3)
		streams := []*vmm.Stream{w.stream(0), w.stream(0), w.stream(0)}
		opens := make([]func(), len(streams))
		type one struct {
			b  pool.Block
			on int
		}
		var live []one
		for range 1500 {
			k := rnd.IntN(len(streams))
			if late && opens[k] == nil {
				opens[k] = g.hold(streams[k])
			}
			switch what := rnd.IntN(12); {
			case what < 6 || len(live) == 0:
				b := alloc(t, p, streams[k], 16+rnd.Uint64N(1<<(4+rnd.IntN(14))))
				require.NoError(t, streams[k].Fill(b.Ptr(), 1, 4, b.Size()/4))
				offs = append(offs, uint64(b.Ptr()-p.Reservation().Ptr()))
				live = append(live, one{b, k})
			case what < 10:
				i := rnd.IntN(len(live))
				require.NoError(t, p.Free(streams[live[i].on], live[i].b))
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			case what < 11:
				to := rnd.IntN(len(streams))
				f, err := fences.Fence(streams[k])
				require.NoError(t, err)
				require.NoError(t, fences.WaitFence(streams[to], f))
				f.Free()
			default:
				for i, open := range opens {
					if open != nil {
						open()
						opens[i] = nil
					}
				}
				require.NoError(t, streams[k].Sync())
			}
		}
		for _, open := range opens {
			if open != nil {
				open()
			}
		}
		for _, x := range live {
			require.NoError(t, p.Free(streams[x.on], x.b))
		}
		require.NoError(t, pool.Check(p))
		for _, s := range streams {
			closeAll(t, s)
		}
		closeAll(t, p)
		w.end()
		return offs
	}
	require.Equal(t, run(false), run(true))
}

// TestOpportunisticWithSlabs: that blocks were short, or freed in another stream than their
// slab's, does not matter either, at the first try.
func TestOpportunisticWithSlabs(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		w := newWorld(t, 1, 16*mib)
		p, g := w.pool(pool.Options{Max: chunk, NoReuse: pool.ReuseAll &^ pool.ReuseOpportunistic}), w.gates(0)
		s, other, to := w.stream(0), w.stream(0), w.stream(0)
		on := s
		if elsewhere {
			on = other
		}
		b := alloc(t, p, s, 100)
		require.NoError(t, on.Fill(b.Ptr(), 1, 1, 100))
		require.NoError(t, p.Free(on, b))
		g.passed(on)
		require.NoError(t, p.Free(to, alloc(t, p, to, 1024)), "freed elsewhere: %v", elsewhere)
		closeAll(t, s, other, to, p)
		w.end()
	}
}

// TestWaitingForMemoryElsewhere: what a stream has to wait for may lie among blocks of
// another size, in chunks that cannot move.
func TestWaitingForMemoryElsewhere(t *testing.T) {
	w := newWorld(t, 1, 64*mib)
	p, g := w.pool(pool.Options{Max: 4 * chunk, NoReuse: pool.ReuseAll &^ pool.ReuseInternalDependencies}), w.gates(0)
	s, to := w.stream(0), w.stream(0)
	var live, pieces []pool.Block
	for range 3 {
		live = append(live, alloc(t, p, s, 66*kib)) // 80 KiB, of 256
	}
	long, err := p.Resize(s, live[2], 96*kib) // up to the end
	require.NoError(t, err)
	live[2] = long
	open := g.hold(s)
	for i, b := range live {
		less, err := p.Resize(s, b, 30*kib)
		require.NoError(t, err)
		live[i] = less
	}
	for range 2 {
		b := alloc(t, p, to, 30*kib)
		require.NoError(t, to.Fill(b.Ptr(), 1, 4, b.Size()/4))
		pieces = append(pieces, b)
	}
	done, err := to.Done()
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, pool.Check(p))
	open()
	for _, b := range append(live, pieces...) {
		require.NoError(t, p.FreeNow(b))
	}
	closeAll(t, s, to, p)
	w.end()
}
