package wire

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrLimit is for chunks that the protocol allows but that exceed the reader's own
// Limits.
var ErrLimit = errors.New("over the reader's limit")

// Limits is how much a reader maps of an object.
type Limits struct {
	Granularity uint64 // bytes; every chunk and the object's Max are multiples
	Quota       uint64 // bytes mapped at most; 0: the object's Max
	MaxChunks   int    // 0: the MaxChunks of the protocol
}

// Tracker keeps a reader's list of an object's chunks and checks the owner's
// frames against the protocol: chunks follow each other without a gap from offset
// 0 up to Max, their ids only rise, and they are retired from the end, at a
// border between chunks, in a newer generation. It maps nothing. It is not safe
// for concurrent use.
//
//	chunks[:mapped]   mapped by the reader
//	chunks[mapped:]   announced; their mapping runs or has failed
type Tracker struct {
	// Immutable.
	object uint64
	max    uint64
	limits Limits

	generation uint64 // the one applied

	chunks      []Chunk
	mapped      int
	announcedID uint64 // the highest id announced, 0 before the first
	mappedID    uint64 // the highest id mapped

	lastBase, lastFresh int // of the last Chunks: chunks[base:base+fresh] were not mapped
}

// NewTracker makes the Tracker of a reader that has received o and mapped nothing.
func NewTracker(o Object, l Limits) (*Tracker, error) {
	if l.Granularity == 0 || l.MaxChunks < 0 {
		return nil, fmt.Errorf("granularity %d and at most %d chunks as limits", l.Granularity, l.MaxChunks)
	}
	if o.Max == 0 || o.Max%l.Granularity != 0 {
		return nil, protocolf("max of %d bytes, not a multiple of %d", o.Max, l.Granularity)
	}
	if o.Base >= o.Max {
		return nil, protocolf("a base of %d with a max of %d", o.Base, o.Max)
	}
	if o.Length > o.Max-o.Base || o.Capacity > o.Max {
		return nil, protocolf("length %d and capacity %d with a max of %d", o.Length, o.Capacity, o.Max)
	}
	if l.Quota == 0 {
		l.Quota = o.Max
	}
	if l.MaxChunks == 0 {
		l.MaxChunks = MaxChunks
	}
	return &Tracker{object: o.ID, max: o.Max, generation: o.Generation, limits: l}, nil
}

// Chunks checks a CHUNKS frame and adds its records. The first skip of them are
// mapped already, which can happen after a RESYNC. The reader must map the others,
// fresh, in their order. An error, ErrLimit or a ProtocolError, changes nothing.
func (t *Tracker) Chunks(c Chunks) (fresh []Chunk, skip int, err error) {
	if c.Object != t.object || c.Generation != t.generation {
		return nil, 0, protocolf("chunks of object %d in generation %d instead of %d in %d",
			c.Object, c.Generation, t.object, t.generation)
	}
	if len(c.Records) == 0 {
		return nil, 0, protocolf("no chunks")
	}
	first, _ := slices.BinarySearchFunc(t.chunks, c.Records[0].ID, func(k Chunk, id uint64) int { return cmp.Compare(k.ID, id) })
	if first > t.mapped {
		return nil, 0, protocolf("chunk %d leaves a gap after %d", c.Records[0].ID, t.End())
	}
	// Records of known chunks must repeat them exactly; the rest must follow on.
	known := min(len(t.chunks)-first, len(c.Records))
	for i, r := range c.Records[:known] {
		if k := t.chunks[first+i]; r != k {
			return nil, 0, protocolf("chunk %v where %v is known", r, k)
		}
	}
	if err := t.check(c.Records[known:]); err != nil {
		return nil, 0, err
	}
	// All is checked, so the list may change.
	t.chunks = append(t.chunks, c.Records[known:]...)
	if known < len(c.Records) {
		t.announcedID = c.Records[len(c.Records)-1].ID
	}
	skip = min(t.mapped-first, len(c.Records))
	t.lastBase, t.lastFresh = t.mapped, len(c.Records)-skip
	return c.Records[skip:], skip, nil
}

// check checks records that follow the known chunks.
func (t *Tracker) check(records []Chunk) error {
	// Each record is checked against the end of the one before it, so all of them
	// together stay within max and the quota.
	used, end := t.announcedID, endOf(t.chunks)
	for _, r := range records {
		switch {
		case r.ID <= used:
			return protocolf("chunk %v after id %d", r, used)
		case r.Size == 0 || r.Size%t.limits.Granularity != 0:
			return protocolf("chunk %v, not of a multiple of %d bytes", r, t.limits.Granularity)
		case r.Offset != end:
			return protocolf("chunk %v where %d is the end", r, end)
		case r.Size > t.max-end:
			return protocolf("chunk %v over a max of %d bytes", r, t.max)
		case r.Offset > t.limits.Quota || r.Size > t.limits.Quota-r.Offset:
			return fmt.Errorf("%w: %v with a quota of %d bytes", ErrLimit, r, t.limits.Quota)
		}
		used, end = r.ID, r.end()
	}
	if n := len(t.chunks) + len(records); n > t.limits.MaxChunks {
		return fmt.Errorf("%w: %d chunks, over %d", ErrLimit, n, t.limits.MaxChunks)
	}
	return nil
}

// Mapped records that the first n fresh records of the last Chunks are mapped. The
// others may come again.
func (t *Tracker) Mapped(n int) {
	t.mapped = max(t.mapped, t.lastBase+min(max(n, 0), t.lastFresh))
	if t.mapped > 0 {
		t.mappedID = max(t.mappedID, t.chunks[t.mapped-1].ID)
	}
}

// Retire checks and applies a RETIRE frame. The reader must unmap its chunks from
// index keep on; they begin at the offset from, which is the new End. Their ids are
// not used again. An error, a ProtocolError, changes nothing.
func (t *Tracker) Retire(r Retire) (keep int, from uint64, err error) {
	if r.Object != t.object || r.Generation <= t.generation {
		return 0, 0, protocolf("retire of object %d for generation %d instead of %d after %d",
			r.Object, r.Generation, t.object, t.generation)
	}
	if r.Capacity > t.max {
		return 0, 0, protocolf("retire down to %d with a max of %d", r.Capacity, t.max)
	}
	// Chunks that end at or below Capacity stay. If a mapped one is cut in two, the
	// frame is wrong; one that is only announced is just forgotten.
	n, _ := slices.BinarySearchFunc(t.chunks, r.Capacity, func(k Chunk, capacity uint64) int {
		if k.end() <= capacity {
			return -1
		}
		return 1
	})
	if n < t.mapped && endOf(t.chunks[:n]) != r.Capacity {
		return 0, 0, protocolf("retire down to %d, inside %v", r.Capacity, t.chunks[n])
	}
	t.generation = r.Generation
	t.chunks = t.chunks[:n]
	t.mapped = min(t.mapped, n)
	t.lastBase, t.lastFresh = t.mapped, 0
	return t.mapped, t.End(), nil
}

// End is the offset at which the mapped chunks end.
func (t *Tracker) End() uint64 { return endOf(t.chunks[:t.mapped]) }

// Len is how many chunks are mapped.
func (t *Tracker) Len() int { return t.mapped }

// LastID is the highest id that was ever mapped, 0 if none was.
func (t *Tracker) LastID() uint64 { return t.mappedID }

// Generation is the generation applied.
func (t *Tracker) Generation() uint64 { return t.generation }

func endOf(chunks []Chunk) uint64 {
	if len(chunks) == 0 {
		return 0
	}
	return chunks[len(chunks)-1].end()
}
