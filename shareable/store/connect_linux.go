package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// Connect makes a Client in the server's process, which needs no socket in a directory. The
// caller must Close it, before dev.
func (s *Server) Connect(ctx context.Context, dev *vmm.Device, o ClientOptions) (_ *Client, err error) {
	defer errtext.Wrapf(&err, "connect to store")
	if s == nil || s.dev == nil {
		return nil, errNoServer
	}
	return newClient(ctx, "", s.pair, dev, o)
}

// pair makes a connection to the server.
func (s *Server) pair(context.Context) (*net.UnixConn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	go s.ServeConn(far) //nolint:errcheck // the client has the error, or has gone
	return near, nil
}

// socketPair is two ends of a connection.
func socketPair() (near, far *net.UnixConn, err error) {
	one, other, err := filePair()
	if err != nil {
		return nil, nil, err
	}
	if near, err = connOf(one); err != nil {
		return nil, nil, errors.Join(err, other.Close())
	}
	if far, err = connOf(other); err != nil {
		return nil, nil, errors.Join(err, near.Close())
	}
	return near, far, nil
}

// filePair is two ends of a connection, as files.
func filePair() (near, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: socketpair: %w", vmm.ErrLimit, err)
	}
	return os.NewFile(uintptr(fds[0]), "store"), os.NewFile(uintptr(fds[1]), "store"), nil
}

// connOf makes a connection of a file, and closes that.
func connOf(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f) // which has a descriptor of its own
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: a connection of type %T", vmm.ErrInvalid, c), c.Close())
	}
	return u, nil
}
