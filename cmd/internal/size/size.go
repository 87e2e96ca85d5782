// Package size reads and prints numbers of bytes as the programs' flags take them.
package size

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// maxList bounds a range such as 1:1T:+1, which is more likely a mistake.
const maxList = 1000

var units = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Parse reads one size. A single letter is binary: 2M is 2 MiB, because sizes of
// memory are powers of two. The full names keep their meaning: 2MiB is 2,097,152
// and 2MB is 2,000,000.
func Parse(s string) (uint64, error) {
	t := strings.TrimSpace(s)
	if n, err := strconv.ParseUint(t, 10, 64); err == nil {
		return n, nil
	}
	if t != "" && strings.ContainsRune("kKmMgGtT", rune(t[len(t)-1])) {
		t += "iB"
	}
	if strings.HasPrefix(t, "-") {
		return 0, fmt.Errorf("size %q: negative", s)
	}
	number := strings.TrimRight(t, "KMGTPEiB")
	if n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64); err == nil {
		if u := slices.Index(units, t[len(number):]); u >= 0 && n<<(10*u)>>(10*u) == n {
			return n << (10 * u), nil // exact, where a float has 53 bits
		}
	}
	n, err := humanize.ParseBytes(t)
	if err != nil {
		return 0, fmt.Errorf("size %q: want a number of bytes such as 65536, 64K, 2M or 1.5GiB", s)
	}
	if n == math.MaxUint64 {
		return 0, fmt.Errorf("size %q: beyond 64 bits", s)
	}
	return n, nil
}

// ParseList reads sizes separated by commas. An item may be a range: 64K:1G:x2
// multiplies from 64 KiB up to 1 GiB, 16M:64M:+16M adds.
func ParseList(s string) ([]uint64, error) {
	var list []uint64
	for item := range strings.SplitSeq(s, ",") {
		more, err := parseItem(item)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
		if len(list) > maxList {
			return nil, fmt.Errorf("size list %q: more than %d sizes", s, maxList)
		}
	}
	return list, nil
}

func parseItem(s string) ([]uint64, error) {
	parts := strings.Split(s, ":")
	if len(parts) == 1 {
		n, err := Parse(s)
		return []uint64{n}, err
	}
	if len(parts) != 3 || len(parts[2]) < 2 {
		return nil, fmt.Errorf("size range %q: want FROM:TO:xFACTOR or FROM:TO:+STEP", s)
	}
	from, err := Parse(parts[0])
	if err != nil {
		return nil, err
	}
	to, err := Parse(parts[1])
	if err != nil {
		return nil, err
	}
	by, err := Parse(parts[2][1:])
	if err != nil {
		return nil, err
	}
	if from > to {
		return nil, fmt.Errorf("size range %q: runs from %d bytes down to %d", s, from, to)
	}

	// A step that does not grow would never end.
	var next func(uint64) uint64
	switch {
	case parts[2][0] == 'x' && by >= 2 && from > 0:
		next = func(n uint64) uint64 { return n * by }
	case parts[2][0] == '+' && by >= 1:
		next = func(n uint64) uint64 { return n + by }
	default:
		return nil, fmt.Errorf("size range %q: the step must be x2 or more, from more than 0, or +1 or more", s)
	}
	var list []uint64
	for n := from; n <= to; {
		if list = append(list, n); len(list) > maxList {
			return nil, fmt.Errorf("size range %q: more than %d sizes", s, maxList)
		}
		up := next(n)
		if up <= n || (parts[2][0] == 'x' && up/by != n) {
			break // past 64 bits
		}
		n = up
	}
	return list, nil
}

// Format prints n in the largest binary unit that is exact: 2MiB, 2097153B.
func Format(n uint64) string {
	u := 0
	for n != 0 && n%1024 == 0 && u < len(units)-1 {
		n /= 1024
		u++
	}
	return strconv.FormatUint(n, 10) + units[u]
}

// Approx prints n rounded to a few digits, for people: 24 GiB.
func Approx(n uint64) string { return humanize.IBytes(n) }
