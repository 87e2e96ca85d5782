// Package testgate decides whether a test that needs what this machine lacks is
// skipped or fails. VMM_TEST_REQUIRE lists what must be there, as in
// VMM_TEST_REQUIRE=cuda,p2p: a machine that is there to run those tests should
// not skip them in silence, nor for a slip of the pen.
package testgate

import (
	"os"
	"strings"
	"testing"
)

// Require goes on when missing is nil. Else it skips the test, saying what is
// missing and why, or fails it where VMM_TEST_REQUIRE names what. A name in
// there that no test asks for fails every test that comes here.
func Require(tb testing.TB, what string, missing error) {
	tb.Helper()
	required := false
	for name := range strings.SplitSeq(os.Getenv("VMM_TEST_REQUIRE"), ",") {
		name = strings.TrimSpace(name)
		switch name {
		case "", "cuda", "p2p":
		default:
			tb.Fatalf("VMM_TEST_REQUIRE asks for %q; there are cuda and p2p", name)
		}
		required = required || name == what
	}
	switch {
	case missing == nil:
	case required:
		tb.Fatalf("VMM_TEST_REQUIRE asks for %s: %v", what, missing)
	default:
		tb.Skipf("needs %s: %v", what, missing)
	}
}
