package trace

// The model that serving serves: 13 billion parameters in bf16.
const (
	serveHidden = 5120
	serveInner  = 13824
	serveLayers = 40
	tokenBytes  = 2 * serveLayers * serveHidden * 2 // of keys and values, of one token
	pageTokens  = 16
	serveLimit  = 80 * gib // no request is admitted beyond
	serveSteps  = 1000
	serveStream = 4 // streams of requests, from 1
)

// A request's keys and values grow by pages of all layers, or each layer's move to a longer
// block.
type request struct {
	stream int
	tokens uint64 // so far
	last   uint64 // tokens when it ends
	space  uint64 // tokens that its blocks hold
	paged  bool
	blocks []uint32
}

// serving has weights that stay, requests that come and go, and a little memory in every
// step that does not depend on them.
func serving(seed, peak uint64) *Trace {
	b := newBuilder(seed, serveStream+1)
	b.alloc(2*32000*serveHidden, 0)
	b.alloc(2*32000*serveHidden, 0)
	for range serveLayers {
		for _, n := range []uint64{3 * serveHidden, serveHidden, 2 * serveInner, serveInner} {
			b.alloc(2*n*serveHidden, 0)
		}
		b.alloc(2*serveHidden, 0)
		b.alloc(2*serveHidden, 0)
	}
	var active []*request
	for range serveSteps {
		for range b.IntN(4) {
			r := b.request()
			if b.live+(r.tokens+r.last)*tokenBytes/2 > serveLimit {
				break
			}
			b.prefill(r)
			active = append(active, r)
		}
		kept := active[:0]
		for _, r := range active {
			// Several tokens pass between two steps that allocate.
			r.tokens = min(r.tokens+8, r.last)
			if r.tokens == r.last {
				for _, id := range b.shuffled(r.blocks) {
					b.free(id, r.stream)
				}
				continue
			}
			b.grow(r)
			kept = append(kept, r)
		}
		active = kept
		scratch := b.alloc(2*serveHidden*uint64(max(len(active), 1))*4, 0)
		logits := b.alloc(4*32000*uint64(max(len(active), 1)), 0)
		b.free(scratch, 0)
		b.free(logits, 0)
		b.sync()
	}
	return b.done(peak)
}

// request has a short prompt mostly, and now and then a very long one.
func (b *builder) request() *request {
	prompt := b.between(16, 1024)
	if b.IntN(16) == 0 {
		prompt = b.between(1024, 16384)
	}
	return &request{
		stream: 1 + b.IntN(serveStream),
		tokens: prompt,
		last:   prompt + b.between(16, 2048),
		paged:  b.IntN(2) == 0,
	}
}

// prefill has activations beside the first keys and values.
func (b *builder) prefill(r *request) {
	act := []uint32{
		b.alloc(2*r.tokens*serveHidden, r.stream),
		b.alloc(6*r.tokens*serveHidden, r.stream),
		b.alloc(4*r.tokens*serveInner, r.stream),
	}
	b.grow(r)
	b.freeAll(act, r.stream)
}

// grow makes space for the tokens there are.
func (b *builder) grow(r *request) {
	if r.paged {
		for ; r.space < r.tokens; r.space += pageTokens {
			r.blocks = append(r.blocks, b.alloc(pageTokens*tokenBytes, r.stream))
		}
	} else if r.space < r.tokens {
		// A layer's longer block is there before its shorter one goes.
		r.space = r.tokens + r.tokens/4 + pageTokens
		for i := range serveLayers {
			longer := b.alloc(r.space*tokenBytes/serveLayers, r.stream)
			if i < len(r.blocks) {
				b.free(r.blocks[i], r.stream)
				r.blocks[i] = longer
			} else {
				r.blocks = append(r.blocks, longer)
			}
		}
	}
}
