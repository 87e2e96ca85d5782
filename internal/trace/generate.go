package trace

import (
	"math"
	"math/rand/v2"
	"slices"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// A Generator makes the trace of a seed with a peak of that many bytes.
type Generator struct {
	Name string
	make func(seed, peak uint64) *Trace
}

// Make makes a trace. The same arguments make the same trace.
func (g Generator) Make(seed, peak uint64) *Trace {
	t := g.make(seed, peak)
	t.Name = g.Name
	return t
}

// Generators are what traces there are.
var Generators = []Generator{
	{"training", training},
	{"serving", serving},
	{"adversarial", adversarial},
}

// builder writes a trace down. It keeps what is live so that no block is freed twice.
type builder struct {
	*rand.Rand
	t    Trace
	size []uint64 // of each block; 0: freed
	live uint64   // bytes
}

func newBuilder(seed uint64, streams int) *builder {
	return &builder{
		Rand: rand.New(rand.NewPCG(seed, 0x63757669)),
		t:    Trace{Streams: streams},
	}
}

func (b *builder) alloc(size uint64, stream int) uint32 {
	id := uint32(len(b.size))
	b.size = append(b.size, size)
	b.live += size
	b.t.Ops = append(b.t.Ops, Op{Kind: Alloc, Stream: uint8(stream), Block: id, Size: size})
	return id
}

func (b *builder) free(id uint32, stream int) {
	b.live -= b.size[id]
	b.size[id] = 0
	b.t.Ops = append(b.t.Ops, Op{Kind: Free, Stream: uint8(stream), Block: id})
}

func (b *builder) freeAll(ids []uint32, stream int) {
	for _, id := range ids {
		b.free(id, stream)
	}
}

func (b *builder) sync() { b.t.Ops = append(b.t.Ops, Op{Kind: Sync}) }

// between is from low to high, every power of two as likely.
func (b *builder) between(low, high uint64) uint64 {
	span := math.Log2(float64(high) / float64(low))
	return min(high, uint64(float64(low)*math.Exp2(b.Float64()*span)))
}

// done frees what is left, and scales.
func (b *builder) done(peak uint64) *Trace {
	b.sync()
	for id := range b.size {
		if b.size[id] > 0 {
			b.free(uint32(id), 0)
		}
	}
	b.sync()
	b.t.Blocks = len(b.size)
	b.t.Scale(peak)
	return &b.t
}

// shuffled is a copy in random order.
func (b *builder) shuffled(ids []uint32) []uint32 {
	ids = slices.Clone(ids)
	b.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}
