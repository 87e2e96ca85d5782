package size

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]uint64{
		"0": 0, "65536": 65536, "2M": 2 << 20, "2m": 2 << 20, "2MiB": 2 << 20, "2 MiB": 2 << 20,
		"2MB": 2_000_000, "64K": 64 << 10, "1.5G": 3 << 29, "1T": 1 << 40,
		"18446744073709551615": 1<<64 - 1, "9007199254740993": 1<<53 + 1,
		"9007199254740993B": 1<<53 + 1, "18446744073709551615B": 1<<64 - 1, "15 EiB": 15 << 60,
	} {
		got, err := Parse(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "M", "-1", "-2M", "2X", "x2", "99999999T", "16EiB", "1e3", "NaN"} {
		_, err := Parse(in)
		require.Error(t, err, in)
	}
}

func TestParseList(t *testing.T) {
	for in, want := range map[string][]uint64{
		"4K":              {4096},
		"4K,1M":           {4096, 1 << 20},
		"64K:256K:x2":     {64 << 10, 128 << 10, 256 << 10},
		"64K:300K:x2":     {64 << 10, 128 << 10, 256 << 10},
		"16M:48M:+16M,1G": {16 << 20, 32 << 20, 48 << 20, 1 << 30},
		"0:2:+1":          {0, 1, 2},
		"9223372036854775808:18446744073709551615:x2":                   {1 << 63},
		"9223372036854775808:18446744073709551615:+9223372036854775807": {1 << 63, 1<<64 - 1},
	} {
		got, err := ParseList(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "1,", "1:2", "2:1:x2", "1:2:x1", "1:2:y2", "0:8:x2", "1:2:+0", "1:1T:+1", "1:2:x", "a:b:x2"} {
		_, err := ParseList(in)
		require.Error(t, err, in)
	}
}

// Whatever is typed is refused or read, and what is read prints as itself.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"0", "2M", "1.5GiB", "2 MB", "-1", "18446744073709551615", "99999999T", "NaN", "+Inf", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Parse(s)
		if err != nil {
			return
		}
		back, err := Parse(Format(n))
		require.NoError(t, err)
		require.Equal(t, n, back)
	})
}

// A list that is read is neither empty nor endless, a range rises and stays
// within its ends, and what is read prints as itself.
func FuzzParseList(f *testing.F) {
	for _, s := range []string{"4K,1M", "64K:1G:x2", "16M:48M:+16M", "1:1T:+1", "9223372036854775808:18446744073709551615:x2", "1:2:x", ",", "::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParseList(s)
		if err != nil {
			return
		}
		require.NotEmpty(t, list)
		require.LessOrEqual(t, len(list), maxList)
		if from, to, ok := strings.Cut(s, ":"); ok && !strings.Contains(s, ",") {
			to, _, _ = strings.Cut(to, ":")
			first, err := Parse(from)
			require.NoError(t, err)
			last, err := Parse(to)
			require.NoError(t, err)
			require.Equal(t, first, list[0])
			require.LessOrEqual(t, list[len(list)-1], last)
			require.IsIncreasing(t, append([]uint64{first}, list[1:]...))
		}
		l := List(list)
		back, err := ParseList(l.String())
		require.NoError(t, err)
		require.Equal(t, list, back)
	})
}

func TestErrorsPrintBytes(t *testing.T) {
	_, err := ParseList("2M:1M:x2")
	require.ErrorContains(t, err, "2097152 bytes")
}

func TestFormat(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0B", 1: "1B", 1023: "1023B", 1024: "1KiB", 2 << 20: "2MiB", 2<<20 + 1: "2097153B", 3 << 29: "1536MiB", 1 << 63: "8EiB",
	} {
		require.Equal(t, want, Format(n))
		back, err := Parse(want)
		require.NoError(t, err)
		require.Equal(t, n, back)
	}
}

func TestFlags(t *testing.T) {
	l := List{1}
	require.NoError(t, l.Set("2M,4M"))
	require.Equal(t, "2MiB,4MiB", l.String())
	var o One
	require.NoError(t, o.Set("64K"))
	require.Equal(t, "64KiB", o.String())
	require.Error(t, o.Set("lots"))
}
