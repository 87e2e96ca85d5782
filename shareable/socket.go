package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

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

// connect connects to the server at path.
func connect(ctx context.Context, path string, o AttachOptions) (*net.UnixConn, error) {
	path, err := socketPath(path)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(o.Timeout)
	var dialer net.Dialer // one try never waits
	c, err := dialer.DialContext(ctx, "unixpacket", path)
	// As many connections wait for the server as the kernel lets wait. No event says when
	// there are fewer.
	for errors.Is(err, syscall.EAGAIN) {
		select {
		case <-time.After(retryDelay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w: the server accepts no connections: %w", os.ErrDeadlineExceeded, err)
		}
		c, err = dialer.DialContext(ctx, "unixpacket", path)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		err = &noServerError{path: path, cause: err}
	}
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		err = fmt.Errorf("%w: connect to %s: %w", vmm.ErrLimit, path, err)
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
