package main

import (
	"fmt"
	"regexp"
)

// filtered returns the groups with the cases whose names match only. Nothing that matches is
// a usageError.
func filtered(groups []group, match *regexp.Regexp) (list []group, err error) {
	for _, g := range groups {
		if g = g.only(match); len(g.tasks) > 0 {
			list = append(list, g)
		}
	}
	if len(list) > 0 || len(groups) == 0 {
		return list, nil
	}
	return nil, usageError{fmt.Errorf("--filter %s: no case matches; --dry-run lists the names, such as %s", match, casesOf(groups)[0].ID)}
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
