package pool

// remoteBlock is a free block of a slab that a stream has although the slab is another's: it was
// freed in that stream, or lent to it. The stream may have it at once. Others may once its work up
// to stamp has ended, or they come after that.
type remoteBlock struct {
	sl    *slab
	i     int
	stamp uint64
}

// remoteQueue is the remote blocks of one stream and one class, in the order of their stamps.
type remoteQueue struct {
	all  []remoteBlock
	head int // those before are gone
}

func (q *remoteQueue) empty() bool { return q.head == len(q.all) }

// list is all of them, the oldest first.
func (q *remoteQueue) list() []remoteBlock { return q.all[q.head:] }

// push adds one; no other has a later stamp.
func (q *remoteQueue) push(p *Pool, b remoteBlock) {
	if q.head > 0 && len(q.all) == cap(q.all) && q.head >= len(q.all)/2 {
		n := copy(q.all, q.list())
		clear(q.all[n:])
		q.all, q.head = q.all[:n], 0
	}
	q.all = append(q.all, b)
	p.remotes.Add(1)
}

// pushFirst adds one that is idle: its stamp is 0.
func (q *remoteQueue) pushFirst(p *Pool, b remoteBlock) {
	if q.head == 0 {
		more := make([]remoteBlock, lendMost, lendMost+2*len(q.all))
		q.all, q.head = append(more, q.all...), lendMost
	}
	q.head--
	q.all[q.head] = b
	p.remotes.Add(1)
}

// newest takes the one that came last, whose memory is likelier to be in a cache.
func (q *remoteQueue) newest(p *Pool) remoteBlock {
	last := len(q.all) - 1
	b := q.all[last]
	q.all[last].sl = nil
	if q.all = q.all[:last]; q.empty() {
		q.all, q.head = q.all[:0], 0
	}
	p.remotes.Add(-1)
	return b
}

// oldest takes the first one if its stamp is below before.
func (q *remoteQueue) oldest(p *Pool, before uint64) (b remoteBlock, ok bool) {
	if q.empty() || q.all[q.head].stamp >= before {
		return b, false
	}
	b = q.all[q.head]
	q.all[q.head].sl = nil
	if q.head++; q.empty() {
		q.all, q.head = q.all[:0], 0
	}
	p.remotes.Add(-1)
	return b, true
}

// drop takes out those for which f returns true.
func (q *remoteQueue) drop(p *Pool, f func(remoteBlock) bool) {
	kept := q.all[:0]
	for _, b := range q.list() {
		if f(b) {
			p.remotes.Add(-1)
			continue
		}
		kept = append(kept, b)
	}
	clear(q.all[len(kept):])
	q.all, q.head = kept, 0
}

// lendMost is how many blocks a stream gets at once that were another's.
const lendMost = 16

// lending is which blocks a stream lends.
type lending uint8

const remotesOnly, slabsToo lending = 0, 1

// lendLocked gives st up to most free blocks of a class that t has, remote ones or, with slabsToo, of
// its slabs, which st may have as reach says. It reports whether there were any. The mu of both
// streams are held.
func (p *Pool) lendLocked(t, st *stream, class int, follow bool, most int, which lending) bool {
	from, to := &t.classes[class], &st.classes[class]
	idle, before := p.reachEnded(nil, t), p.reach(st, t, follow)
	lent := 0
	for lent < most {
		b, ok := from.remote.oldest(p, before)
		if !ok {
			break
		}
		lent++
		isIdle := b.stamp < idle
		if b.sl.home.Load() != st {
			p.lendBlock(st, to, b.sl, b.i, isIdle)
		} else {
			if !isIdle {
				b.sl.worked(st) // st comes after that work, others may not
			}
			if to.give(p, b.sl, b.i, isIdle) != nil { // enough such are kept, but it is about to be used
				to.putBack(p, b.sl)
			}
		}
		most = p.lendsMore(isIdle, most)
	}
	for lent < most && which == slabsToo && !p.hooks.noLending {
		sl := from.takeOut(before)
		if sl == nil {
			break
		}
		for lent < most && sl.lends(before) {
			i, stamp := sl.lend(before)
			lent++
			most = p.lendsMore(stamp < idle, most)
			p.lendBlock(st, to, sl, i, stamp < idle)
		}
		from.putBack(p, sl)
	}
	return lent > 0
}

// lendsMore is how many blocks may be lent: one, if t could not have those back that are not idle.
func (p *Pool) lendsMore(isIdle bool, most int) int {
	if isIdle || p.allows(ReuseInternalDependencies) {
		return most
	}
	return min(most, 1)
}

