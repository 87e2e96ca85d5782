package drivertest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// childEnv names the subtest that a child process runs.
const childEnv = "CUVMM_DRIVERTEST_CHILD"

func isChild(t *testing.T) bool { return os.Getenv(childEnv) == t.Name() }

// runChild runs only this subtest, in a process of its own.
func runChild(c *check, t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("find the test binary: %v", err)
	}
	out, err := childCommand(t, self).CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("in a child process: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()):
		c.skip("%s", whySkipped(string(out)))
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("the child process did not run the case:\n%s", out)
	}
}

// whySkipped is the reason in the table that the child process logs.
func whySkipped(out string) string {
	if m := regexp.MustCompile(`\| skipped: (.*) \|`).FindStringSubmatch(out); m != nil {
		return m[1]
	}
	return "in a child process, which says\n" + out
}

// exactly is the -test.run pattern of one subtest.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// childCommand runs the case of c in a process of its own.
func childCommand(c testing.TB, self string) *exec.Cmd {
	cmd := exec.CommandContext(c.Context(), self, "-test.run="+exactly(c.Name()), "-test.v", "-test.timeout=2m")
	// A process under the race detector sleeps a second at its end unless told.
	cmd.Env = append(os.Environ(), childEnv+"="+c.Name(), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	return cmd
}
