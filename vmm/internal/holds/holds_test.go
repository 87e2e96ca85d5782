package holds_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/internal/holds"
)

func TestList(t *testing.T) {
	var l holds.List
	require.Empty(t, l.All())
	n := uint64(5)
	a, b := &holds.Hold{What: "a", Off: 2, End: 4}, &holds.Hold{What: "b", Below: func() uint64 { return n }}
	none := &holds.Hold{What: "none"}
	for _, h := range []*holds.Hold{a, b, none, {What: "a", Off: 2, End: 4}} {
		l.Add(h)
	}
	require.Equal(t, []string{"a [0x2, 0x4)", "b [0x0, 0x5)", "none"}, l.All(), "each name once")
	require.Equal(t, []string{"b [0x0, 0x5)"}, l.In(4, 9, nil))
	require.Empty(t, l.In(5, 9, nil))
	require.Empty(t, l.In(4, 9, b))
	n = 7
	require.NotEmpty(t, l.In(6, 7, nil), "it ends where it ends now")
	require.Equal(t, []*holds.Hold{b}, l.ToTell())
	l.Fix(b, 3)
	require.Empty(t, l.ToTell())
	require.Empty(t, l.In(4, 9, nil))
	for _, h := range []*holds.Hold{a, b, b, none} {
		l.Remove(h)
	}
	require.Equal(t, []string{"a [0x2, 0x4)"}, l.All())
}

// TestManyHolds: of many the first few are named, and the texts of the others are not made.
func TestManyHolds(t *testing.T) {
	var l holds.List
	var all []*holds.Hold
	texts := 0
	for i := range 1000 {
		all = append(all, &holds.Hold{What: strconv.Itoa(i), Below: func() uint64 { texts++; return 0 }})
		l.Add(all[i])
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "and 992 more"}, l.All())
	require.Equal(t, 8, texts)
	for i, h := range all {
		l.Remove(h)
		l.Remove(h)
		require.Len(t, l.ToTell(), len(all)-1-i)
	}
	require.Empty(t, l.All())
}
