// Package testgate decides whether a test that needs what this machine lacks is
// skipped or fails. VMM_TEST_REQUIRE lists what must be there, as in
// VMM_TEST_REQUIRE=cuda,p2p: a machine that is there to run those tests should
// not skip them in silence.
package testgate

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Require goes on when missing is nil. Else it skips the test, saying what is
// missing and why, or fails it where VMM_TEST_REQUIRE names what.
func Require(tb testing.TB, what string, missing error) {
	tb.Helper()
	if missing == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("VMM_TEST_REQUIRE"), ","), what) {
		tb.Fatalf("VMM_TEST_REQUIRE asks for %s: %v", what, missing)
	}
	tb.Skipf("needs %s: %v", what, missing)
}
