//go:build !linux

package shareable

import (
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

func openPage(int, [16]byte, uint64) (*pageView, error) {
	return nil, fmt.Errorf("%w: control pages need Linux", vmm.ErrNotSupported)
}

func (p *pageView) close() error               { return nil }
func (p *pageView) wait(uint32, time.Duration) {}
func (p *pageView) rouse()                     {}
