package shareable

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// publishedChunk is a chunk of the range with the id that readers know it by.
type publishedChunk struct {
	wire.Chunk
	seg    vmm.Segment
	sentTo []uint32 // the users who were sent it, if Options.MaxBytesPerUID is set
}

// updateChunks makes the list of published chunks that of the range: chunks that
// are gone are retired, new ones get the next ids. n is the length that is to be
// published next.
func (p *Publication) updateChunks(segs []vmm.Segment, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := 0
	for same < len(p.chunks) && same < len(segs) && p.chunks[same].seg == segs[same] {
		same++
	}
	// What differs is retired before anything is added: the new chunks lie at the
	// same offsets, and belong to the next generation.
	if same < len(p.chunks) {
		p.dropChunksLocked(same)
	}
	end := p.endLocked()
	grown := false
	for _, seg := range segs[same:] {
		// Readers map a prefix without gaps, so a gap in the range ends it.
		if uint64(seg.Addr-p.r.Ptr()) != end || len(p.chunks) >= wire.MaxChunks {
			break
		}
		p.lastID++
		p.chunks = append(p.chunks, publishedChunk{wire.Chunk{ID: p.lastID, Offset: end, Size: seg.Size}, seg, p.srv.republish(seg)})
		end, grown = end+seg.Size, true
	}
	if n > end && len(p.chunks) >= wire.MaxChunks && p.failed == nil {
		p.failed = fmt.Errorf("%w: readers map at most %d chunks of one object", vmm.ErrLimit, wire.MaxChunks)
	}
	if grown {
		p.wakeWritersLocked()
		select {
		case p.exportWanted <- struct{}{}:
		default:
		}
	}
}

// dropChunksLocked retires the chunks from index i on: readers are told to unmap
// them. Requires mu. The generation moves before any length that counts bytes of
// the chunks that replace them.
func (p *Publication) dropChunksLocked(i int) {
	invariants.Held(&p.mu)
	for _, c := range p.chunks[i:] {
		p.srv.fds.drop(c.seg)
	}
	p.srv.takeBack(p.chunks[i:])
	p.chunks = p.chunks[:i]
	p.generation++
	p.page.generation.Store(p.generation)
	for a := range p.attachments {
		a.retireLocked(p.endLocked(), i)
	}
	p.page.notify()
	p.wakeWritersLocked()
}

// sameChunk reports whether both are the same chunk of one publication.
func sameChunk(a, b publishedChunk) bool { return a.ID == b.ID }

// noteSentLocked records that n chunks from index i on are sent to a user. Requires mu.
func (p *Publication) noteSentLocked(i, n int, uid uint32) {
	invariants.Held(&p.mu)
	for k := i; k < i+n; k++ {
		if c := &p.chunks[k]; !slices.Contains(c.sentTo, uid) {
			c.sentTo = append(c.sentTo, uid)
		}
	}
}

// endLocked is the offset at which the chunks end. Requires mu.
func (p *Publication) endLocked() uint64 {
	invariants.Held(&p.mu)
	if len(p.chunks) == 0 {
		return 0
	}
	last := p.chunks[len(p.chunks)-1]
	return last.Offset + last.Size
}

// chunksBelowLocked is how many chunks hold a byte below n. Requires mu.
func (p *Publication) chunksBelowLocked(n uint64) int {
	invariants.Held(&p.mu)
	i := len(p.chunks)
	for i > 0 && p.chunks[i-1].Offset >= n {
		i--
	}
	return i
}

// indexLocked is the index of the first chunk whose id is not below id. Requires
// mu.
func (p *Publication) indexLocked(id uint64) int {
	invariants.Held(&p.mu)
	i, _ := slices.BinarySearchFunc(p.chunks, id, func(c publishedChunk, id uint64) int { return cmp.Compare(c.ID, id) })
	return i
}

// hasLocked reports whether the chunk is still published. Requires mu.
func (p *Publication) hasLocked(c publishedChunk) bool {
	invariants.Held(&p.mu)
	i := p.indexLocked(c.ID)
	return i < len(p.chunks) && p.chunks[i].ID == c.ID
}

// chunkAfter is the first chunk with an id above id.
func (p *Publication) chunkAfter(id uint64) (publishedChunk, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.indexLocked(id + 1)
	if i == len(p.chunks) {
		return publishedChunk{}, false
	}
	return p.chunks[i], true
}

// exportAhead exports new chunks into the cache of descriptors before a reader
// waits for them: one export takes the driver 0.6 ms. An error does not matter
// here, because sending the chunk exports it again.
func (p *Publication) exportAhead() {
	var seen uint64
	for {
		select {
		case <-p.exportWanted:
		case <-p.ctx.Done():
			return
		}
		for p.srv.opts.KeepFDs > 0 && p.ctx.Err() == nil {
			c, ok := p.chunkAfter(seen)
			if !ok {
				break
			}
			seen = c.ID
			if d, err := p.srv.fds.acquire(c.seg); err == nil {
				p.releaseFD(c, d)
			}
		}
	}
}

// releaseFD releases the descriptor of a chunk. If the chunk was retired
// meanwhile, the descriptor is dropped from the cache: it may have been acquired
// after the retirement dropped it.
func (p *Publication) releaseFD(c publishedChunk, d *cachedFD) {
	p.srv.fds.release(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hasLocked(c) {
		p.srv.fds.drop(c.seg)
	}
}
