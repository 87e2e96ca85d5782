package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// row is one row in memory, for Go and for the kernel.
type row struct {
	ID    uint32
	Score float32
}

const (
	batches = 8
	batch   = 250_000 // rows
	limit   = float32(0.25)

	// A work item is a tile of rows, of which all that is kept is appended, or nothing. The
	// kernel has the same numbers.
	tileThreads = 256 // of a block
	tile        = tileThreads * 8
)

const appendCUDA = `
struct row {
	unsigned id;
	float score;
};

const int THREADS = 256, PER_THREAD = 8, TILE = THREADS * PER_THREAD;

// A block does one item after the other.
extern "C" __global__ void keep_above(cuvmm::cursor *c, const row *rows, u64 n, float limit)
{
	typedef cuvmm::tile_appender<row, THREADS, PER_THREAD> appender;
	__shared__ appender::shared s;
	u64 items = cuvmm::item_count(c, (n + TILE - 1) / TILE);
	for (u64 b = blockIdx.x; b < items; b += gridDim.x) {
		u64 item = cuvmm::item(c, b);
		row values[PER_THREAD];
		unsigned keep = 0;
		for (int i = 0; i < PER_THREAD; i++) {
			u64 at = item * TILE + i * THREADS + threadIdx.x;
			if (at >= n)
				continue;
			values[i] = rows[at];
			keep |= unsigned(values[i].score > limit) << i;
		}
		if (!appender::append(c, s, values, keep) && threadIdx.x == 0)
			cuvmm::note_unfinished(c, item);
	}
}
`

func keepAbove(c *kernel.DeviceCursor, rows []row, limit float32) {
	n := uint64(len(rows))
	for i := range c.ItemCount((n + tile - 1) / tile) {
		item := c.Item(i)
		var kept []row
		for _, r := range rows[item*tile : min(item*tile+tile, n)] {
			if r.Score > limit {
				kept = append(kept, r)
			}
		}
		if !kernel.AppendTo(c, kept...) {
			c.NoteUnfinished(item)
		}
	}
}

// appendRows filters each batch of rows where it lies: what is kept goes behind what is there.
// Where the vector is full, it grows at its address and the unfinished part runs again.
func appendRows(w io.Writer, s *vmm.Stream, f *kernel.Func) (err error) {
	in, err := growable.New[row](s.Device(), growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := growable.New[row](s.Device(), growable.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	c, err := kernel.NewCursor(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	var want []row
	rnd := rand.New(rand.NewPCG(1, 2))
	for b := range batches {
		rows := make([]row, batch)
		for i := range rows {
			rows[i] = row{uint32(b*batch + i), rnd.Float32()}
			if rows[i].Score > limit {
				want = append(want, rows[i])
			}
		}
		// Append waits for its stream, so the last batch may be overwritten here.
		if err := errors.Join(in.SetLen(0), in.Append(rows...)); err != nil {
			return err
		}
		launches := 0
		kept, err := c.Append(s, (batch+tile-1)/tile, func(items uint64) error {
			launches++
			grid := kernel.Config{Grid: vmm.Dim{X: uint32(items)}, Block: vmm.Dim{X: tileThreads}}
			return f.Launch(s, grid, c, kernel.Read(in), limit)
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "batch %d: %d of %d rows in %d launches\n", b+1, kept, batch, launches)
	}
	order := func(a, b row) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Score, b.Score)) }
	if err := checkKept("rows", out, want, order); err != nil {
		return err
	}
	fmt.Fprintf(w, "%v grew %d times at %v and has exactly the %d rows above %v\n",
		out.Range().Device(), out.Range().Stats().Growths, out.Ptr(), len(want), limit)
	return nil
}
