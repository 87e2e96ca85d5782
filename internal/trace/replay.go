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

// Replay runs the trace on an allocator that has no blocks, from one goroutine. It has
// t.Streams streams or more, which the blocks are allocated and freed in. work is called after
// each allocation and before each free to queue what uses the block in the stream; nil: no work
// is queued, so streams are always idle. A block for which there is no memory is left out and
// counted. After any other error, and once ctx is done, the replay ends and what is live is freed.
func (t *Trace) Replay(ctx context.Context, a pool.Allocator, streams []*vmm.Stream, work func(*vmm.Stream, pool.Block) error) (Result, error) {
	if len(streams) < t.Streams {
		return Result{}, fmt.Errorf("%d streams for a trace that uses %d: %w", len(streams), t.Streams, vmm.ErrInvalid)
	}
	if err := a.ResetPeaks(); err != nil {
		return Result{}, err
	}
	r := replay{Trace: t, a: a, streams: streams, work: work, blocks: make([]pool.Block, t.Blocks)}
	if work == nil {
		r.work = func(*vmm.Stream, pool.Block) error { return nil }
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
}

func (r *replay) op(op Op) error {
	if op.Kind == Sync {
		return r.a.Device().Sync()
	}
	s, b := r.streams[op.Stream], r.blocks[op.Block]
	if op.Kind == Free {
		if b.Size() == 0 {
			return nil
		}
		if err := r.work(s, b); err != nil {
			return err
		}
		r.live -= b.Size()
		r.blocks[op.Block] = pool.Block{}
		return r.a.Free(s, b)
	}
	b, err := r.a.Alloc(s, op.Size)
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
	return r.work(s, b)
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
