package main

import (
	"math/bits"
	"math/rand/v2"
	"slices"
)

// exactUpTo is the size up to which the least order is searched exhaustively.
const exactUpTo = 20

// starts is how many random orders a larger component is improved from.
const starts = 4000

// graph says for each node which nodes it refers to.
type graph [][]bool

// against returns how many edges of g lead from a node of the order to a later one.
func (g graph) against(order []int) (n int) {
	for i, a := range order {
		for _, b := range order[i+1:] {
			n += one(g[a][b])
		}
	}
	return n
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// order returns the nodes so that few edges lead to a later node: for a
// component of up to exactUpTo nodes the fewest possible, else the fewest found.
func (g graph) order() (all []int) {
	for _, c := range g.components() {
		if len(c) <= exactUpTo {
			all = append(all, g.exact(c)...)
		} else {
			all = append(all, g.search(c)...)
		}
	}
	return all
}

// components returns the strongly connected components, each before those that
// refer to it (Tarjan).
func (g graph) components() (all [][]int) {
	index, low := make([]int, len(g)), make([]int, len(g))
	var stack []int
	next := 1
	var visit func(int)
	visit = func(v int) {
		index[v], low[v] = next, next
		next++
		stack = append(stack, v)
		for w := range g {
			if !g[v][w] {
				continue
			}
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if slices.Contains(stack, w) {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] == index[v] {
			i := slices.Index(stack, v)
			all = append(all, slices.Clone(stack[i:]))
			stack = stack[:i]
		}
	}
	for v := range g {
		if index[v] == 0 {
			visit(v)
		}
	}
	return all
}

// exact tries all orders of c, one set of earlier nodes at a time.
func (g graph) exact(c []int) []int {
	out := make([]uint32, len(c)) // the nodes that each refers to
	for i, a := range c {
		for j, b := range c {
			if g[a][b] {
				out[i] |= 1 << j
			}
		}
	}
	cost, last := make([]int, 1<<len(c)), make([]int, 1<<len(c))
	for set := 1; set < len(cost); set++ {
		cost[set] = len(c) * len(c)
		for i := range c {
			before := set &^ (1 << i)
			if before == set {
				continue
			}
			// With i last of the set, what i refers to outside lies ahead.
			if n := cost[before] + bits.OnesCount32(out[i]&^uint32(set)); n < cost[set] {
				cost[set], last[set] = n, i
			}
		}
	}
	order := make([]int, len(c))
	for set, i := len(cost)-1, len(c)-1; i >= 0; i-- {
		order[i] = c[last[set]]
		set &^= 1 << last[set]
	}
	return order
}

// search improves random orders of c by moving one node at a time.
func (g graph) search(c []int) (best []int) {
	rnd := rand.New(rand.NewPCG(1, 1))
	fewest := len(c) * len(c)
	for range starts {
		order := slices.Clone(c)
		rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for better := true; better; {
			better = false
			for i := range order {
				better = g.move(order, i) || better
			}
		}
		if n := g.against(order); n < fewest {
			fewest, best = n, order
		}
	}
	return best
}

// move puts the node at i where the fewest edges lead forward, and reports
// whether that is fewer than before.
func (g graph) move(order []int, i int) bool {
	v, to, least := order[i], i, 0
	for _, step := range []int{-1, 1} {
		change := 0
		for j := i + step; j >= 0 && j < len(order); j += step {
			// Passing w, v's own reference and w's change sides.
			w := order[j]
			change += step * (one(g[w][v]) - one(g[v][w]))
			if change < least {
				to, least = j, change
			}
		}
	}
	if to < i {
		copy(order[to+1:i+1], order[to:i])
	} else {
		copy(order[i:to], order[i+1:to+1])
	}
	order[to] = v
	return least < 0
}
