package shareable

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/vmm"
)

// maxPath is what sun_path holds besides its zero byte.
const maxPath = 107

// socketPath is the file of a server's socket. A name without a slash is
// <name>.sock in the user's own directory, "" is "default" there, and a name
// that begins with @ is an abstract one, which no file permission guards.
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
		return "", fmt.Errorf("%w: the socket path %q; a system's has at most %d bytes and no zero", vmm.ErrInvalid, path, maxPath)
	}
	return path, nil
}

// ownDirectory is where a user's sockets are.
func ownDirectory() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cuvmm")
	}
	return filepath.Join(os.TempDir(), "cuvmm-"+strconv.Itoa(os.Getuid()))
}
