package size

import (
	"slices"
	"strings"
)

// One is a flag that takes one size.
type One uint64

// Set implements pflag.Value.
func (o *One) Set(s string) error {
	n, err := Parse(s)
	*o = One(n)
	return err
}

func (o *One) String() string { return Format(uint64(*o)) }

// Type implements pflag.Value.
func (o *One) Type() string { return "SIZE" }

// List is a flag that takes a list or range of sizes.
type List []uint64

// Set implements pflag.Value. It replaces the default.
func (l *List) Set(s string) error {
	list, err := ParseList(s)
	*l = nil
	for _, n := range list {
		if !slices.Contains(*l, n) { // 1G:1G:x2,1G is one size
			*l = append(*l, n)
		}
	}
	return err
}

func (l *List) String() string {
	text := make([]string, len(*l))
	for i, n := range *l {
		text[i] = Format(n)
	}
	return strings.Join(text, ",")
}

// Type implements pflag.Value.
func (l *List) Type() string { return "SIZES" }
