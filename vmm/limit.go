package vmm

import (
	"fmt"
	"math"
)

// SetLimit bounds how many bytes of memory this process creates on the device,
// whatever the number of Devices opened on it; 0, the default, is no bound. It
// gives the old limit. What would go beyond it is ErrOutOfMemory, after kept
// memory has been given back. A limit below what there is already only stops
// growth. Imported memory does not count; memory created here to live elsewhere
// does. The limit lasts until the last Device on it closes; on a closed Device
// nothing changes.
func (d *Device) SetLimit(bytes uint64) (old uint64) {
	if d == nil {
		return 0
	}
	d.mu.Lock() // a Device that is closed limits nobody
	defer d.mu.Unlock()
	p := d.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if old = p.limit; d.liveLocked() == nil {
		p.limit = bytes
	}
	return old
}

// underLimit is how much may still be created if one part of so many of the limit
// is to be left.
func (p *port) underLimit(parts uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit == 0 {
		return math.MaxUint64
	}
	most := p.limit - p.limit/parts
	return most - min(most, p.created)
}

// charge counts memory that is about to be created against the limit.
func (p *port) charge(size uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := p.limit - min(p.limit, p.created); p.limit > 0 && size > left {
		return fmt.Errorf("%w: %s are left of this process's limit of %s", ErrOutOfMemory, sizeText(left), sizeText(p.limit))
	}
	p.created += size
	return nil
}

// discharge undoes charge.
func (p *port) discharge(size uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.created -= size
}
