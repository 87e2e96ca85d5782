package report

import (
	"slices"
	"strings"
)

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
