package history

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestLast: the last events are kept, with numbers that go on.
func TestLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Log
		l.Add(Map, 1, 2, 3, "")
		require.Empty(t, slices.Collect(l.After(0)), "off")
		l.Set(Options{Events: 3})
		require.Empty(t, slices.Collect(l.After(0)))
		now := time.Now()
		for i := range uint64(5) {
			l.Add(Map, i, i*10, i*100, "")
			l.AddBlock(Alloc, i, i, i, "")
		}
		all := slices.Collect(l.After(0))
		require.Len(t, all, 3)
		for i, e := range all {
			n := uint64(i)
			require.Equal(t, Event{Seq: n + 3, Time: e.Time, Kind: Map, Addr: n + 2, Size: (n + 2) * 10, Stream: (n + 2) * 100, Stack: e.Stack}, e)
			require.True(t, e.Time.Equal(now), "the clock of a bubble stands")
			f, _ := runtime.CallersFrames(e.Stack).Next()
			require.Contains(t, f.Function, "history.TestLast")
		}
		require.Len(t, slices.Collect(l.After(4)), 1)
		require.Empty(t, slices.Collect(l.After(5)))
		l.Set(Options{Events: 3, Blocks: true, NoStacks: true})
		require.Empty(t, slices.Collect(l.After(0)), "it is forgotten")
		l.AddBlock(Free, 1, 2, 3, "")
		require.Equal(t, uint64(6), slices.Collect(l.After(0))[0].Seq)
		require.Nil(t, slices.Collect(l.After(0))[0].Stack)
		l.Set(Options{})
		require.Empty(t, slices.Collect(l.After(0)))
	})
}

// TestReadInParts: calls go on while the events are read, and what they overwrite is left out; those
// of after the beginning do not come.
func TestReadInParts(t *testing.T) {
	var l Log
	l.Set(Options{Events: 1000, NoStacks: true})
	for i := range uint64(1000) {
		l.Add(Map, i, 0, 0, "")
	}
	var got []uint64
	for e := range l.After(100) {
		require.Equal(t, e.Seq, e.Addr+1)
		got = append(got, e.Seq)
		if len(got) == 10 {
			for i := range uint64(500) {
				l.Add(Map, 1000+i, 0, 0, "")
			}
		}
	}
	require.Equal(t, uint64(101), got[0])
	require.Equal(t, uint64(1000), got[len(got)-1])
	require.True(t, slices.IsSorted(got))
	require.Len(t, got, 256+500, "those that were copied at once, and what was kept then")
}

// TestRefused: the error says where to look, if there is something.
func TestRefused(t *testing.T) {
	var l Log
	full := fmt.Errorf("%w: full", driver.ErrOutOfMemory)
	require.Equal(t, full, l.Refused(0, 1, "", full))
	l.Set(Options{Events: 1})
	require.EqualError(t, l.Refused(0, 1, "", full), "out of memory: full (Device.History has what happened before)")
	require.Len(t, slices.Collect(l.After(0)), 1)
	other := errors.New("other")
	require.Equal(t, other, l.Refused(0, 1, "", other))
	require.Len(t, slices.Collect(l.After(0)), 1, "no refusal of memory")
	require.Equal(t, Refused, slices.Collect(l.After(0))[0].Kind)
}

// TestManyGoroutines: each event has a number of its own, also while the log is switched.
func TestManyGoroutines(t *testing.T) {
	var l Log
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for i := range 500 {
				l.Add(Grow, 0, 0, 0, "")
				if i%100 == 0 {
					l.Set(Options{Events: 64})
				}
				var last uint64
				for e := range l.After(0) {
					require.Greater(t, e.Seq, last)
					last = e.Seq
				}
			}
		})
	}
	wait.Wait()
}

func BenchmarkAdd(b *testing.B) {
	for _, o := range []Options{{}, {Events: 10_000, NoStacks: true}, {Events: 10_000}} {
		name := map[Options]string{{}: "off", {Events: 10_000, NoStacks: true}: "nostacks", {Events: 10_000}: "stacks"}[o]
		b.Run(name, func(b *testing.B) {
			var l Log
			l.Set(o)
			for b.Loop() {
				l.Add(Map, 1, 2, 3, "")
			}
		})
	}
}

// TestNames: each event has the name that it was added with, also one of the library's own and a refusal.
func TestNames(t *testing.T) {
	var l Log
	l.Set(Options{Events: 10, Blocks: true})
	l.Add(Map, 1, 2, 3, "map")
	l.AddBlock(Alloc, 1, 2, 3, "block")
	l.AddMadeAt(Grow, 1, 2, "ahead", func() []uintptr { return nil })
	require.Error(t, l.Refused(1, 2, "refused", driver.ErrOutOfMemory))
	l.Add(Unmap, 1, 2, 3, "")
	var all []string
	for e := range l.After(0) {
		all = append(all, e.Name)
	}
	require.Equal(t, []string{"map", "block", "ahead", "refused", ""}, all)
}
