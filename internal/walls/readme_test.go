package walls

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program in README.md must run and print what it says it prints.
func TestReadmeProgram(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
	dir := root(t)
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	require.NoError(t, err)
	_, program, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found, "README.md has no Go program")
	program, _, _ = strings.Cut(program, "```")
	_, promised, found := strings.Cut(program, "// prints ")
	require.True(t, found, "the program does not say what it prints")
	promised, _, _ = strings.Cut(promised, "\n")

	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	require.Equal(t, promised, strings.TrimSpace(goOutput(t, nil, "run", file)))
}
