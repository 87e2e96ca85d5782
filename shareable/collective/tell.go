package collective

import (
	"cmp"
	"context"
	"encoding/binary"

	"github.com/cuvmm/cuvmm/vmm"
)

// tell tells all members some words, and returns what each has told, by rank. All have to
// tell as many. It waits for the slowest member. An error ends the group: the others wait for
// what this member tells, or have it and go on.
func (g *Group) tell(ctx context.Context, words ...uint64) ([][]uint64, error) {
	told, err := g.exchangeWords(ctx, words)
	if err != nil && g.Err() == nil {
		err = g.fail(err)
	}
	return told, err
}

func (g *Group) exchangeWords(ctx context.Context, words []uint64) ([][]uint64, error) {
	n := uint64(len(words)) * 8
	// What this member tells lies where it will be.
	mine, all := Part(g.notes, uint64(g.rank)*n, n), Part(g.notes, 0, n*uint64(g.size))
	b := make([]byte, 0, n*uint64(g.size))
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	if err := g.own.CopyIn(g.notes.Ptr()+vmm.Ptr(uint64(g.rank)*n), b); err != nil {
		return nil, err
	}
	if err := g.do(ctx, g.own, AllGatherInto(all, mine)); err != nil {
		return nil, err
	}
	b = b[:cap(b)]
	w := g.waits.begin(ctx)
	err := g.own.CopyOut(b, g.notes.Ptr()) // which waits for the stream
	g.waits.end(w)
	if err := cmp.Or(g.stopped(), err); err != nil {
		return nil, err
	}
	told := make([][]uint64, g.size)
	for i := range told {
		told[i] = make([]uint64, len(words))
		for j := range words {
			told[i][j] = binary.LittleEndian.Uint64(b[uint64(i)*n+uint64(j)*8:])
		}
	}
	return told, nil
}

// makeNotes makes the stream and the memory for what the members tell each other.
func (g *Group) makeNotes() (err error) {
	if g.own, err = g.dev.NewStream(); err != nil {
		return err
	}
	n := uint64(saysWords(g.size)*g.size) * 8
	if g.notes, err = g.dev.NewRange(vmm.RangeOptions{Max: n}); err != nil {
		return err
	}
	if err = g.notes.Grow(n); err != nil {
		return err
	}
	if err = g.notes.SetLen(n); err != nil {
		return err
	}
	return g.notes.UsedBy(g.own) // so that its Close waits for no other work of the device
}
