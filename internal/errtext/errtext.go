// Package errtext has what texts of errors have in common.
package errtext

import "fmt"

// Wrapf puts what was done in front of *err, if that is an error. It is for the head of a
// function, whose result err then is: defer errtext.Wrapf(&err, "publish %q", name).
func Wrapf(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}

// Size is "2 MiB (2097152 bytes)": round sizes read well, odd ones stay exact.
func Size(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	v, u := float64(n)/(1<<10), 0
	for v >= 1<<10 && u < len(units)-1 {
		v, u = v/(1<<10), u+1
	}
	return fmt.Sprintf("%.4g %ciB (%d bytes)", v, units[u], n)
}

// Join is first, then what was done meanwhile, and why that failed; one of the two if the other is nil.
func Join(first error, doing string, second error) error {
	switch {
	case second == nil:
		return first
	case first == nil:
		return second
	}
	return fmt.Errorf("%w; %s: %w", first, doing, second)
}
