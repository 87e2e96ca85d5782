package main

import (
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The scripts that build vmmbench name the commit by a variable that the linker ignores if
// it is called otherwise.
func TestVersionNamesTheCommit(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	stamp := regexp.MustCompile(`-X (\S+)=\$`)
	for _, script := range []string{"../../Makefile", "../../tools/gpu-bundle"} {
		text, err := os.ReadFile(script)
		if os.IsNotExist(err) {
			t.Skip("needs the module's sources")
		}
		require.NoError(t, err)
		found := stamp.FindSubmatch(text)
		require.NotNil(t, found, script)
		out, err := exec.CommandContext(t.Context(), "go", "run", "-ldflags", "-X "+string(found[1])+"=4b1d2ef-dirty", ".", "--version").Output()
		require.NoError(t, err)
		require.Regexp(t, `^vmmbench 4b1d2ef-dirty go\d`, string(out), script)
	}
}
