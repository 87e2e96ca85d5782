package wire

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func tracker(t testing.TB) *Tracker {
	t.Helper()
	k, err := NewTracker(Object{ID: 7, Max: 100 * 16, Generation: 3}, Limits{Granularity: 16})
	require.NoError(t, err)
	return k
}

func TestTrackerGrowsAndShrinks(t *testing.T) {
	k := tracker(t)
	one, two, three := Chunk{1, 0, 16}, Chunk{2, 16, 32}, Chunk{5, 48, 16}
	fresh, skip, err := k.Chunks(Chunks{7, 3, []Chunk{one, two}})
	require.NoError(t, err)
	require.Equal(t, []Chunk{one, two}, fresh)
	require.Zero(t, skip)
	require.Zero(t, k.End())
	k.Mapped(1)
	require.Equal(t, uint64(16), k.End())
	require.Equal(t, uint64(1), k.LastID())

	fresh, skip, err = k.Chunks(Chunks{7, 3, []Chunk{one, two, three}})
	require.NoError(t, err)
	require.Equal(t, []Chunk{two, three}, fresh)
	require.Equal(t, 1, skip)
	k.Mapped(2)
	require.Equal(t, uint64(64), k.End())
	require.Equal(t, []Chunk{one, two, three}, k.known())

	keep, from, err := k.Retire(Retire{7, 4, 16})
	require.NoError(t, err)
	require.Equal(t, 1, keep)
	require.Equal(t, uint64(16), from)
	require.Equal(t, uint64(4), k.Generation())
	require.Equal(t, uint64(5), k.LastID())

	_, _, err = k.Chunks(Chunks{7, 4, []Chunk{{5, 16, 16}}})
	require.ErrorContains(t, err, "after id 5")
	fresh, _, err = k.Chunks(Chunks{7, 4, []Chunk{{6, 16, 16}}})
	require.NoError(t, err)
	require.Len(t, fresh, 1)
}

func TestNewTracker(t *testing.T) {
	good := Object{ID: 7, Max: 1600, Length: 1600, Capacity: 1600}
	for _, test := range []struct {
		name   string
		change func(*Object, *Limits)
		want   string
	}{
		{"right", func(*Object, *Limits) {}, ""},
		{"no granularity", func(_ *Object, l *Limits) { l.Granularity = 0 }, "granularity 0 and at most 0 chunks as limits"},
		{"a negative number of chunks", func(_ *Object, l *Limits) { l.MaxChunks = -1 }, "granularity 16 and at most -1 chunks as limits"},
		{"no max", func(o *Object, _ *Limits) { o.Max = 0 }, "max of 0 bytes, not a multiple of 16"},
		{"a max that is no multiple", func(o *Object, _ *Limits) { o.Max = 1601 }, "max of 1601 bytes, not a multiple of 16"},
		{"a length over the max", func(o *Object, _ *Limits) { o.Length = 1601 }, "length 1601 and capacity 1600 with a max of 1600"},
		{"a capacity over the max", func(o *Object, _ *Limits) { o.Capacity = 1616 }, "length 1600 and capacity 1616 with a max of 1600"},
		{"a base", func(o *Object, _ *Limits) { o.Base, o.Length = 100, 1500 }, ""},
		{"a length over the max from the base on", func(o *Object, _ *Limits) { o.Base, o.Length = 100, 1501 }, "length 1501 and capacity 1600 with a max of 1600"},
		{"a base beyond the max", func(o *Object, _ *Limits) { o.Base, o.Length = 1600, 0 }, "a base of 1600 with a max of 1600"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, l := good, Limits{Granularity: 16}
			test.change(&o, &l)
			k, err := NewTracker(o, l)
			if test.want == "" {
				require.NoError(t, err)
				require.Zero(t, k.End())
				return
			}
			require.ErrorContains(t, err, test.want)
			require.Nil(t, k)
		})
	}
}

// mapped is a tracker with three chunks: [0, 16), [16, 48), [48, 64).
func mapped(t testing.TB, l Limits) *Tracker {
	t.Helper()
	l.Granularity = 16
	k, err := NewTracker(Object{ID: 7, Max: 160, Generation: 3}, l)
	require.NoError(t, err)
	fresh, _, err := k.Chunks(Chunks{7, 3, []Chunk{{2, 0, 16}, {4, 16, 32}, {6, 48, 16}}})
	require.NoError(t, err)
	k.Mapped(len(fresh))
	return k
}

