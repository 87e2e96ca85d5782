//go:build !linux

package shareable

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

var errLinux = fmt.Errorf("%w: sharing needs Linux", vmm.ErrNotSupported)

func fileLimit() int { return 0 }

func dup(int) (int, error) { return -1, errLinux }

func closeFD(int) error { return errLinux }

func tooManyRefs(error) bool { return false }

// ownerPage cannot be made here.
type ownerPage struct {
	fd      int
	foreign *readerPage

	queued, published, generation, state, heartbeat *atomic.Uint64
}

func newOwnerPage([16]byte, uint64) (*ownerPage, error) { return nil, errLinux }
func (p *ownerPage) close()                             {}
func (p *ownerPage) begun() uint64                      { return 0 }

func newFinalPage([16]byte, uint64, uint64, uint64) (int, error) { return -1, errLinux }

// readerPage cannot be made here.
type readerPage struct{}

func openReaderPage(int, [16]byte, uint64) (*readerPage, error) {
	return nil, fmt.Errorf("%w: control pages need Linux", vmm.ErrNotSupported)
}

func mapReaderPage(int) (*readerPage, error) { return nil, errLinux }

func closeAfter(err error, _ *readerPage) error { return err }

func (p *readerPage) queued() uint64 { return 0 }

func (p *readerPage) published() uint64 { return 0 }

func (p *readerPage) generation() uint64 { return 0 }

func (p *readerPage) heartbeat() uint64 { return 0 }

func (p *readerPage) close() error { return nil }

// wakeSender cannot be made here.
type wakeSender struct {
	reader int
	slow   atomic.Bool
}

func newWakeSender() (*wakeSender, error) { return nil, errLinux }

func (w *wakeSender) send() {}

func (w *wakeSender) sendApart() {}

func (w *wakeSender) close() {}

func yieldProcessor() {}

// wakeReceiver cannot be made here.
type wakeReceiver struct{}

func openWakeReceiver(*wire.FD) (*wakeReceiver, error) { return nil, errLinux }

func (w *wakeReceiver) wait() bool { return false }

func (w *wakeReceiver) close() {}

// leasePage cannot be made here.
type leasePage struct{ fd int }

func newLeasePage([16]byte, uint64, uint64, uint64) (*leasePage, error) { return nil, errLinux }
func (p *leasePage) seal() (*ownerPage, error)                          { return nil, errLinux }
func (p *leasePage) close()                                             {}

// Record needs Linux.
func (o *storeObject) Record(uint64, string, *serve.Seal) (serve.Record, func(), error) {
	return serve.Record{}, nil, errLinux
}

// Adopt needs Linux.
func (s storeServer) Adopt(string, int, int, func() error) error { return errLinux }

// Health needs Linux.
func (s storeServer) Health(_, _ *net.UnixConn) (func() error, error) { return nil, errLinux }

// OpenWriterPage needs Linux.
func (forStore) OpenWriterPage(int, [16]byte, uint64) (serve.WriterPage, error) { return nil, errLinux }

// Restore needs Linux.
func (forStore) Restore(*vmm.Device, Options, serve.Handler, [16]byte, uint64, []serve.Recorded) (*Server, serve.Server, []serve.Object, error) {
	return nil, nil, nil, errLinux
}
