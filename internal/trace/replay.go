package trace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// Result is what became of a replay.
type Result struct {
	Live     uint64        // the most bytes that were allocated at once, as asked for
	Reserved uint64        // the most bytes that the pool held
	Failures int           // allocations for which there was no memory
	Took     time.Duration // with the waits
}

// Ratio is reserved by live: 1 is no byte too many.
func (r Result) Ratio() float64 { return float64(r.Reserved) / float64(max(r.Live, 1)) }

// ReplayOptions is how to replay.
type ReplayOptions struct {
	// Overlaps checks that no two live blocks have a byte in common, which takes longer.
	Overlaps bool
	// Work is called after each allocation to queue what uses the block on its stream; nil:
	// no work is queued, so streams are always idle. Its error ends the replay.
	Work func(*vmm.Stream, pool.Block) error
}

// Replay runs the trace on an allocator that has no blocks, from one goroutine. It has
// t.Streams streams or more, which the blocks are allocated and freed in. A block for which
// there is no memory is left out and counted. After any other error, and once ctx is done,
// the replay ends and what is live is freed.
func (t *Trace) Replay(ctx context.Context, a pool.Allocator, streams []*vmm.Stream, o ReplayOptions) (Result, error) {
	if len(streams) < t.Streams {
		return Result{}, fmt.Errorf("%d streams for a trace that uses %d: %w", len(streams), t.Streams, vmm.ErrInvalid)
	}
	if err := a.ResetPeaks(); err != nil {
		return Result{}, err
	}
	r := replay{Trace: t, a: a, streams: streams, work: o.Work, blocks: make([]pool.Block, t.Blocks)}
	if o.Overlaps {
		r.cells = map[uint64][]uint32{}
	}
	began := time.Now()
	for i, op := range t.Ops {
		err := r.op(op)
		if err == nil && i%1024 == 0 {
			err = ctx.Err()
		}
		if err != nil {
			return r.Result, errors.Join(fmt.Errorf("operation %d: %w", i, err), r.freeAll())
		}
	}
	r.Took = time.Since(began)
	st, err := a.Stats()
	r.Reserved = st.ReservedPeak
	return r.Result, err
}

// replay is one that runs.
type replay struct {
	*Trace
	Result
	a       pool.Allocator
	streams []*vmm.Stream
	work    func(*vmm.Stream, pool.Block) error
	blocks  []pool.Block // by number; of size 0 where there was no memory
	live    uint64
	cells   map[uint64][]uint32 // the blocks that have a byte in each cell; nil: not checked
}

func (r *replay) op(op Op) error {
	switch op.Kind {
	case Alloc:
		b, err := r.a.Alloc(r.streams[op.Stream], op.Size)
		if errors.Is(err, vmm.ErrOutOfMemory) {
			r.Failures++
			return nil
		}
		if err != nil {
			return err
		}
		r.blocks[op.Block] = b
		r.live += op.Size
		r.Live = max(r.Live, r.live)
		if err := r.enter(op.Block); err != nil || r.work == nil {
			return err
		}
		return r.work(r.streams[op.Stream], b)
	case Free:
		b := r.blocks[op.Block]
		if b.Size() == 0 {
			return nil
		}
		r.leave(op.Block)
		r.live -= b.Size()
		r.blocks[op.Block] = pool.Block{}
		return r.a.Free(r.streams[op.Stream], b)
	}
	return r.a.Device().Sync()
}

// freeAll frees what is live.
func (r *replay) freeAll() (err error) {
	for _, b := range r.blocks {
		if b.Size() > 0 {
			err = errors.Join(err, r.a.Free(r.streams[0], b))
		}
	}
	return err
}

// cellSize is the length of a cell of addresses. A block is in each cell that it has a byte
// of, so two blocks that overlap meet in one.
const cellSize = mib

// enter checks a new block against those that are live.
func (r *replay) enter(id uint32) error {
	if r.cells == nil {
		return nil
	}
	b := r.blocks[id]
	first, end := uint64(b.Ptr()), uint64(b.Ptr())+b.Size()
	if b.Ptr() == 0 || end < first {
		return fmt.Errorf("block %d is at %#x", id, first)
	}
	for cell := first / cellSize; cell <= (end-1)/cellSize; cell++ {
		for _, other := range r.cells[cell] {
			o := r.blocks[other]
			if at := uint64(o.Ptr()); first < at+o.Size() && at < end {
				return fmt.Errorf("block %d at [%#x, %#x) overlaps block %d at [%#x, %#x)", id, first, end, other, at, at+o.Size())
			}
		}
		r.cells[cell] = append(r.cells[cell], id)
	}
	return nil
}

// leave undoes enter.
func (r *replay) leave(id uint32) {
	if r.cells == nil {
		return
	}
	b := r.blocks[id]
	first, last := uint64(b.Ptr()), uint64(b.Ptr())+b.Size()-1
	for cell := first / cellSize; cell <= last/cellSize; cell++ {
		ids := r.cells[cell]
		for i, other := range ids {
			if other == id {
				ids[i] = ids[len(ids)-1]
				ids = ids[:len(ids)-1]
				break
			}
		}
		if len(ids) == 0 {
			delete(r.cells, cell)
		} else {
			r.cells[cell] = ids
		}
	}
}
