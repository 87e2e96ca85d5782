//go:build linux

package shareable

import (
	"encoding/binary"
	"fmt"
)

// pageView is another process's control page, mapped for reading. Whatever is
// loaded from it is that process's word: it is only ever compared, or bounded
// by what is mapped here.
type pageView struct{ b []byte }

func (p *pageView) queued() uint64     { return p.load64(atQueued) }
func (p *pageView) done() uint64       { return p.load64(atDone) }
func (p *pageView) generation() uint64 { return p.load64(atGeneration) }

func (p *pageView) heartbeat() uint64 { return p.load64(atHeartbeat) }

// rawWake is the wake word as the kernel compares it.
func (p *pageView) rawWake() uint32 { return p.raw32(atWake) }

// check compares what never changes in a page.
func (p *pageView) check(instance [16]byte, object uint64) error {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], p.load64(atInstance))
	binary.LittleEndian.PutUint64(b[8:], p.load64(atInstance+8))
	magic, version, id := p.load32(atMagic), p.load32(atVersion), p.load64(atObject)
	switch {
	case magic != pageMagic:
		return fmt.Errorf("it begins with %#x instead of %#x", magic, uint32(pageMagic))
	case version != pageVersion:
		return fmt.Errorf("it has version %d, not %d", version, pageVersion)
	case b != instance || id != object:
		return fmt.Errorf("it is that of object %d of %x, not of object %d of %x", id, b, object, instance)
	}
	return nil
}

// closing unmaps the page because of err.
func closing(err error, p *pageView) error {
	if second := p.close(); second != nil {
		return fmt.Errorf("%w; and unmapping it: %w", err, second)
	}
	return err
}
