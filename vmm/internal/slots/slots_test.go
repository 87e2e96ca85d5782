package slots_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/vmm/internal/slots"
)

// TestTableAgainstBytes compares every question with one asked byte by byte.
func TestTableAgainstBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		var table slots.Table[int, int]
		owner := make([]int, size) // index of the byte's slot, from 1 on; 0: none
		for off := uint64(0); off < size; {
			n := rapid.Uint64Range(1, 6).Draw(t, "size")
			if off+n <= size && rapid.Bool().Draw(t, "mapped") {
				state := slots.State(rapid.IntRange(0, 3).Draw(t, "state"))
				table = append(table, slots.Slot[int, int]{Off: off, Size: n, Mem: len(table), State: state})
				for b := off; b < off+n; b++ {
					owner[b] = len(table)
				}
			}
			off += n
		}
		require.NoError(t, table.Check(size, 1))

		off := rapid.Uint64Range(0, size).Draw(t, "off")
		end := rapid.Uint64Range(off, size).Draw(t, "end")

		found := table.Find(off)
		for i := range table {
			require.Equal(t, i >= found, table[i].End() > off)
		}
		var in []int
		for i, s := range table.In(off, end) {
			require.Same(t, &table[i], s)
			in = append(in, i)
		}
		for i := range table {
			begins := table[i].Off < end && table[i].End() > off
			require.Equal(t, begins, slices.Contains(in, i))
		}
		have := off
		for have < end && owner[have] > 0 && table[owner[have]-1].State == slots.Accessible {
			have++
		}
		require.Equal(t, have, table.Accessible(off, end))

		whole := off < end
		for b := off; b < end; b++ {
			whole = whole && owner[b] > 0 && table[owner[b]-1].Off >= off && table[owner[b]-1].End() <= end
		}
		i, j, ok := table.Whole(off, end)
		require.Equal(t, whole, ok)
		if ok {
			require.Equal(t, []uint64{off, end}, []uint64{table[i].Off, table[j-1].End()})
		}

		next := 0
		for i, j := range table.Runs() {
			require.Equal(t, next, i, "every slot is in one run")
			for k := i + 1; k < j; k++ {
				require.Equal(t, table[k-1].End(), table[k].Off)
			}
			require.True(t, j == len(table) || table[j-1].End() < table[j].Off)
			next = j
		}
		require.Len(t, table, next)
	})
}

// TestCheck: what a table must not have is found.
func TestCheck(t *testing.T) {
	for name, table := range map[string]slots.Table[int, int]{
		"overlap":   {{Off: 0, Size: 4}, {Off: 2, Size: 4}},
		"order":     {{Off: 4, Size: 4}, {Off: 0, Size: 4}},
		"too far":   {{Off: 8, Size: 4}},
		"odd":       {{Off: 1, Size: 2}},
		"odd later": {{Off: 0, Size: 2}, {Off: 3, Size: 2}},
	} {
		require.Error(t, table.Check(10, 2), name)
	}
	require.NoError(t, slots.Table[int, int]{{Off: 0, Size: 4}, {Off: 6, Size: 4}}.Check(10, 2))
	require.NoError(t, slots.Table[int, int](nil).Check(0, 2))
}
