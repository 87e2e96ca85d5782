package pool

import (
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/internal/door"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// forIPC is what package ipc may ask for: see door.Pool.
type forIPC struct{}

var _ = door.Open[door.Pool[*vmm.Device, *DriverPool]](forIPC{})

func (forIPC) WrapDriver(dev *vmm.Device, of driver.Pool) (*DriverPool, error) {
	p, err := ofDriver(dev, "wrap pool", func(driver.Pooler) (driver.Pool, error) { return of, nil })
	if err != nil {
		return nil, err
	}
	a, err := p.Access(dev)
	if err != nil {
		return nil, err
	}
	if a != vmm.AccessNone {
		p.open()
	}
	return p, nil
}

// Hold keeps the pool open until release, so that the program can call the driver with handle, a
// CUmemoryPool on CUDA. A Close waits for release, which must be called once and soon.
func (p *DriverPool) Hold() (handle driver.Pool, release func(), err error) {
	if err := p.enter(); err != nil {
		return 0, nil, p.fail("hold pool", 0, 0, err)
	}
	return p.pool, sync.OnceFunc(p.leave), nil
}

// HoldBlock keeps a block from being freed until release: Free, FreeNow and Close return
// ErrBusy. Calling release twice is fine. Errors are ErrDoubleFree, ErrForeignBlock,
// ErrClosed, and ErrInvalid for a block of 0 bytes.
func (p *DriverPool) HoldBlock(b Block) (release func(), err error) {
	if err := p.withBlock("hold block", b, func() error { return p.addHold(b) }); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		p.liveMu.Lock()
		defer p.liveMu.Unlock()
		x := p.live[b.seq]
		x.holds--
		p.live[b.seq] = x
	}), nil
}

func (p *DriverPool) addHold(b Block) error {
	p.liveMu.Lock()
	defer p.liveMu.Unlock()
	x, allocated := p.live[b.seq]
	switch {
	case b.in != &p.in:
		return ErrForeignBlock
	case b.seq == 0:
		return fmt.Errorf("%w: a block of 0 bytes", vmm.ErrInvalid)
	case !allocated:
		return ErrDoubleFree
	}
	x.holds++
	p.live[b.seq] = x
	return nil
}
