// Package fakenvml builds a small NVML for tests: three GPUs, and a MIG instance.
package fakenvml

import (
	_ "embed"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed testdata/nvml.c
var source string

// Build builds it against NVIDIA's own header, without the functions that are named, and returns its
// path.
func Build(t *testing.T, missing ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("needs a C compiler: %v", err)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Skipf("needs the go command: %v", err)
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := []string{
		"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-fPIC", "-shared", "-DNVML_NO_UNVERSIONED_FUNC_DEFS",
		"-I", filepath.Join(strings.TrimSpace(string(dir)), "pkg/nvml"), "-o", path,
	}
	for _, symbol := range missing {
		args = append(args, "-D"+symbol+"=absent_"+symbol)
	}
	cmd := exec.CommandContext(t.Context(), cc, append(args, "-x", "c", "-")...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}
