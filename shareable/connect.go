package shareable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/vmm"
)

// connect connects to the server at path.
func connect(ctx context.Context, path string, o AttachOptions) (*net.UnixConn, error) {
	path, err := socket.Path(path)
	if err != nil {
		return nil, err
	}
	c, err := socket.Connect(ctx, path, o.Timeout)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist):
		return nil, &noServerError{path: path, cause: err}
	case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
		return nil, fmt.Errorf("%w: connect to %s: %w", vmm.ErrLimit, path, err)
	}
	return c, err
}
