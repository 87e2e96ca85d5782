package report

import (
	"fmt"
	"slices"
	"strings"
)

// MaxShown is how many cases of a report are drawn, and printed on a page. A page with
// more takes minutes to make, and is too long to read.
const MaxShown = 2000

// First returns the report with its first n cases, and with the first n comparisons of
// those that concern no other case. left says what it leaves out.
func (r *Report) First(n int) (part *Report, left []string) {
	out := map[string]bool{}
	for _, c := range r.Cases[min(n, len(r.Cases)):] {
		out[c.ID] = true
	}
	whole := *r
	part = &whole
	part.Cases = r.Cases[:min(n, len(r.Cases))]
	part.Comparisons = without(r.Comparisons, func(c Comparison) bool { return out[c.A] || out[c.B] })
	part.Comparisons = part.Comparisons[:min(n, len(part.Comparisons))]
	if k := len(r.Cases) - len(part.Cases); k > 0 {
		left = append(left, fmt.Sprintf("the last %d of %d cases", k, len(r.Cases)))
	}
	if k := len(r.Comparisons) - len(part.Comparisons); k > 0 {
		left = append(left, fmt.Sprintf("%d of %d comparisons", k, len(r.Comparisons)))
	}
	return part, left
}

// Only returns the report with those cases whose names begin with one of these, part by
// part: grow/1GiB has grow/1GiB/vmm, and not grow/1GiB-x2/vmm. Of the comparisons those
// stay whose cases do.
func (r *Report) Only(names ...string) *Report {
	wanted := func(id string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			return id == name || strings.HasPrefix(id, strings.TrimSuffix(name, "/")+"/")
		})
	}
	part := *r
	part.Cases = without(r.Cases, func(c Case) bool { return !wanted(c.ID) })
	part.Comparisons = without(r.Comparisons, func(c Comparison) bool { return !wanted(c.A) || !wanted(c.B) })
	return &part
}

// Group is the elements of a list that have the same key.
type Group[T any] struct {
	Key string
	Of  []T
}

// GroupBy parts a list by a key, in the order in which the keys come.
func GroupBy[T any](list []T, key func(T) string) (all []Group[T]) {
	at := map[string]int{}
	for _, x := range list {
		k := key(x)
		i, ok := at[k]
		if !ok {
			i = len(all)
			at[k], all = i, append(all, Group[T]{Key: k})
		}
		all[i].Of = append(all[i].Of, x)
	}
	return all
}

// without returns a list without the elements that drop names.
func without[T any](list []T, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), drop)
}
