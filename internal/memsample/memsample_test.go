package memsample

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

func at(t *testing.T, rate int64) {
	t.Helper()
	old := SetRate(rate)
	t.Cleanup(func() { SetRate(old) })
}

// sum is what a device's stacks have and had.
func sum(o *Owner) (n Numbers) {
	for _, r := range o.Records() {
		n.AllocObjects += r.AllocObjects
		n.AllocBytes += r.AllocBytes
		n.FreeObjects += r.FreeObjects
		n.FreeBytes += r.FreeBytes
	}
	return n
}

func TestSample(t *testing.T) {
	at(t, 1)
	o := &Owner{}
	Add(o)
	require.Contains(t, Owners(), o)
	s := Of(o, &Source{Kind: Range}, 10, 0)
	require.Zero(t, sum(o), "it has not begun")
	s.Begin()
	require.Equal(t, Numbers{AllocObjects: 1, AllocBytes: 10}, sum(o))
	s.End()
	s.End()
	require.Equal(t, Numbers{1, 10, 1, 10}, sum(o))
	Remove(o)
	require.NotContains(t, Owners(), o)
	require.Empty(t, o.Records())

	at(t, 0)
	none := Of(o, &Source{Kind: Range}, 1<<40, 0)
	require.Nil(t, none)
	none.Begin()
	none.End()
}

// TestEstimatesOfEachSize: whatever the size, what is sampled stands for all, mostly within two
// standard deviations.
func TestEstimatesOfEachSize(t *testing.T) {
	rate := testgate.Effort(1<<16, 1<<20, 1<<20) // with less, as many samples take fewer steps
	at(t, int64(rate))
	for _, size := range []uint64{100, 10_000, uint64(rate / 3), uint64(rate), 5 * uint64(rate)} {
		missed := 0
		for range 20 {
			o := &Owner{}
			var c Countdown
			n := 200*rate/int(size) + 200
			for range n {
				if c.Due(size) {
					c.Sample(o, &Source{Kind: Block}, size)
				}
				Of(o, &Source{Kind: Range}, size, 0).Begin()
			}
			want := float64(n) * float64(size)
			p := chance(size, int64(rate))
			deviation := math.Sqrt(float64(n)*(1-p)/p) * float64(size)
			for _, r := range o.Records() {
				if math.Abs(r.AllocBytes-want) > 2*deviation+1 {
					missed++
				}
			}
			Remove(o)
		}
		require.LessOrEqual(t, missed, 10, "of 40 estimates, at %d bytes", size)
	}
}

// TestSource: the pieces of one call have one stack, found at the first that is sampled.
func TestSource(t *testing.T) {
	defer SetRate(SetRate(1))
	o := &Owner{}
	from := &Source{Kind: Range}
	first := Of(o, from, 10, 0)
	second := func() *Sample { return Of(o, from, 20, 0) }()
	require.NotZero(t, first.bucket.stack[0])
	require.Equal(t, first.bucket, second.bucket)
	made := Of(o, &Source{Kind: Import, Made: []uintptr{1, 2}}, 10, 0)
	require.Equal(t, Stack{1, 2}, made.bucket.stack)
}

// TestSampleOfTheRateThatWasDrawn: a rate that is set between the draw and the sample is not the sample's.
func TestSampleOfTheRateThatWasDrawn(t *testing.T) {
	at(t, 1)
	o := &Owner{}
	var c Countdown
	require.True(t, c.Due(10))
	SetRate(1 << 40)
	c.Sample(o, &Source{Kind: Block}, 10)
	require.Equal(t, Numbers{AllocObjects: 1, AllocBytes: 10}, sum(o))
	Remove(o)
}

// TestNames: a name lasts as long as something in use has it, and takes no place afterwards.
func TestNames(t *testing.T) {
	at(t, 1)
	o := &Owner{}
	defer Remove(o)
	var all []*Sample
	for _, name := range []string{"a", "a", "b", ""} {
		s := Of(o, &Source{Kind: Range, Name: name, Made: []uintptr{1}}, 10, 0)
		s.Begin()
		all = append(all, s)
	}
	named := func() map[string]InUse {
		r := o.Records()
		require.Len(t, r, 1)
		return r[0].Named
	}
	require.Equal(t, map[string]InUse{"a": {2, 20}, "b": {1, 10}}, named())
	all[0].End()
	all[0].End()
	all[2].End()
	require.Equal(t, map[string]InUse{"a": {1, 10}}, named())
	all[1].End()
	require.Empty(t, named())
	require.Empty(t, all[1].bucket.named)
	require.Equal(t, Numbers{4, 40, 3, 30}, sum(o))
}