func TestTrackerChunks(t *testing.T) {
	const top = 1 << 63
	for _, test := range []struct {
		name    string
		object  uint64
		gen     uint64
		records []Chunk
		skip    int
		want    string // "" if they are right
	}{
		{"one more", 7, 3, []Chunk{{7, 64, 16}}, 0, ""},
		{"up to the max", 7, 3, []Chunk{{7, 64, 80}, {8, 144, 16}}, 0, ""},
		{"ids far apart", 7, 3, []Chunk{{1 << 40, 64, 16}, {1<<64 - 1, 80, 16}}, 0, ""},
		{"all once more", 7, 3, []Chunk{{2, 0, 16}, {4, 16, 32}, {6, 48, 16}}, 3, ""},
		{"some once more", 7, 3, []Chunk{{4, 16, 32}}, 1, ""},
		{"the last once more, and another", 7, 3, []Chunk{{6, 48, 16}, {9, 64, 16}}, 1, ""},
		{"another object", 8, 3, []Chunk{{7, 64, 16}}, 0, "chunks of object 8 in generation 3 instead of 7 in 3"},
		{"an older generation", 7, 2, []Chunk{{7, 64, 16}}, 0, "object 7 in generation 2 instead of 7 in 3"},
		{"a newer generation", 7, 4, []Chunk{{7, 64, 16}}, 0, "object 7 in generation 4 instead of 7 in 3"},
		{"none", 7, 3, nil, 0, "no chunks"},
		{"no bytes", 7, 3, []Chunk{{7, 64, 0}}, 0, "chunk 7 at 64 of 0 bytes, not of a multiple of 16 bytes"},
		{"half a page", 7, 3, []Chunk{{7, 64, 24}}, 0, "not of a multiple of 16 bytes"},
		{"a gap", 7, 3, []Chunk{{7, 80, 16}}, 0, "chunk 7 at 80 of 16 bytes where 64 is the end"},
		{"a gap between two", 7, 3, []Chunk{{7, 64, 16}, {8, 96, 16}}, 0, "chunk 8 at 96 of 16 bytes where 80 is the end"},
		{"an overlap", 7, 3, []Chunk{{7, 48, 32}}, 0, "where 64 is the end"},
		{"an overlap of two", 7, 3, []Chunk{{7, 64, 32}, {8, 80, 16}}, 0, "where 96 is the end"},
		{"at the start", 7, 3, []Chunk{{7, 0, 16}}, 0, "where 64 is the end"},
		{"the last id", 7, 3, []Chunk{{6, 64, 16}}, 0, "chunk 6 at 64 of 16 bytes where 6 at 48 of 16 bytes is known"},
		{"an id between", 7, 3, []Chunk{{5, 64, 16}}, 0, "where 6 at 48 of 16 bytes is known"},
		{"the id 0", 7, 3, []Chunk{{0, 64, 16}}, 0, "where 2 at 0 of 16 bytes is known"},
		{"an id twice", 7, 3, []Chunk{{7, 64, 16}, {7, 80, 16}}, 0, "chunk 7 at 80 of 16 bytes after id 7"},
		{"an id that falls", 7, 3, []Chunk{{9, 64, 16}, {8, 80, 16}}, 0, "after id 9"},
		{"a known one, longer", 7, 3, []Chunk{{6, 48, 32}}, 0, "where 6 at 48 of 16 bytes is known"},
		{"a known one, elsewhere", 7, 3, []Chunk{{4, 32, 32}}, 0, "where 4 at 16 of 32 bytes is known"},
		{"known ones, one left out", 7, 3, []Chunk{{2, 0, 16}, {6, 48, 16}}, 0, "where 4 at 16 of 32 bytes is known"},
		{"known ones, backwards", 7, 3, []Chunk{{6, 48, 16}, {4, 16, 32}}, 0, "after id 6"},
		{"over the max", 7, 3, []Chunk{{7, 64, 112}}, 0, "over a max of 160 bytes"},
		{"2^63 bytes", 7, 3, []Chunk{{7, 64, top}}, 0, "over a max of 160 bytes"},
		{"an end that overflows", 7, 3, []Chunk{{7, 64, 1<<64 - 64}}, 0, "over a max of 160 bytes"},
		{"two halves of all there is", 7, 3, []Chunk{{7, 64, top}, {8, 64 + top, top}}, 0, "over a max of 160 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := mapped(t, Limits{})
			fresh, skip, err := k.Chunks(Chunks{test.object, test.gen, test.records})
			if test.want == "" {
				require.NoError(t, err)
				require.Equal(t, test.skip, skip)
				require.Equal(t, test.records[skip:], fresh)
				require.Equal(t, uint64(64), k.End())
				k.Mapped(len(fresh))
				last := test.records[len(test.records)-1]
				require.Equal(t, max(last.end(), 64), k.End())
				require.Equal(t, max(last.ID, 6), k.LastID())
				return
			}
			require.ErrorAs(t, err, new(*ProtocolError))
			require.ErrorContains(t, err, test.want)
			require.Equal(t, mapped(t, Limits{}).known(), k.known())
			k.Mapped(5)
			require.Equal(t, uint64(64), k.End())
			_, _, err = k.Chunks(Chunks{7, 3, []Chunk{{7, 64, 16}}})
			require.NoError(t, err, "an error changes nothing")
		})
	}
}

