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

// makeDirectory makes the user's own directory if path lies in it, and refuses
// one that somebody else could put in the way.
func makeDirectory(path string) error {
	dir := filepath.Dir(path)
	own := dir == ownDirectory()
	if own {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is no directory, or a link to one", vmm.ErrPermission, dir)
	}
	uid, known := ownerOf(info)
	switch {
	case known && uid != uint32(os.Getuid()) && (own || uid != 0):
		return fmt.Errorf("%w: %s belongs to user %d", vmm.ErrPermission, dir, uid)
	case own && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: %s is open to others (mode %#o)", vmm.ErrPermission, dir, info.Mode().Perm())
	}
	return nil
}
