package testgate

import (
	"os"
	"testing"
)

// Long skips a test that is for make thorough, in the quick suite (go test -short, which is
// make test).
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("takes long: make thorough runs it")
	}
}

// Soak reports whether VMM_SOAK is set, as in make soak.
func Soak() bool { return os.Getenv("VMM_SOAK") != "" }

// Effort picks how much a test does: quick in make test, thorough in make thorough, soak in
// make soak.
func Effort[T any](quick, thorough, soak T) T {
	switch {
	case Soak():
		return soak
	case testing.Short():
		return quick
	}
	return thorough
}
