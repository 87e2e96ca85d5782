package slots_test

import (
	"fmt"
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
				at := table.Len()
				table.Insert(at, 1)
				*table.At(at) = slot{Off: off, Size: n, Mem: at, State: state}
				for b := off; b < off+n; b++ {
					owner[b] = table.Len()
				}
			}
			off += n
		}
		require.NoError(t, table.Check(size, 1))

		off := rapid.Uint64Range(0, size).Draw(t, "off")
		end := rapid.Uint64Range(off, size).Draw(t, "end")

		found := table.Find(off)
		for i := range table.Len() {
			require.Equal(t, i >= found, table.At(i).End() > off)
		}
		var in []int
		for i, s := range table.In(off, end) {
			require.Same(t, table.At(i), s)
			in = append(in, i)
		}
		for i := range table.Len() {
			begins := table.At(i).Off < end && table.At(i).End() > off
			require.Equal(t, begins, slices.Contains(in, i))
		}
		have := off
		for have < end && owner[have] > 0 && table.At(owner[have]-1).State == slots.Accessible {
			have++
		}
		require.Equal(t, have, table.Accessible(off, end))

		whole := off < end
		for b := off; b < end; b++ {
			whole = whole && owner[b] > 0 && table.At(owner[b]-1).Off >= off && table.At(owner[b]-1).End() <= end
		}
		i, j, ok := table.Whole(off, end)
		require.Equal(t, whole, ok)
		if ok {
			require.Equal(t, []uint64{off, end}, []uint64{table.At(i).Off, table.At(j - 1).End()})
		}

		next := 0
		for i, j := range table.Runs() {
			require.Equal(t, next, i, "every slot is in one run")
			for k := i + 1; k < j; k++ {
				require.Equal(t, table.At(k-1).End(), table.At(k).Off)
			}
			require.True(t, j == table.Len() || table.At(j-1).End() < table.At(j).Off)
			next = j
		}
		require.Equal(t, next, table.Len())
	})
}

type slot = slots.Slot[int, int]

// of is a table of these slots.
func of(all ...slot) *slots.Table[int, int] {
	t := slots.New[int, int](0)
	t.Insert(0, len(all))
	for i, s := range all {
		*t.At(i) = s
	}
	return &t
}

// TestInsertDelete compares with a slice, wherever the changes are, and with the room a
// table began with.
func TestInsertDelete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := slots.New[int, int](rapid.IntRange(0, 8).Draw(t, "room"))
		var model []slot
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				i, n := rapid.IntRange(0, len(model)).Draw(t, "i"), rapid.IntRange(0, 5).Draw(t, "n")
				table.Insert(i, n)
				for k := range n {
					require.Zero(t, *table.At(i + k))
					next++
					*table.At(i + k) = slot{Off: next}
					model = slices.Insert(model, i+k, slot{Off: next})
				}
			},
			"delete": func(t *rapid.T) {
				i := rapid.IntRange(0, len(model)).Draw(t, "i")
				j := rapid.IntRange(i, len(model)).Draw(t, "j")
				table.Delete(i, j)
				model = slices.Delete(model, i, j)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(model), table.Len())
				for i, s := range table.All() {
					require.Equal(t, model[i], *s)
				}
				require.True(t, table.FreeIsZero(), "what is gone keeps nothing alive")
			},
		})
	})
}

// BenchmarkDeleteEveryOther: what each deletion costs.
func BenchmarkDeleteEveryOther(b *testing.B) {
	for _, n := range []int{3_200, 32_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				t := slots.New[int, int](0)
				t.Insert(0, 2*n)
				b.StartTimer()
				for i := range n {
					t.Delete(i, i+1)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/slot")
		})
	}
}

// TestCheck: what a table must not have is found.
func TestCheck(t *testing.T) {
	for name, table := range map[string]*slots.Table[int, int]{
		"overlap":   of(slot{Off: 0, Size: 4}, slot{Off: 2, Size: 4}),
		"order":     of(slot{Off: 4, Size: 4}, slot{Off: 0, Size: 4}),
		"too far":   of(slot{Off: 8, Size: 4}),
		"odd":       of(slot{Off: 1, Size: 2}),
		"odd later": of(slot{Off: 0, Size: 2}, slot{Off: 3, Size: 2}),
	} {
		require.Error(t, table.Check(10, 2), name)
	}
	require.NoError(t, of(slot{Off: 0, Size: 4}, slot{Off: 6, Size: 4}).Check(10, 2))
	require.NoError(t, of().Check(0, 2))
}
