// Package testgate decides whether a test is skipped or fails if this machine lacks
// what the test needs. VMM_TEST_REQUIRE lists what must be there, as in
// VMM_TEST_REQUIRE=cuda,p2p. So a machine that exists to run those tests skips none of
// them silently, nor because of a misspelled name. InChild runs a test in a process of its
// own.
package testgate

import (
	"os"
	"strings"
	"testing"
)

// Require returns if missing is nil. Else it skips the test and says what is missing
// and why, or fails the test if VMM_TEST_REQUIRE names what. A name in
// VMM_TEST_REQUIRE that no test knows fails every test that calls Require.
func Require(tb testing.TB, what string, missing error) {
	tb.Helper()
	required := false
	for name := range strings.SplitSeq(os.Getenv("VMM_TEST_REQUIRE"), ",") {
		name = strings.TrimSpace(name)
		switch name {
		case "", "host", "cuda", "p2p", "nvrtc", "nccl", "onnxruntime":
		default:
			tb.Fatalf("VMM_TEST_REQUIRE asks for %q; there are host, cuda, p2p, nvrtc, nccl and onnxruntime", name)
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
