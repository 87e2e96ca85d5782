package collective

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cuvmm/cuvmm/vmm"
)

// allGatherWords sends words to all members and returns those of each, by rank. All members pass
// as many. It waits for the slowest. An error ends the group: the others wait for these words, or
// have them and go on.
func (g *Group) allGatherWords(ctx context.Context, words ...uint64) ([][]uint64, error) {
	all, err := g.exchangeWords(ctx, words)
	if err != nil && g.Err() == nil {
		err = g.fail(err)
	}
	return all, err
}

func (g *Group) exchangeWords(ctx context.Context, words []uint64) ([][]uint64, error) {
	b := g.scratch.Bytes()
	if b == nil { // the device is lost or was reset, and the stream's error says which
		_, _, release, err := g.ownStream.Hold()
		if err == nil {
			release()
			err = fmt.Errorf("%w: %v", vmm.ErrDeviceLost, g.dev)
		}
		return nil, err
	}
	n := uint64(len(words)) * 8
	for i, w := range words {
		binary.LittleEndian.PutUint64(b[uint64(g.rank)*n+uint64(i)*8:], w)
	}
	// This member's words lie at its rank's place, so that AllGatherInto works in place.
	dst := Span{Addr: g.scratch.Ptr(), Size: n * uint64(g.size), Access: vmm.AccessReadWrite}
	if err := g.do(ctx, g.ownStream, AllGatherInto(dst, Part(dst, uint64(g.rank)*n, n))); err != nil {
		return nil, err
	}
	if err := g.sync(ctx, g.ownStream); err != nil {
		return nil, err
	}
	all := make([][]uint64, g.size)
	for i := range all {
		all[i] = make([]uint64, len(words))
		for j := range words {
			all[i][j] = binary.LittleEndian.Uint64(b[uint64(i)*n+uint64(j)*8:])
		}
	}
	return all, nil
}

// makeScratch makes the stream and the memory for words. It is page-locked memory, which NCCL reads
// and writes as it does the device's: copies to and from the device would take longer than the
// rest.
func (g *Group) makeScratch() (err error) {
	if g.ownStream, err = g.dev.NewStream(); err != nil {
		return err
	}
	g.scratch, err = g.dev.AllocPinned(uint64(headerWords(g.size)*g.size) * 8)
	return err
}
