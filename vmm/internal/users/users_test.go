package users_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/internal/users"
)

type table = users.Table[int, string]

func streams(t *table) []string {
	all := t.Streams()
	slices.Sort(all)
	return all
}

func TestDevices(t *testing.T) {
	var u table
	u.SetGranted([]int{1, 2})
	require.Equal(t, []int{1, 2}, u.Devices())
	require.Equal(t, []int{1, 2}, u.WaitsFor())
	before := u.WaitsFor()
	u.AddCopier(3)
	u.AddCopier(2)
	n := u.Changes()
	u.AddCopier(2)
	require.Equal(t, n, u.Changes())
	require.ElementsMatch(t, []int{1, 2, 3}, u.Devices(), "each once")
	u.SetGranted([]int{1})
	require.Greater(t, u.Changes(), n)
	require.ElementsMatch(t, []int{1, 2, 3}, u.WaitsFor(), "copiers stay")
	require.Equal(t, []int{1, 2}, before, "who has read the list keeps it as it was")
}

func TestName(t *testing.T) {
	var u table
	u.SetGranted([]int{1})
	require.True(t, u.MayUse("a"))
	n := u.Changes()
	u.Name("a", "b")
	require.Greater(t, u.Changes(), n)
	require.Nil(t, u.WaitsFor())
	require.Equal(t, []int{1}, u.Devices())
	u.SetGranted([]int{1, 2})
	require.Nil(t, u.WaitsFor())
	require.Equal(t, []int{1, 2}, u.Devices())
	require.Equal(t, []string{"a", "b"}, streams(&u))
	require.True(t, u.MayUse("a"))
	require.False(t, u.MayUse("c"))
	u.Ended("a", true)
	require.False(t, u.MayUse("a"))
	require.Equal(t, []string{"b"}, u.Clear())
	require.Empty(t, u.Streams())

	var none table
	none.SetGranted([]int{1})
	none.Name()
	require.Nil(t, none.WaitsFor(), "no stream at all")
	require.False(t, none.MayUse("a"))
}

func TestAppends(t *testing.T) {
	var u table
	require.False(t, u.Ran("a", 1), "there are none")
	require.True(t, u.Append("a"))
	require.True(t, u.Append("b"))
	require.False(t, u.Append("a"))
	require.EqualValues(t, 3, u.LastAppend())
	upTo := func(n uint64) map[string]uint64 { return maps.Collect(u.PendingUpTo(n)) }
	require.Empty(t, upTo(0))
	require.Equal(t, map[string]uint64{"a": 3}, upTo(1))
	require.Equal(t, map[string]uint64{"a": 3, "b": 2}, upTo(2))

	require.False(t, u.Ran("a", 1), "the last one has not run")
	require.Empty(t, upTo(1))
	require.Equal(t, map[string]uint64{"a": 3, "b": 2}, upTo(2))
	u.Name("b")
	require.False(t, u.Ran("b", 2), "named")
	require.Equal(t, []string{"a", "b"}, streams(&u))
	require.True(t, u.Pending())
	require.True(t, u.Ran("a", 3))
	require.False(t, u.Ran("a", 3))
	require.False(t, u.Pending())
	require.Equal(t, []string{"b"}, streams(&u))
	require.True(t, u.Append("a"), "the first again")
}

// TestEnded: appends stay of a stream whose work was lost.
func TestEnded(t *testing.T) {
	for _, ran := range []bool{true, false} {
		var u table
		u.Name("a")
		u.Append("a")
		u.Ended("b", ran)
		u.Ended("a", ran)
		require.Equal(t, !ran, u.Pending())
		require.Len(t, u.Streams(), map[bool]int{true: 0, false: 1}[ran])
		require.False(t, u.MayUse("a"))
		require.Equal(t, !ran, u.Ran("a", 1), "not named any more")
		u.Append("a")
		u.Clear()
		require.False(t, u.Pending())
	}
}

func TestSpans(t *testing.T) {
	var l users.Spans
	require.False(t, l.Overlap(0, 9, l.Last()))
	a, b := l.Lock(2, 4), l.Lock(4, 6)
	require.Equal(t, b, l.Last())
	for _, c := range []struct {
		off, end, n uint64
		want        bool
	}{{0, 2, b, false}, {0, 3, b, true}, {3, 4, b, true}, {4, 5, b, true}, {4, 5, a, false}, {6, 9, b, false}, {0, 9, a, true}} {
		require.Equal(t, c.want, l.Overlap(c.off, c.end, c.n), "%v", c)
	}
	unlocked := l.Unlocked()
	require.Equal(t, unlocked, l.Unlocked())
	select {
	case <-unlocked:
		t.Fatal("nothing was unlocked")
	default:
	}
	l.Unlock(a)
	<-unlocked
	require.NotEqual(t, unlocked, l.Unlocked())
	require.False(t, l.Overlap(2, 4, b))
	l.Unlock(b)
	require.False(t, l.Overlap(0, 9, b))
}
