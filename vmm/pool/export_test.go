package pool

import "github.com/cuvmm/cuvmm/vmm"

// SetNoOrder makes the pool reuse at once, in any stream, what was freed in any stream: the
// negative control of the tests of stream order.
func SetNoOrder(p *Pool) { p.hooks.noOrder = true }

// SetNoPacking has the next slab to allocate from be the one in which a block was freed last.
func SetNoPacking(p *Pool) { p.hooks.noPacking = true }

// Streams is how many streams the pool knows, and how many fences it keeps for them.
func Streams(p *Pool) (streams, fences int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, st := range p.all {
		fences += len(st.fences)
	}
	return len(p.all), fences
}

// Adopt has the second stream take a slab over from the first.
func Adopt(p *Pool, from, to *vmm.Stream, n uint64) {
	t, _ := p.streams.Load(from)
	st, _ := p.streams.Load(to)
	p.adoptFrom(t.(*stream), st.(*stream), p.classes.of(n))
}
