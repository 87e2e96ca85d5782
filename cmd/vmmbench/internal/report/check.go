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
	return checkFigures(s.figures()...)
}

// figures are those that cannot be below 0. The ends of an interval can: they are estimated.
func (s *Stats) figures() []float64 {
	list := []float64{s.Median, s.MAD, s.Min, s.Max, s.P5, s.P95, s.Value}
	for _, v := range []*float64{s.Traffic, s.Timer} {
		if v != nil {
			list = append(list, *v)
		}
	}
	if b := s.Both; b != nil {
		list = append(list, b.Forward, b.Reverse)
	}
	if g := s.Growth; g != nil {
		list = append(list, float64(g.Steps), g.StepP50, g.StepP99, g.StepMax, float64(g.Moves))
		list = append(list, slices.Concat(g.Samples...)...)
	}
	if x := s.Sharing; x != nil {
		list = append(list, x.P99, float64(x.ReaderFDs))
	}
	if x := s.Pooled; x != nil {
		list = append(list, float64(x.Failures))
	}
	return list
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
