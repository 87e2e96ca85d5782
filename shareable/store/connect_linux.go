package store

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
)

// Connect makes a Client in the server's process, which needs no socket in a directory. The
// caller must Close it, before dev.
func (s *Server) Connect(ctx context.Context, dev *vmm.Device, o ClientOptions) (*Client, error) {
	if s == nil || s.dev == nil {
		return nil, fmt.Errorf("connect to store: %w", errNoServer)
	}
	c, err := newClient(ctx, "", s.pair, dev, o)
	if err != nil {
		return nil, fmt.Errorf("connect to store: %w", err)
	}
	return c, nil
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
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: socketpair: %w", vmm.ErrLimit, err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "store")
		c, connErr := net.FileConn(f) // which has a descriptor of its own
		_ = f.Close()
		if conn, ok := c.(*net.UnixConn); ok {
			ends[i] = conn
		} else if err == nil {
			err = fmt.Errorf("%w: a connection of type %T: %w", vmm.ErrInvalid, c, connErr)
		}
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}
