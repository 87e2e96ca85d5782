package shareable

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/vmm"
)

// maxPath is the capacity of sun_path without its zero byte.
const maxPath = 107

// socketPath returns the path of a server's socket; see Listen. A name without a
// slash is <name>.sock in the user's own directory.
func socketPath(name string) (string, error) {
	path := name
	switch {
	case strings.HasPrefix(name, "@") && len(name) > 1:
	case strings.Contains(name, "/"):
		path = filepath.Clean(name)
	default:
		if name == "" {
			name = "default"
		}
		path = filepath.Join(ownDirectory(), name+".sock")
	}
	if len(path) > maxPath || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("%w: socket path %q: at most %d bytes, and none of them 0", vmm.ErrInvalid, path, maxPath)
	}
	return path, nil
}

// ownDirectory is the directory of the user's sockets.
func ownDirectory() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cuvmm")
	}
	return filepath.Join(os.TempDir(), "cuvmm-"+strconv.Itoa(os.Getuid()))
}
