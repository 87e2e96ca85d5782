package order

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAfters: a stream knows of each other one the last event that it comes after, but for those
// that are known to be reached.
func TestAfters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, all := opened(newDevice(), 70)
		streams := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 2, 20, func(s *Stream) uint64 { return s.id }).Draw(t, "streams")
		type clock map[*Stream]uint64
		known := map[*Stream]clock{}
		for _, s := range streams {
			known[s] = clock{}
		}
		type event struct {
			p     Point
			after clock
		}
		var events []event
		open := func(t *rapid.T) *Stream {
			s := rapid.SampledFrom(streams).Draw(t, "stream")
			if s.ended() {
				t.Skip("closed")
			}
			return s
		}
		check := func(t *rapid.T) {
			for _, s := range streams {
				for _, o := range streams {
					got, want := s.After(o), known[s][o]
					switch {
					case s.ended():
					case s == o:
						require.Equal(t, s.Point(), got)
					case o.ended():
						require.Zero(t, got)
					case o.Finished() >= want:
						require.LessOrEqual(t, got, want)
					default:
						require.Equal(t, want, got)
					}
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"record": func(t *rapid.T) {
				s := open(t)
				e := event{s.NextPoint(), clock{}}
				for o, n := range known[s] {
					e.after[o] = n
				}
				e.after[s] = e.p.n
				events = append(events, e)
			},
			"wait": func(t *rapid.T) {
				if len(events) == 0 {
					t.Skip("no event")
				}
				s, e := open(t), rapid.SampledFrom(events).Draw(t, "event")
				s.waited(e.p)
				for o, n := range e.after {
					if o != s {
						known[s][o] = max(known[s][o], n)
					}
				}
			},
			"finish": func(t *rapid.T) {
				if len(events) == 0 {
					t.Skip("no event")
				}
				e := rapid.SampledFrom(events).Draw(t, "event")
				e.p.Finish()
				for o, n := range e.after {
					require.GreaterOrEqual(t, o.Finished(), n)
				}
			},
			"end": func(t *rapid.T) {
				if s := open(t); rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					s.End()
				}
			},
			"": check,
		})
	})
}

// nodes adds the tree of e to those that are there.
func nodes(e *events, there map[*events]bool) {
	if e == nil || there[e] {
		return
	}
	there[e] = true
	nodes(e.zero, there)
	nodes(e.one, there)
}

// TestAftersAreShared: of streams that each wait for the one before, each knows of all before it.
// What they know takes memory for each stream, and not for each pair; and none once they are
// synced.
func TestAftersAreShared(t *testing.T) {
	held := func(streams []*Stream) int {
		there := map[*events]bool{}
		for _, s := range streams {
			if a := s.after.Load(); a != nil {
				nodes(a.events, there)
			}
		}
		return len(there)
	}
	made := map[int]int{}
	for _, n := range []int{400, 4000} {
		_, streams := opened(newDevice(), n)
		for i, s := range streams[1:] {
			s.waited(streams[i].NextPoint())
		}
		last := streams[n-1]
		for _, s := range streams[:n-1] {
			require.EqualValues(t, 1, last.After(s))
		}
		made[n] = held(streams)
		for _, s := range streams {
			s.NextPoint().Finish()
		}
		require.Zero(t, held(streams))
	}
	require.LessOrEqual(t, made[4000], 15*made[400])
}

// TestReachedAreForgotten: a stream that waits for one short-lived stream after the other, and is
// never waited for itself, does not remember them all.
func TestReachedAreForgotten(t *testing.T) {
	_, streams := opened(newDevice(), 10_000)
	keep := streams[0]
	for i, s := range streams[1:] {
		p := s.NextPoint()
		keep.waited(p)
		if i%2 == 0 {
			p.Finish()
		} else {
			s.End()
		}
		require.LessOrEqual(t, keep.after.Load().events.len(), 3*leastWaits)
	}
}
