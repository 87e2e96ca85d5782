package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/cuvmm/cuvmm/vmm"
)

// maxPath is the capacity of sun_path without its zero byte.
const maxPath = 107

// Options configures Listen.
type Options struct {
	Mode    fs.FileMode // of the file; 0 is 0600
	Group   *int        // of the file; nil: that of the process
	TakeFDs bool        // the kernel does not refuse descriptors from clients, as before Linux 6.16
}

// Path returns the path of a server's socket; see Listen. A name without a
// slash is <name>.sock in the user's own directory.
func Path(name string) (string, error) {
	path := name
	switch {
	case strings.Contains(name, "/") && name[0] != '@':
		path = filepath.Clean(name)
	case name != "" && strings.Trim(name, ".") == "" || name == "@" || strings.ContainsFunc(name, isBlank):
		return "", fmt.Errorf("%w: no socket can have the name %q", vmm.ErrInvalid, name)
	case strings.HasPrefix(name, "@"):
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

func isBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// ownDirectory is the directory of the user's sockets.
func ownDirectory() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cuvmm")
	}
	return filepath.Join(os.TempDir(), "cuvmm-"+strconv.Itoa(os.Getuid()))
}

// retryPause is the pause between two tries to connect.
const retryPause = 2 * time.Millisecond

// Connect connects to the server at a path of Path. While as many connections wait as the
// kernel lets wait it tries again, until timeout: no event says when there are fewer.
func Connect(ctx context.Context, path string, timeout time.Duration) (*net.UnixConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	end := time.Now().Add(timeout)
	var dialer net.Dialer
	once := context.WithoutCancel(ctx) // one try never waits; with ctx the dialer would return an error of its own
	c, err := dialer.DialContext(once, "unixpacket", path)
	for errors.Is(err, syscall.EAGAIN) {
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w: the server accepts no connections: %w", os.ErrDeadlineExceeded, err)
		}
		c, err = dialer.DialContext(once, "unixpacket", path)
	}
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("%w: a connection of type %T", vmm.ErrInvalid, c)
	}
	return conn, nil
}
