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
	part.Cases = slices.DeleteFunc(slices.Clone(r.Cases), func(c Case) bool { return !wanted(c.ID) })
	part.Comparisons = slices.DeleteFunc(slices.Clone(r.Comparisons), func(c Comparison) bool { return !wanted(c.A) || !wanted(c.B) })
	return &part
}

// Write writes a whole report, as a run writes it part by part.
func (o Output) Write(r *Report) error {
	if err := o.Started(r); err != nil {
		return err
	}
	for _, c := range r.Cases {
		if err := o.Case(c); err != nil {
			return err
		}
	}
	for _, c := range r.Comparisons {
		if err := o.Comparison(c); err != nil {
			return err
		}
	}
	return o.Finished(r)
}
