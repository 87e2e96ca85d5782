package walls

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// copies is a program that copies what must not be copied, one type a function, and a
// Layout, which may be.
const copies = `package main

import (
	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

func Range(x *vmm.Range) any                       { y := *x; return &y }
func Reservation(x *vmm.Reservation) any           { y := *x; return &y }
func Device(x *vmm.Device) any                     { y := *x; return &y }
func Vector(x *growable.Vector[float32]) any       { y := *x; return &y }
func Rows(x *growable.Rows[float32]) any           { y := *x; return &y }
func Reader(x *growable.Reader[float32]) any       { y := *x; return &y }
func RowsReader(x *growable.RowsReader[float32]) any { y := *x; return &y }
func Writer(x *growable.Writer[float32]) any       { y := *x; return &y }
func View(x *shareable.View) any                   { y := *x; return &y }
func Publication(x *shareable.Publication) any     { y := *x; return &y }
func Server(x *shareable.Server) any               { y := *x; return &y }
func Layout(x *vmm.Layout) any                     { y := *x; return &y }

func main() {}
`

// TestVetFindsCopies: in a module of a user's, go vet finds each of these copies. A copy
// would share memory with the original, and close it.
func TestVetFindsCopies(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	here, dir := root(t), t.TempDir()
	// Our own requirements, so that nothing is looked up.
	mod, err := os.ReadFile(filepath.Join(here, "go.mod"))
	require.NoError(t, err)
	user := strings.Replace(string(mod), "module "+module, "module example.com/user", 1) +
		"\nrequire " + module + " v0.0.0\nreplace " + module + " => " + here + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(user), 0o600))
	sum, err := os.ReadFile(filepath.Join(here, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(copies), 0o600))

	cmd := exec.CommandContext(t.Context(), "go", "vet", "-copylocks", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "vet has something to say")

	var want, got []string
	for _, name := range regexp.MustCompile(`(?m)^func (\w+)\(x `).FindAllStringSubmatch(copies, -1) {
		if name[1] != "Layout" {
			want = append(want, name[1])
		}
	}
	for _, found := range regexp.MustCompile(`copies lock value to y: [\w./]+/\w+\.(\w+)`).FindAllStringSubmatch(string(out), -1) {
		got = append(got, found[1])
	}
	require.Equal(t, want, got, string(out))
}
