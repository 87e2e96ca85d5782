package main

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

func TestVersion(t *testing.T) {
	code, out, stderr := bench(t, "--version")
	require.Equal(t, report.ExitPassed, code)
	require.Empty(t, stderr)
	require.Regexp(t, `^vmmbench .+ go1\S+ \w+/\w+\n$`, out)
}

// Every script that builds vmmbench names the commit by the variable that --version prints.
func TestVersionNamesTheCommit(t *testing.T) {
	const wanted = `^vmmbench 4b1d2ef-dirty go\d`
	stamp := regexp.MustCompile(`-X (\S+)=\$`)
	for _, script := range []string{"../../Makefile", "../../tools/gpu-bundle", "../../tools/man"} {
		text, err := os.ReadFile(script)
		if os.IsNotExist(err) {
			t.Skip("needs the module's sources")
		}
		require.NoError(t, err)
		found := stamp.FindSubmatch(text)
		require.NotNil(t, found, script)
		require.Equal(t, "main.commit", string(found[1]), script)
	}
	t.Run("set", func(t *testing.T) { // not parallel: commit is the process's
		was := commit
		t.Cleanup(func() { commit = was })
		commit = "4b1d2ef-dirty"
		_, out, _ := bench(t, "--version")
		require.Regexp(t, wanted, out)
	})
	// The linker ignores a variable that it does not find.
	t.Run("linked", func(t *testing.T) {
		testgate.Long(t)
		if _, err := exec.LookPath("go"); err != nil {
			t.Skip("needs the go command")
		}
		out, err := exec.CommandContext(t.Context(), "go", "run", "-ldflags", "-X main.commit=4b1d2ef-dirty", ".", "--version").Output()
		require.NoError(t, err)
		require.Regexp(t, wanted, string(out))
	})
}