// lendBlock makes a block a remote one of st. It stays idle if it is.
func (p *Pool) lendBlock(st *stream, to *ofClass, sl *slab, i int, isIdle bool) {
	if isIdle {
		to.remote.pushFirst(p, remoteBlock{sl, i, 0})
	} else {
		to.remote.push(p, remoteBlock{sl, i, st.point()})
	}
}

// takeOut takes a slab with free blocks and a stamp below before out of the lists; nil if there is
// none.
func (c *ofClass) takeOut(before uint64) *slab {
	if sl := c.current; sl != nil && sl.lends(before) {
		c.current = nil
		return sl
	}
	for _, l := range []*slabList{&c.partly[0], &c.partly[1], &c.partly[2], &c.partly[3], &c.empty} {
		for sl := l.first; sl != nil; sl = sl.next {
			if sl.lends(before) {
				c.forget(sl)
				return sl
			}
		}
	}
	return nil
}

// putBack enters a slab in the lists that takeOut has taken it from.
func (c *ofClass) putBack(p *Pool, sl *slab) {
	switch {
	case sl.full():
	case sl.inUse() == 0:
		c.empty.add(sl)
		c.empties++
	default:
		c.quarter(p, sl).add(sl)
	}
}

// forget takes a slab out of the lists.
func (c *ofClass) forget(sl *slab) {
	if sl == c.current {
		c.current = nil
	}
	if sl.list == &c.empty {
		c.empties--
	}
	if sl.list != nil {
		sl.list.remove(sl)
	}
}

// lend is lendLocked for what st may have of t now.
func (p *Pool) lend(t, st *stream, class, most int, which lending) bool {
	unlock := lockBoth(t, st)
	defer unlock()
	if st.gone {
		return false
	}
	return p.lendLocked(t, st, class, p.allows(ReuseFollowEvents), most, which)
}

// lockBoth locks two streams: the older one first.
func lockBoth(a, b *stream) (unlock func()) {
	if b.number < a.number {
		a, b = b, a
	}
	a.mu.Lock()
	b.mu.Lock()
	return func() {
		b.mu.Unlock()
		a.mu.Unlock()
	}
}

// remotesFor gives st remote blocks of other streams that it may have, of one class. It reports
// whether there were any.
func (p *Pool) remotesFor(st *stream, class int) bool {
	if p.remotes.Load() == 0 {
		return false
	}
	for _, t := range p.list() {
		if t == st {
			continue
		}
		newest, waiting := t.newestRemoteOf(class)
		if !waiting {
			continue
		}
		if p.lend(t, st, class, lendMost, remotesOnly) {
			return true
		}
		if p.allows(ReuseOpportunistic) {
			p.mu.Lock()
			if p.closed.Load() { // nothing is recorded any more
				p.mu.Unlock()
				return false
			}
			p.queryStreamLocked(t, newest)
			p.mu.Unlock()
			if p.lend(t, st, class, lendMost, remotesOnly) {
				return true
			}
		}
	}
	return false
}

// shareAbove is beyond how many streams the first block of a size that a stream allocates is lent
// by another one: a slab each would be more memory than many streams need.
const shareAbove = 64

// firstOf lends st a block of the slab of a class that was made last; false if there is none that
// st may have.
func (p *Pool) firstOf(st *stream, class int) bool {
	if len(p.list()) <= shareAbove {
		return false
	}
	st.mu.Lock()
	first := !st.classes[class].used
	st.classes[class].used = true
	st.mu.Unlock()
	sl := p.lastSlabs[class].Load()
	if !first || sl == nil {
		return false
	}
	t := sl.home.Load()
	return t != st && p.lend(t, st, class, 1, slabsToo)
}

// newestRemoteOf is the highest stamp of the remote blocks of a class; false if there are none.
func (st *stream) newestRemoteOf(class int) (stamp uint64, some bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	all := st.classes[class].remote.list()
	if len(all) == 0 {
		return 0, false
	}
	return all[len(all)-1].stamp, true
}

// hasFree reports whether the class has free blocks. It needs the stream's mu.
func (c *ofClass) hasFree() bool {
	if !c.remote.empty() || c.current != nil && !c.current.full() || c.empty.first != nil {
		return true
	}
	for i := range c.partly {
		if c.partly[i].first != nil {
			return true
		}
	}
	return false
}

// hasFree reports whether the stream has free memory of any kind but what is kept. It needs st.mu and
// Pool.mu.
func (st *stream) hasFree() bool {
	if st.free.newest != nil {
		return true
	}
	for i := range st.classes {
		if st.classes[i].hasFree() {
			return true
		}
	}
	return false
}
