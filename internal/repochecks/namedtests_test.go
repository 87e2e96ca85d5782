package repochecks

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNamedTestsExist: docs/contributing/conformance.md names tests that are there.
func TestNamedTestsExist(t *testing.T) {
	dir := root(t)
	doc, err := os.ReadFile(filepath.Join(dir, "docs", "contributing", "conformance.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`(Test[A-Z]\\w*)`").FindAllStringSubmatch(string(doc), -1)
	require.NotEmpty(t, named)

	there := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, f := range function.FindAllSubmatch(src, -1) {
			there[string(f[1])] = true
		}
		return err
	}))
	for _, name := range named {
		require.True(t, there[name[1]], "docs/contributing/conformance.md names %s", name[1])
	}
}
