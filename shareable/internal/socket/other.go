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

// KeptElsewhere returns false: a Listener exists on Linux only.
func (s *Listener) KeptElsewhere() bool { return false }

// Release does nothing.
func (s *Listener) Release() {}

// TakeWaiting returns none.
func (s *Listener) TakeWaiting() ([]*net.UnixConn, bool) { return nil, true }
