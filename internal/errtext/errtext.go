// Package errtext adds to an error's text.
package errtext

import "fmt"

// Wrapf puts what was done in front of *err, if that is an error. It is for the head of a
// function, whose result err then is: defer errtext.Wrapf(&err, "publish %q", name).
func Wrapf(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}
