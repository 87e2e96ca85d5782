package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// writerMemory has the store make the memory of a Writer's range. One call at a time is
// made.
type writerMemory struct {
	w       *Writer
	tracker *wire.Tracker
	records []wire.Chunk // of all memory that has come, in order
}

var _ vmm.Supplier = (*writerMemory)(nil)

// Chunks imports the object's chunks from off on. If there are too few, the store makes
// more, and maybe more than that: it doubles the memory of small objects.
func (m *writerMemory) Chunks(ctx context.Context, off, need uint64) (chunks []*vmm.Chunk, err error) {
	defer func() {
		if err != nil {
			for _, c := range chunks {
				_ = c.Close() // an import that was not mapped: the driver counts it, if it fails
			}
			chunks = nil
		}
	}()
	after, err := m.lastBefore(off)
	if err != nil {
		return nil, err
	}
	for end := off; end < off+need; {
		q := wire.Grow{Object: m.w.id.Number, After: after, Capacity: off + need}
		err := m.w.call(ctx, wire.TypeGrow, q.Append(nil), wire.TypeChunks, func(f wire.Frame) error {
			more, err := m.take(f, end)
			for _, r := range more {
				c, err := m.w.c.dev.Import(r.fd.Int(), r.Size, vmm.Prop{})
				if err != nil {
					return err
				}
				chunks = append(chunks, c)
				// What could be imported is memory, whose close does not wait.
				if err := r.fd.Close(); err != nil {
					return err
				}
				after, end = r.ID, r.Offset+r.Size
			}
			return err
		})
		if err != nil {
			return chunks, err
		}
	}
	return chunks, nil
}

// lastBefore is the id of the chunk that ends at off; 0 for the first chunk's.
func (m *writerMemory) lastBefore(off uint64) (id uint64, err error) {
	if off == 0 {
		return 0, nil
	}
	i := slices.IndexFunc(m.records, func(r wire.Chunk) bool { return r.Offset+r.Size == off })
	if i < 0 {
		return 0, fmt.Errorf("%w: no chunk of the store ends at %d", vmm.ErrInvalid, off)
	}
	return m.records[i].ID, nil
}

// received is a chunk and its descriptor.
type received struct {
	wire.Chunk
	fd *wire.FD
}

// take checks a frame of chunks that have to begin at off. Chunks come again after a Clip.
func (m *writerMemory) take(f wire.Frame, off uint64) ([]received, error) {
	c, err := wire.DecodeChunks(f.Payload)
	if err != nil {
		return nil, protocolError(err)
	}
	fresh, _, err := m.tracker.Chunks(c)
	switch {
	case errors.Is(err, wire.ErrLimit):
		return nil, fmt.Errorf("%w: %w", vmm.ErrLimit, err)
	case err != nil:
		return nil, protocolError(err)
	}
	m.tracker.Mapped(len(fresh))
	m.records = append(m.records, fresh...)
	if first := c.Records[0]; first.Offset != off || len(f.FDs) != len(c.Records) {
		return nil, fmt.Errorf("%w: %d descriptors of chunks from %v on, where %d is the end", shareable.ErrProtocol, len(f.FDs), first, off)
	}
	all := make([]received, len(c.Records))
	for i, r := range c.Records {
		all[i] = received{r, f.FDs[i]}
	}
	return all, nil
}
