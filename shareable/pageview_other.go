//go:build !linux

package shareable

import (
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// pageView is never there.
type readerPage struct{}

func openReaderPage(int, [16]byte, uint64) (*readerPage, error) {
	return nil, fmt.Errorf("%w: control pages need Linux", vmm.ErrNotSupported)
}

func closeAfter(err error, _ *readerPage) error { return err }

func (p *readerPage) queued() uint64             { return 0 }
func (p *readerPage) done() uint64               { return 0 }
func (p *readerPage) generation() uint64         { return 0 }
func (p *readerPage) heartbeat() uint64          { return 0 }
func (p *readerPage) wake() uint32               { return 0 }
func (p *readerPage) wait(uint32, time.Duration) {}
func (p *readerPage) wakeWaiters()                     {}
func (p *readerPage) close() error               { return nil }