func TestTrackerLimits(t *testing.T) {
	k := mapped(t, Limits{Quota: 96})
	_, _, err := k.Chunks(Chunks{7, 3, []Chunk{{7, 64, 32}, {8, 96, 16}}})
	require.ErrorIs(t, err, ErrLimit)
	require.False(t, errors.As(err, new(*ProtocolError)), "the owner did nothing wrong")
	require.ErrorContains(t, err, "8 at 96 of 16 bytes with a quota of 96 bytes")
	fresh, _, err := k.Chunks(Chunks{7, 3, []Chunk{{7, 64, 32}}})
	require.NoError(t, err)
	k.Mapped(len(fresh))
	require.Equal(t, uint64(96), k.End())

	k = mapped(t, Limits{MaxChunks: 4})
	_, _, err = k.Chunks(Chunks{7, 3, []Chunk{{7, 64, 16}, {8, 80, 16}}})
	require.ErrorIs(t, err, ErrLimit)
	require.ErrorContains(t, err, "5 chunks, over 4")
	_, _, err = k.Chunks(Chunks{7, 3, []Chunk{{7, 64, 16}}})
	require.NoError(t, err)

	// What an object of this version has at most.
	k, err = NewTracker(Object{Max: 1 << 20}, Limits{Granularity: 1})
	require.NoError(t, err)
	for id := uint64(1); id <= MaxChunks; id++ {
		_, _, err := k.Chunks(Chunks{Records: []Chunk{{id, id - 1, 1}}})
		require.NoError(t, err)
		k.Mapped(1)
	}
	_, _, err = k.Chunks(Chunks{Records: []Chunk{{MaxChunks + 1, MaxChunks, 1}}})
	require.ErrorIs(t, err, ErrLimit)
}

// What could not be mapped comes again, as it was, and nothing else does before.
func TestTrackerMapsInPart(t *testing.T) {
	k := mapped(t, Limits{})
	seven, eight, nine := Chunk{7, 64, 16}, Chunk{8, 80, 16}, Chunk{9, 96, 16}
	_, _, err := k.Chunks(Chunks{7, 3, []Chunk{seven, eight}})
	require.NoError(t, err)
	k.Mapped(1)
	require.Equal(t, uint64(80), k.End())
	require.Equal(t, uint64(7), k.LastID())
	k.Mapped(0)
	k.Mapped(-3)
	require.Equal(t, uint64(80), k.End(), "what is mapped stays so")

	_, _, err = k.Chunks(Chunks{7, 3, []Chunk{nine}})
	require.ErrorContains(t, err, "chunk 9 leaves a gap after 80")
	_, _, err = k.Chunks(Chunks{7, 3, []Chunk{{8, 80, 32}}})
	require.ErrorContains(t, err, "where 8 at 80 of 16 bytes is known")
	_, _, err = k.Chunks(Chunks{7, 3, []Chunk{{9, 80, 16}}})
	require.ErrorContains(t, err, "gap")

	fresh, skip, err := k.Chunks(Chunks{7, 3, []Chunk{seven, eight, nine}})
	require.NoError(t, err)
	require.Equal(t, 1, skip)
	require.Equal(t, []Chunk{eight, nine}, fresh)
	k.Mapped(9)
	require.Equal(t, uint64(112), k.End())
	require.Equal(t, []Chunk{{2, 0, 16}, {4, 16, 32}, {6, 48, 16}, seven, eight, nine}, k.known())
}

