package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// tools/man writes a page for each command, which names the command and its flags. What is
// hidden stays hidden.
func TestManPages(t *testing.T) {
	for _, tool := range []string{"go", "bash", "../../tools/man"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	dir := filepath.Join(t.TempDir(), "man")
	out, err := exec.CommandContext(t.Context(), "../../tools/man", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	pages := map[string]bool{}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		pages[f.Name()] = true
	}
	root := (&app{}).commands()
	require.NotEmpty(t, root.Commands())
	checkPages(t, dir, root, pages)
	require.Empty(t, pages, "pages of no command")
}

// checkPages removes the pages of c and its commands from pages.
func checkPages(t *testing.T, dir string, c *cobra.Command, pages map[string]bool) {
	t.Helper()
	page := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
	require.Contains(t, pages, page)
	delete(pages, page)
	text, err := os.ReadFile(filepath.Join(dir, page))
	require.NoError(t, err)
	plain := strings.NewReplacer(`\fB`, "", `\fP`, "", `\fR`, "", `\&`, "", `\`, "").Replace(string(text)) // without what roff needs
	require.Contains(t, plain, c.Short, page)
	for line := range strings.SplitSeq(c.Long, "\n") {
		// A list is indented by the page.
		require.Contains(t, plain, "\n"+strings.TrimPrefix(line, "  ")+"\n", "%s, in a line of its own", page)
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			require.NotContains(t, plain, "--"+f.Name, page)
		} else {
			require.Contains(t, plain, "--"+f.Name, page)
			_, usage := pflag.UnquoteUsage(f)
			require.Contains(t, plain, "\t"+usage+"\n", page)
		}
	})
	for _, sub := range c.Commands() {
		switch {
		case sub.Name() == "completion": // its texts are cobra's
			maps.DeleteFunc(pages, func(page string, _ bool) bool { return strings.HasPrefix(page, "vmmbench-completion") })
		case sub.IsAvailableCommand():
			checkPages(t, dir, sub, pages)
		}
	}
}
