package trace

const (
	cruelLimit   = 80 * gib
	cruelStreams = 4
	cruelRounds  = 2
)

// adversary makes patterns that leave holes where the next blocks do not fit. Each round
// frees all but its pins, which stay to the end: together they are a hundredth. A first
// generation fills at most nine tenths and loses every second block, so an allocator that
// cannot move what is live, and puts blocks one after the other, needs less than 1.5
// times what is live.
type adversary struct {
	*builder
	pinned uint64 // bytes
}

func adversarial(seed, peak uint64) *Trace {
	b := &adversary{builder: newBuilder(seed, cruelStreams)}
	patterns := []func(){b.alternate, b.everySecond, b.creep, b.pins, b.comb, b.chaos}
	for range cruelRounds {
		b.Shuffle(len(patterns), func(i, j int) { patterns[i], patterns[j] = patterns[j], patterns[i] })
		for _, pattern := range patterns {
			pattern()
			b.sync()
		}
	}
	return b.done(peak)
}

// put allocates in one of the streams.
func (b *adversary) put(size uint64) uint32 { return b.alloc(size, b.IntN(cruelStreams)) }

// drop frees in random order and streams.
func (b *adversary) drop(ids []uint32) {
	for _, id := range b.shuffled(ids) {
		b.free(id, b.IntN(cruelStreams))
	}
}

// fill allocates until limit is live, at the size that next returns.
func (b *adversary) fill(limit uint64, next func() uint64) (ids []uint32) {
	for {
		size := next()
		if b.live+size > limit {
			return ids
		}
		ids = append(ids, b.put(size))
	}
}

// most is five to nine tenths of the limit.
func (b *adversary) most() uint64 { return cruelLimit / 100 * uint64(50+b.IntN(41)) }

// half parts the first from the second of each two.
func half(ids []uint32) (first, second []uint32) {
	for i, id := range ids {
		if i%2 == 0 {
			first = append(first, id)
		} else {
			second = append(second, id)
		}
	}
	return first, second
}

// alternate has a small block after every large one, and replaces the large ones by larger
// ones again and again.
func (b *adversary) alternate() {
	size := b.between(16*mib, 512*mib)
	var small, large []uint32
	for range 6 {
		for b.live+size+64*kib <= cruelLimit {
			large = append(large, b.put(size))
			if len(small) < 4096 {
				small = append(small, b.put(b.between(256, 64*kib)))
			}
		}
		b.drop(large)
		large = large[:0]
		if b.IntN(2) == 0 {
			b.sync()
		}
		size += size/16 + 256
	}
	b.drop(small)
}

// everySecond fills the holes of one size with blocks that need two of them.
func (b *adversary) everySecond() {
	size := b.between(2*mib, 256*mib)
	first, second := half(b.fill(b.most(), func() uint64 { return size }))
	b.drop(second)
	if b.IntN(2) == 0 {
		b.sync()
	}
	third := b.fill(cruelLimit, func() uint64 { return 2*size + 256 })
	b.drop(first)
	b.drop(third)
}

// creep has buffers that become a little longer, each in turn: the longer one is there
// before the shorter one goes.
func (b *adversary) creep() {
	ids := make([]uint32, 8+b.IntN(56))
	sizes := make([]uint64, len(ids))
	for i := range ids {
		sizes[i] = b.between(8*mib, cruelLimit/uint64(8*len(ids)))
		ids[i] = b.put(sizes[i])
	}
	for range 40 {
		for i := range ids {
			longer := sizes[i] + sizes[i]/32 + 512
			if b.live+longer > cruelLimit {
				continue
			}
			id := b.put(longer)
			b.free(ids[i], b.IntN(cruelStreams))
			ids[i], sizes[i] = id, longer
		}
	}
	b.drop(ids)
}

// pins puts a small block that stays for ever between large ones.
func (b *adversary) pins() {
	const share = cruelLimit / 100 / cruelRounds
	before := b.pinned
	var large []uint32
	for {
		size := b.between(64*mib, gib)
		pin := b.between(4*kib, mib)
		if b.live+size+pin > cruelLimit {
			break
		}
		large = append(large, b.put(size))
		for range 4 {
			if b.pinned-before+pin <= share {
				b.put(pin)
				b.pinned += pin
			}
		}
	}
	b.drop(large)
	b.drop(b.fill(cruelLimit, func() uint64 { return b.between(64*mib, gib) }))
}

// comb is a quarter of small blocks, of which every second goes, and then large ones.
func (b *adversary) comb() {
	limit := min(b.live+cruelLimit/4, cruelLimit)
	first, second := half(b.fill(limit, func() uint64 { return b.between(64*kib, 4*mib) }))
	b.drop(second)
	third := b.fill(cruelLimit, func() uint64 { return b.between(32*mib, 2*gib) })
	b.drop(first)
	b.drop(third)
}

// chaos has blocks of every size that come and go.
func (b *adversary) chaos() {
	var ids []uint32
	for range 6000 {
		size := b.between(512, gib)
		for b.live+size > cruelLimit {
			i := b.IntN(len(ids))
			b.free(ids[i], b.IntN(cruelStreams))
			ids[i] = ids[len(ids)-1]
			ids = ids[:len(ids)-1]
		}
		ids = append(ids, b.put(size))
	}
	b.drop(ids)
}
