//go:build !linux

package socket

import (
	"fmt"
	"net"

	"github.com/cuvmm/cuvmm/vmm"
)

// Listener cannot be made here.
type Listener struct{ *net.UnixListener }

// Listen needs Linux.
func Listen(string, Options) (*Listener, error) {
	return nil, fmt.Errorf("%w: sharing needs Linux", vmm.ErrNotSupported)
}

// IsKept is of Linux.
func (s *Listener) IsKept() bool { return false }

// CloseListener is of Linux.
func (s *Listener) CloseListener() {}

// TakeWaiting is of Linux.
func (s *Listener) TakeWaiting() ([]*net.UnixConn, bool) { return nil, true }
