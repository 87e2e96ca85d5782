package shareable

import (
	"fmt"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// publishedChunk is a chunk of the range with the id that readers know it by.
type publishedChunk struct {
	wire.Chunk
	seg    vmm.Segment // of a range
	own    *cachedFD   // the descriptor of a store's chunk; nil for a range's, which are exported
	sentTo []uint32    // the users who were sent it, if Options.MaxBytesPerUID is set
}

// updateChunksLocked makes the list of published chunks that of the range: chunks that
// are gone are retired, new ones get the next ids. n is the length that is to be
// published next. Requires mu, also while the range is asked: an append can take back a chunk
// that a Clip has given up, and lenRaised must not publish a length in it meanwhile.
func (p *Publication) updateChunksLocked(n uint64) {
	invariants.Held(&p.mu)
	p.chunksGeneration = p.r.Generation() // before the list: a chunk that goes meanwhile makes it an old one
	p.segments = p.r.AppendSegments(p.segments[:0])
	segs := p.segments
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
		p.chunks = append(p.chunks, publishedChunk{Chunk: wire.Chunk{ID: p.lastID, Offset: end, Size: seg.Size}, seg: seg, sentTo: p.srv.republish(seg)})
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

// sameChunk reports whether both are the same chunk of one publication.
func sameChunk(a, b publishedChunk) bool { return a.ID == b.ID }

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
			if d, err := p.srv.fds.acquireChunk(c); err == nil {
				p.releaseFD(c, d)
			}
		}
	}
}
