package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// filtered returns the groups with the cases whose names match only. Nothing that matches is
// a usageError, which names the words of cases that are nearest.
func filtered(groups []group, match *regexp.Regexp) (list []group, err error) {
	for _, g := range groups {
		if g = g.only(match); len(g.tasks) > 0 {
			list = append(list, g)
		}
	}
	if len(list) > 0 || len(groups) == 0 {
		return list, nil
	}
	var words []string
	cases := casesOf(groups)
	for _, c := range cases {
		words = append(words, strings.Split(c.ID, "/")...)
	}
	err = fmt.Errorf("--filter %s: no case matches; --dry-run lists the names, such as %s", match, cases[0].ID)
	for typed := range strings.FieldsFuncSeq(match.String(), func(c rune) bool { return strings.ContainsRune(`/^$()|`, c) }) {
		if near := nearest(typed, words); near != "" && near != typed {
			err = fmt.Errorf("%w; did you mean %s?", err, near)
			break
		}
	}
	return nil, usageError{err}
}

// only is the group with the tasks whose names match.
func (g group) only(match *regexp.Regexp) group {
	kept := map[string]int{} // where tasks are afterwards
	all := g.tasks
	g.tasks = nil
	for _, t := range all {
		if match.MatchString(t.c.ID) {
			kept[t.c.ID] = len(g.tasks)
			g.tasks = append(g.tasks, t)
		}
	}
	pairs := []pair{}
	for _, p := range g.compared {
		a, ok := kept[all[p.a].c.ID]
		b, too := kept[all[p.b].c.ID]
		if ok && too {
			pairs = append(pairs, pair{a, b})
		}
	}
	if g.compared != nil {
		g.compared = pairs
	}
	return g
}

// nearest returns those of the words that are most like what was typed, at most three of
// them; empty if none is.
func nearest(typed string, words []string) string {
	words = slices.Clone(words)
	slices.Sort(words)
	all := &cobra.Command{SuggestionsMinimumDistance: 1}
	for _, word := range slices.Compact(words) {
		all.AddCommand(&cobra.Command{Use: word, Run: func(*cobra.Command, []string) {}})
	}
	for ; all.SuggestionsMinimumDistance <= max(2, len(typed)/3); all.SuggestionsMinimumDistance++ {
		if near := all.SuggestionsFor(typed); len(near) > 0 {
			return strings.Join(near[:min(len(near), 3)], ", ")
		}
	}
	return ""
}
