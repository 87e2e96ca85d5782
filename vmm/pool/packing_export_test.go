package pool

// NoPacking takes slabs as they come: it is for measuring what packing them is worth. The
// pool must not be in use yet.
func (p *Pool) NoPacking() { p.hooks.noPacking = true }
