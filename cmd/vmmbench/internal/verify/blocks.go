package verify

import (
	"context"
	"runtime"
	"sync"
)

// Block is how many bytes are filled or checked at a time.
const Block = 1 << 20

// EachBlock calls f for the blocks of a buffer of size bytes, from several goroutines at
// once. Each of them has scratch memory of a block's size. It returns the first error of f,
// or that of ctx, after all calls have returned.
func EachBlock(ctx context.Context, size uint64, f func(scratch []byte, off, n uint64) error) error {
	// What is small is not worth a goroutine.
	workers := min(runtime.GOMAXPROCS(0), int(min(size/Block, 1<<10))+1)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	blocks := make(chan span)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			scratch := make([]byte, min(Block, size))
			for b := range blocks {
				if err := f(scratch, b.from, b.to-b.from); err != nil {
					cancel(err) // the others stop too
				}
			}
		})
	}
	for off := uint64(0); off < size && ctx.Err() == nil; off += Block {
		blocks <- span{off, min(off+Block, size)}
	}
	close(blocks)
	wg.Wait()
	return context.Cause(ctx)
}
