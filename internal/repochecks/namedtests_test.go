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

// TestNamedTestsExist: conformance.md and field-cases.md name tests that are there.
func TestNamedTestsExist(t *testing.T) {
	dir := root(t)
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
	for _, doc := range []string{"docs/contributing/conformance.md", "docs/contributing/field-cases.md"} {
		named := regexp.MustCompile("`(?:[\\w/]+\\.)?(Test[A-Z]\\w*)`").FindAllStringSubmatch(readDoc(t, doc), -1)
		require.NotEmpty(t, named, doc)
		for _, name := range named {
			require.True(t, there[name[1]], "%s names %s", doc, name[1])
		}
	}
}
