package report

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