func TestTrackerRetire(t *testing.T) {
	for _, test := range []struct {
		name  string
		r     Retire
		keep  int
		from  uint64
		wants string // "" if it is right
	}{
		{"everything", Retire{7, 4, 0}, 0, 0, ""},
		{"down to the first border", Retire{7, 4, 16}, 1, 16, ""},
		{"down to the second border", Retire{7, 9, 48}, 2, 48, ""},
		{"nothing", Retire{7, 4, 64}, 3, 64, ""},
		{"what is not here yet", Retire{7, 4, 80}, 3, 64, ""},
		{"what is not here yet, inside a chunk", Retire{7, 4, 87}, 3, 64, ""},
		{"the max", Retire{7, 1<<64 - 1, 160}, 3, 64, ""},
		{"another object", Retire{8, 4, 0}, 0, 0, "retire of object 8 for generation 4 instead of 7 after 3"},
		{"the generation that is", Retire{7, 3, 0}, 0, 0, "retire of object 7 for generation 3 instead of 7 after 3"},
		{"an older generation", Retire{7, 2, 0}, 0, 0, "generation 2"},
		{"inside the first chunk", Retire{7, 4, 15}, 0, 0, "retire down to 15, inside 2 at 0 of 16 bytes"},
		{"inside the second chunk", Retire{7, 4, 32}, 0, 0, "retire down to 32, inside 4 at 16 of 32 bytes"},
		{"a byte below the end", Retire{7, 4, 63}, 0, 0, "retire down to 63, inside 6 at 48 of 16 bytes"},
		{"over the max", Retire{7, 4, 161}, 0, 0, "retire down to 161 with a max of 160"},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := mapped(t, Limits{})
			all := k.known()
			keep, from, err := k.Retire(test.r)
			if test.wants != "" {
				require.ErrorAs(t, err, new(*ProtocolError))
				require.ErrorContains(t, err, test.wants)
				require.Equal(t, uint64(3), k.Generation())
				require.Equal(t, all, k.known())
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.keep, keep)
			require.Equal(t, test.from, from)
			require.Equal(t, all[:keep], k.known())
			require.Equal(t, from, k.End())
			require.Equal(t, test.r.Generation, k.Generation())
			require.Equal(t, uint64(6), k.LastID())
			_, _, err = k.Chunks(Chunks{7, test.r.Generation, []Chunk{{6, from, 16}}})
			if keep == 3 {
				require.ErrorContains(t, err, "is known")
			} else {
				require.ErrorContains(t, err, "after id 6")
			}
			_, _, err = k.Chunks(Chunks{7, test.r.Generation, []Chunk{{7, from, 16}}})
			require.NoError(t, err)
		})
	}
}

// What was announced and never mapped goes too, and its ids are used up.
func TestTrackerRetiresWhatIsNotMapped(t *testing.T) {
	k := mapped(t, Limits{})
	_, _, err := k.Chunks(Chunks{7, 3, []Chunk{{7, 64, 16}, {8, 80, 16}, {9, 96, 32}}})
	require.NoError(t, err)
	keep, from, err := k.Retire(Retire{7, 4, 112})
	require.NoError(t, err)
	require.Equal(t, 3, keep)
	require.Equal(t, uint64(64), from)
	k.Mapped(3)
	require.Equal(t, uint64(64), k.End(), "the frame is from before the retirement")

	_, _, err = k.Chunks(Chunks{7, 4, []Chunk{{7, 64, 16}, {8, 80, 16}, {9, 96, 32}}})
	require.ErrorContains(t, err, "after id 9")
	fresh, _, err := k.Chunks(Chunks{7, 4, []Chunk{{7, 64, 16}, {8, 80, 16}, {10, 96, 32}}})
	require.NoError(t, err)
	k.Mapped(len(fresh))
	require.Equal(t, uint64(128), k.End())
}

// known is a copy of the chunks that are mapped.
func (t *Tracker) known() []Chunk { return slices.Clone(t.chunks[:t.mapped]) }
