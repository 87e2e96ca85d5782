package repochecks

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

const module = "github.com/cuvmm/cuvmm"

// withMore is what depends on Prometheus's client, or on pprof's profiles, so that nothing else in the
// library does.
var withMore = []string{"vmm/metrics", "shareable/metrics", "vmm/memprof", "vmm/memmap/gpuprocs"}

// platforms is where a library package may pull in something of its own.
var platforms = map[string][]string{
	"cgo":    {"GOOS=linux", "CGO_ENABLED=1"},
	"no cgo": {"GOOS=linux", "CGO_ENABLED=0"},
	"darwin": {"GOOS=darwin", "CGO_ENABLED=0"},
}

func TestLibraryDependencies(t *testing.T) {
	for name, env := range platforms {
		t.Run(name, func(t *testing.T) {
			if name != "cgo" {
				testgate.Long(t)
			}
			var library []string
			for _, pkg := range goList(t, env, "./...") {
				if inLibrary(pkg) {
					library = append(library, pkg)
				}
			}
			require.NotEmpty(t, library)
			require.Empty(t, foreign(t, env, library...))
		})
	}
}

// The same search must find something where there is something to find.
func TestForeignDependenciesAreSeen(t *testing.T) {
	got := foreign(t, nil, "github.com/stretchr/testify/require")
	require.Contains(t, got, "github.com/stretchr/testify/assert")
}

// inLibrary tells what users import from what is built or run here only.
func inLibrary(pkg string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(pkg, module+"/"), "/")
	switch top {
	case "cmd", "docs", "examples", "internal":
		return false
	}
	return !slices.Contains(withMore, strings.TrimPrefix(pkg, module+"/"))
}

// foreign lists what pkgs depend on, tests left out, beyond the standard
// library, this module and x/sys.
func foreign(t *testing.T, env []string, pkgs ...string) []string {
	t.Helper()
	var out []string
	args := append([]string{"-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, pkgs...)
	for _, pkg := range goList(t, env, args...) {
		if !under(pkg, module) && !under(pkg, "golang.org/x/sys") {
			out = append(out, pkg)
		}
	}
	return out
}

func under(pkg, root string) bool {
	return pkg == root || strings.HasPrefix(pkg, root+"/")
}

func goList(t *testing.T, env []string, args ...string) []string {
	t.Helper()
	return strings.Fields(goOutput(t, env, append([]string{"list"}, args...)...))
}

// goOutput runs the go command at the root of the module. What that command
// reads is unknown to the test cache, but TestSources reads every source file.
func goOutput(t *testing.T, env []string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	return string(out)
}

// root is the module's folder: a test runs in its package's.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Skip("needs the module's sources")
	}
	return dir
}
