package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// filtered returns the groups with the cases whose names match only. Nothing that matches is
// a usageError, which names the words of cases that are nearest.
func filtered(groups []group, match *regexp.Regexp) ([]group, error) {
	var list []group
	var words []string
	first := ""
	for _, g := range groups {
		at := make([]int, len(g.tasks)) // where each task is afterwards
		var tasks []task
		for i, t := range g.tasks {
			words = append(words, strings.Split(t.c.ID, "/")...)
			first = cmp.Or(first, t.c.ID)
			if at[i] = -1; match.MatchString(t.c.ID) {
				at[i] = len(tasks)
				tasks = append(tasks, t)
			}
		}
		if len(tasks) == 0 {
			continue
		}
		if g.compared != nil {
			kept := []pair{}
			for _, p := range g.compared {
				if p = (pair{at[p.a], at[p.b]}); p.a >= 0 && p.b >= 0 {
					kept = append(kept, p)
				}
			}
			g.compared = kept
		}
		g.tasks = tasks
		list = append(list, g)
	}
	if len(list) > 0 {
		return list, nil
	}
	err := fmt.Errorf("--filter %s: no case matches; --dry-run lists the names, such as %s", match, first)
	for typed := range strings.FieldsFuncSeq(match.String(), func(c rune) bool { return strings.ContainsRune(`/^$()|`, c) }) {
		if near := nearest(typed, words); near != "" && near != typed {
			err = fmt.Errorf("%w; did you mean %s?", err, near)
			break
		}
	}
	return nil, usageError{err}
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
