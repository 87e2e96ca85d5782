package repochecks

import (
	"os"
	"path"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every example is in the list of them, and its program begins with at least two commands to try it.
func TestExamplesAreListed(t *testing.T) {
	list := readDoc(t, "examples/README.md")
	dirs, err := os.ReadDir(path.Join(root(t), "examples"))
	require.NoError(t, err)
	commands := regexp.MustCompile(`^// Command (?:.*\n//)+\n//\t.+\n//\t.+\n`)
	programs := 0
	for _, dir := range dirs {
		if !dir.IsDir() {
			continue
		}
		require.Contains(t, list, "| ["+dir.Name()+"]("+dir.Name()+"/")
		file := path.Join("examples", dir.Name(), "main.go")
		if _, err := os.Stat(path.Join(root(t), file)); err == nil {
			programs++
			require.Regexp(t, commands, readDoc(t, file), file)
		}
	}
	require.NotZero(t, programs)
}
