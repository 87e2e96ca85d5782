//go:build linux

package shareable

import (
	"encoding/binary"
	"fmt"
)

// pageView is another process's control page, mapped for reading. Whatever is
// loaded from it is that process's word: it is only ever compared, or bounded
// by what is mapped here.
type readerPage struct{ b []byte }

func (p *readerPage) queued() uint64     { return word(p.b, atQueued).Load() }
func (p *readerPage) done() uint64       { return word(p.b, atDone).Load() }
func (p *readerPage) generation() uint64 { return word(p.b, atGeneration).Load() }
func (p *readerPage) heartbeat() uint64  { return word(p.b, atHeartbeat).Load() }
func (p *readerPage) wake() uint32       { return word32(p.b, atWake).Load() }

// check compares what never changes in a page.
func (p *readerPage) check(instance [16]byte, object uint64) error {
	head := p.b[:atObject+8] // which does not change
	magic, version := binary.LittleEndian.Uint32(head[atMagic:]), binary.LittleEndian.Uint32(head[atVersion:])
	id := binary.LittleEndian.Uint64(head[atObject:])
	b := [16]byte(head[atInstance:])
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
func closeAfter(err error, p *readerPage) error {
	if second := p.close(); second != nil {
		return fmt.Errorf("%w; and unmapping it: %w", err, second)
	}
	return err
}
