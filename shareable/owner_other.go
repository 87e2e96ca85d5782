//go:build !linux

package shareable

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/vmm"
)

var errLinux = fmt.Errorf("%w: sharing needs Linux", vmm.ErrNotSupported)

type socket struct{ *net.UnixListener }

func listen(string) (*socket, error) { return nil, errLinux }

func fileLimit() int { return 0 }

func dup(int) (int, error) { return -1, errLinux }

func closeFD(int) error { return errLinux }

func tooManyRefs(error) bool { return false }

// page is never there.
type ownerPage struct {
	fd int

	queued, done, generation, state, heartbeat *atomic.Uint64
}

func newOwnerPage([16]byte, uint64) (*ownerPage, error) { return nil, errLinux }
func (p *ownerPage) notify()                         {}
func (p *ownerPage) close()                        {}
