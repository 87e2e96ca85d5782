package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/man"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

// commandsOf are the commands of vmmbench, as its user has them.
func commandsOf() *cobra.Command { return (&app{settings: userSettings()}).commands() }

// There is a page for each command, which names the command and its flags. What is hidden
// stays hidden.
func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man")
	require.NoError(t, man.Write(dir, commandsOf(), "vmmbench 1.2"))
	pages := map[string]bool{}
	for name, text := range pagesIn(t, dir) {
		pages[name] = true
		require.Contains(t, text, "vmmbench 1.2")
	}
	root := commandsOf()
	require.NotEmpty(t, root.Commands())
	checkPages(t, dir, root, pages)
	require.Empty(t, pages, "pages of no command")
}

// pagesIn returns the texts of the pages in a folder.
func pagesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	pages := map[string]string{}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		pages[f.Name()] = string(text)
	}
	return pages
}

// tools/man writes those pages, and those of vmmstored, with the version of what it builds.
func TestManScript(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	for _, tool := range []string{"go", "bash", "../../tools/man"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	dir := t.TempDir()
	byScript, direct := filepath.Join(dir, "script", "man"), filepath.Join(dir, "direct")
	out, err := exec.CommandContext(t.Context(), "../../tools/man", byScript).CombinedOutput()
	require.NoError(t, err, "%s", out)
	pages := pagesIn(t, byScript)
	version := regexp.MustCompile(`(?m)^\.TH .* "vmmbench ([^"]*)"`).FindStringSubmatch(pages["vmmbench.1"])
	require.NotNil(t, version)
	if commit, err := exec.CommandContext(t.Context(), "git", "describe", "--always", "--dirty").Output(); err == nil {
		require.Equal(t, strings.TrimSpace(string(commit)), version[1])
	}
	require.Contains(t, pages["vmmstored-stats.1"], `"vmmstored `+version[1]+`"`)
	maps.DeleteFunc(pages, func(page, _ string) bool { return strings.HasPrefix(page, "vmmstored") })
	require.NoError(t, man.Write(direct, commandsOf(), "vmmbench "+version[1]))
	require.Equal(t, pagesIn(t, direct), pages)
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
