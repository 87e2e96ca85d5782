package pool

import "github.com/cuvmm/cuvmm/vmm"

// kept is the long block that was freed last in a stream. If the stream's next long block has
// the same size it is that memory, and neither call takes Pool.mu. Every other search makes it
// free memory of the stream first.
type kept struct {
	ext   *extent // nil: none
	stamp uint64  // the stream's Point when it was freed
}

// keep frees a long block in st: it is kept, and what was kept before is free memory.
func (p *Pool) keep(st *stream, e *extent, b Block) error {
	st.mu.Lock()
	if st.gone {
		st.mu.Unlock()
		return st.goneErr()
	}
	if err := endBlock(&e.seq, b.seq, &e.sample); err != nil {
		st.mu.Unlock()
		return err
	}
	p.freeKept(st)
	st.kept = kept{e, st.point()}
	st.count(-1, e.size)
	st.pages -= e.size
	st.mu.Unlock()
	return nil
}

// allocKept allocates what is kept, if that has the size. If not, nothing is kept any more.
func (p *Pool) allocKept(st *stream, size, n uint64) (Block, error) {
	st.mu.Lock()
	if st.gone {
		st.mu.Unlock()
		return Block{}, st.goneErr()
	}
	k := st.kept
	if k.ext == nil || k.ext.size != size {
		p.freeKept(st)
		st.mu.Unlock()
		return Block{}, nil
	}
	st.kept = kept{}
	e := k.ext
	e.by, e.stamp = st, k.stamp // work before the block's own may still use the memory
	e.sample = p.sample(&st.due, size)
	seq := st.nextSeq()
	e.seq.Store(seq)
	st.count(1, size)
	st.pages += size
	b := Block{ptr: p.base + vmm.Ptr(e.off), size: n, in: &e.owner, seq: seq}
	st.mu.Unlock()
	return b, nil
}

// freeKept makes what st has kept its free memory. It needs st.mu: so that whoever has all locks
// sees all memory.
func (p *Pool) freeKept(st *stream) {
	if st.kept.ext != nil {
		p.mu.Lock()
		p.freeKeptLocked(st)
		p.mu.Unlock()
	}
}

func (p *Pool) freeKeptLocked(st *stream) {
	k := st.kept
	if st.kept = (kept{}); k.ext != nil {
		p.setOwnersLocked(k.ext, nil)
		p.freeLocked(k.ext, st, k.stamp)
	}
}

// releaseKept makes what streams keep their free memory.
func (p *Pool) releaseKept(streams ...*stream) {
	for _, st := range streams {
		st.mu.Lock()
		p.freeKept(st)
		st.mu.Unlock()
	}
}
