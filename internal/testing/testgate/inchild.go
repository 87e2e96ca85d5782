package testgate

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// childEnv names the test that a child process runs.
const childEnv = "CUVMM_TEST_CHILD"

// Child reports whether this is a process that InChild runs. What a test leaves there does no
// harm.
func Child() bool { return os.Getenv(childEnv) != "" }

// InChild is for a test that harms its process: one that loses its device, for one. It is
// true in a child process, which runs this test alone. Elsewhere it runs that process, fails
// if the test does not pass there, skips it if it was skipped there, and is false.
func InChild(t testing.TB) bool {
	t.Helper()
	if os.Getenv(childEnv) == t.Name() {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err == nil && strings.Contains(string(out), "--- SKIP: "+t.Name()) {
		t.Skipf("in a child process:\n%s", out)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a child process: %v\n%s", err, out)
	}
	t.Logf("in a child process:\n%s", out)
	return false
}
