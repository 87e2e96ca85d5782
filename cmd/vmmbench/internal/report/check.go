package report

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/stat"
)

// checkMargin refuses what no run can have as its margin. Pictures are scaled by it.
func checkMargin(v float64) error {
	if !(v >= 0 && v < 1) { // also what is no number
		return fmt.Errorf("margin %v is not in [0, 1)", v)
	}
	return nil
}

// checkFigures refuses what no time, size or ratio can be.
func checkFigures(list ...float64) error {
	for _, v := range list {
		if !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%v is no figure that can be measured", v)
		}
	}
	return nil
}

// check refuses a case that no run can have measured.
func (c *Case) check() error {
	switch {
	case c.ID == "":
		return errors.New("it has no id")
	case !slices.Contains(statuses, c.Status):
		return fmt.Errorf("status %q is none of %v", c.Status, statuses)
	}
	if err := checkFigures(c.Samples...); err != nil || c.Stats == nil {
		return err
	}
	s := c.Stats
	switch {
	case s.N < 0:
		return fmt.Errorf("%d samples", s.N)
	case s.Loops < 1:
		return fmt.Errorf("%d repetitions in a sample", s.Loops)
	case len(c.Samples) > 0 && s.N != len(c.Samples):
		return fmt.Errorf("%d samples by its statistics, %d in its list", s.N, len(c.Samples))
	}
	// The ends of an interval can be below 0: they are estimated.
	for _, m := range c.Metrics() {
		if x, ok := m.number(); ok && m.Name != "value_low" && m.Name != "value_high" {
			if err := checkFigures(x); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
		}
	}
	if s.Growth == nil {
		return nil
	}
	return checkFigures(slices.Concat(s.Growth.Samples...)...)
}

// check refuses a comparison that no run can have made.
func (c *Comparison) check() error {
	switch {
	case !slices.Contains(stat.Verdicts(), c.Verdict):
		return fmt.Errorf("verdict %q is none of %v", c.Verdict, stat.Verdicts())
	case c.Verdict.Firm() && (c.Ratio == nil || c.Low == nil || c.High == nil):
		return fmt.Errorf("it is %s without an interval", c.Verdict)
	}
	if c.Ratio != nil {
		if err := checkFigures(*c.Ratio); err != nil {
			return err
		}
	}
	return checkMargin(c.Margin)
}
