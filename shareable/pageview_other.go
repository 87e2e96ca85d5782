//go:build !linux

package shareable

import (
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// pageView is never there.
type pageView struct{}

func openPage(int, [16]byte, uint64) (*pageView, error) {
	return nil, fmt.Errorf("%w: control pages need Linux", vmm.ErrNotSupported)
}

func closing(err error, _ *pageView) error { return err }

func (p *pageView) queued() uint64             { return 0 }
func (p *pageView) done() uint64               { return 0 }
func (p *pageView) generation() uint64         { return 0 }
func (p *pageView) heartbeat() uint64          { return 0 }
func (p *pageView) wake() uint32               { return 0 }
func (p *pageView) wait(uint32, time.Duration) {}
func (p *pageView) rouse()                     {}
func (p *pageView) close() error               { return nil }
