package main

import "github.com/cuvmm/cuvmm/vmm/kernel"

// row is one row in memory, for Go and for the kernel.
type row struct {
	ID    uint32
	Score float32
}

const (
	// A work item is a tile of rows, of which all that is kept is appended, or nothing. The
	// kernel has the same numbers.
	threads = 256 // of a block
	tile    = threads * 8
)

// code is the kernel, for GPUs and for host memory.
var code = kernel.Code{
	CUDA: `
#include "cuvmm_append.cuh"

typedef unsigned long long u64;

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
`,
	Host: kernel.Host{"keep_above": func(c *kernel.DeviceCursor, rows []row, limit float32) {
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
	}},
}
