package trace

// The model that training trains, in bf16 with 32-bit Adam: 3.4 billion parameters, which
// with their state take 53 GiB. What one batch adds depends on its length.
const (
	hidden = 2560
	heads  = 32
	layers = 42
	vocab  = 50304
	batch  = 8
	steps  = 24
)

// The streams of training.
const (
	compute = iota
	loader  // the next batch is copied here
	reducer // gradients are summed here
)

// weights are the sizes of a layer's parameters, in elements.
var weights = []uint64{
	hidden, hidden, // norm
	3 * hidden * hidden, 3 * hidden, // attention
	hidden * hidden, hidden,
	hidden, hidden, // norm
	4 * hidden * hidden, 4 * hidden, // feed forward
	4 * hidden * hidden, hidden,
}

type trainer struct {
	*builder
	params []uint64 // elements
	grads  []uint32
	state  bool // Adam's is allocated, which it is in the first step
}

// training has one step after another: a batch of another length, forward, backward and
// the optimizer, and now and then a batch that is only evaluated.
func training(seed, peak uint64) *Trace {
	b := &trainer{builder: newBuilder(seed, 3)}
	b.params = []uint64{vocab * hidden, 2048 * hidden}
	for range layers {
		b.params = append(b.params, weights...)
	}
	for _, n := range b.params {
		b.alloc(2*n, compute)
	}
	for range 2 {
		b.alloc(25*mib, reducer)
	}
	next, longest := b.batch(), b.IntN(steps)
	for step := range steps {
		tokens := next.tokens
		next.tokens = batch * 8 * uint64(16+b.IntN(112))
		if step == longest {
			next.tokens = batch * 1024
		}
		ids := next.ids
		next.ids = []uint32{b.alloc(8*next.tokens, loader), b.alloc(8*next.tokens, loader)}
		b.step(tokens, step%8 == 7)
		b.freeAll(ids, compute)
		b.sync()
	}
	return b.done(peak)
}

type tokens struct {
	tokens uint64
	ids    []uint32
}

func (b *trainer) batch() tokens {
	n := batch * 8 * uint64(16+b.IntN(112))
	return tokens{n, []uint32{b.alloc(8*n, loader), b.alloc(8*n, loader)}}
}

// temporary allocates and frees.
func (b *trainer) temporary(size uint64, stream int) {
	b.free(b.alloc(size, stream), stream)
}

func (b *trainer) step(t uint64, evaluate bool) {
	b.freeAll(b.grads, compute)
	b.grads = b.grads[:0]
	saved := [][]uint32{{b.alloc(2*t*hidden, compute)}}
	for range layers {
		kept := b.forward(t)
		if evaluate {
			// Nothing is kept for a backward pass but what goes into the next layer.
			b.freeAll(kept[:len(kept)-1], compute)
			b.freeAll(saved[0], compute)
			saved[0] = kept[len(kept)-1:]
			continue
		}
		saved = append(saved, kept)
	}
	logits := b.alloc(2*t*vocab, compute)
	wide := b.alloc(4*t*vocab, compute)
	loss := []uint32{b.alloc(512, compute), b.alloc(4*t, compute)}
	if !evaluate {
		grad := b.alloc(4*t*vocab, compute)
		b.free(wide, compute)
		narrow := b.alloc(2*t*vocab, compute)
		b.freeAll([]uint32{grad, logits}, compute)
		out := b.alloc(2*t*hidden, compute)
		b.gradient(b.params[0])
		b.free(narrow, compute)
		for i := len(saved) - 1; i > 0; i-- {
			out = b.backward(t, saved[i], out)
		}
		b.freeAll(saved[0], compute)
		b.free(out, compute)
		b.gradient(b.params[1])
		b.optimize()
	} else {
		b.freeAll([]uint32{wide, logits, saved[0][0]}, compute)
	}
	b.freeAll(loss, compute)
}

// forward is one layer. It returns what backward needs; the last is the layer's output.
func (b *trainer) forward(t uint64) []uint32 {
	act := 2 * t * hidden
	kept := []uint32{
		b.alloc(act, compute), b.alloc(4*t, compute), b.alloc(4*t, compute), // norm
		b.alloc(3*act, compute),                            // queries, keys, values
		b.alloc(act, compute), b.alloc(4*t*heads, compute), // attention
		b.alloc(512, compute), // the random numbers' state
	}
	b.temporary(8519680, compute)
	projected := b.alloc(act, compute)
	kept = append(kept, b.alloc(t*hidden, compute), b.alloc(act, compute)) // dropout, residual
	b.free(projected, compute)
	kept = append(kept, b.alloc(act, compute), b.alloc(4*t, compute), b.alloc(4*t, compute),
		b.alloc(4*act, compute), b.alloc(4*act, compute))
	b.temporary(8519680, compute)
	second := b.alloc(act, compute)
	kept = append(kept, b.alloc(t*hidden, compute), b.alloc(act, compute))
	b.free(second, compute)
	return kept
}

// gradient is one of a parameter, which is summed over devices in a bucket of its own if
// it is large.
func (b *trainer) gradient(elements uint64) {
	b.grads = append(b.grads, b.alloc(2*elements, compute))
	if elements > mib {
		b.temporary(4*elements, reducer)
	}
}

// backward frees what forward kept, last first, and has the gradient of each of it for
// as long as the next one is not there. It returns the gradient of the layer's input.
func (b *trainer) backward(t uint64, kept []uint32, out uint32) uint32 {
	weight := len(weights) - 1
	for i := len(kept) - 1; i >= 0; i-- {
		size := b.size[kept[i]]
		if size < t*hidden {
			b.free(kept[i], compute)
			continue
		}
		grad := b.alloc(size, compute)
		b.free(out, compute)
		for range 2 {
			if weight >= 0 {
				b.gradient(weights[weight])
				weight--
			}
		}
		b.free(kept[i], compute)
		if i%3 == 0 {
			b.temporary(8519680, compute)
		}
		out = grad
	}
	for ; weight >= 0; weight-- {
		b.gradient(weights[weight])
	}
	grad := b.alloc(2*t*hidden, compute)
	b.free(out, compute)
	return grad
}

// optimize has a norm of each gradient, and 32-bit copies of one at a time. In the first
// step it allocates what stays for ever.
func (b *trainer) optimize() {
	var norms []uint32
	for range b.params {
		norms = append(norms, b.alloc(512, compute))
	}
	b.temporary(uint64(4*len(norms)), compute)
	b.freeAll(norms, compute)
	for _, n := range b.params {
		if !b.state {
			for range 3 {
				b.alloc(4*n, compute)
			}
			b.alloc(512, compute) // how many steps there were
		}
		wide := b.alloc(4*n, compute)
		b.temporary(4*n, compute)
		b.free(wide, compute)
	}
	b.state = true
}
