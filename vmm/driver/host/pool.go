//go:build linux

package host

import (
	"cmp"
	"errors"
	"slices"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// pool is stream-ordered memory of a context: blocks, and those that were freed and are
// cached. Driver.memMu guards it.
type pool struct {
	handle    driver.Pool
	context   *context
	maker     *device                      // whose Close destroys it; nil for the default pool
	on        *deviceState                 // where its memory lies
	file      *sparse                      // of its memory, if that can be shared
	id        [16]byte                     // in the tokens of its memory
	imports   map[driver.PoolToken]*region // nil: it is none that was imported
	destroyed bool                         // it goes with its last memory
	max       uint64                       // bytes reserved at most; 0: no limit
	threshold uint64
	reuse     [3]uint64       // by attribute, from PoolReuseFollowEvents on
	access    []driver.Access // by device ordinal
	cached    []*cachedBlock  // in the order in which they were freed

	reserved, reservedPeak uint64 // bytes of all blocks
	blocks, usedPeak       uint64 // bytes of blocks that are not cached; the most in use
}

// cachedBlock is memory that was freed and is mapped still.
type cachedBlock struct {
	*region
	stream *stream // in which it was freed
	freed  *op     // its end is that of all work on the memory; nil: a wait has shown it
	number uint64  // of the free in its stream
}

// newPool lists a pool of the context.
func (c *context) newPool(maker *device) *pool {
	c.d.workMu.Lock()
	defer c.d.workMu.Unlock()
	c.d.lastID++
	p := &pool{handle: driver.Pool(c.d.lastID), context: c, maker: maker, on: c.state, reuse: [3]uint64{1, 1, 1}}
	p.access = make([]driver.Access, len(c.d.states))
	p.access[c.state.ordinal] = driver.AccessReadWrite
	c.d.pools[p.handle] = p
	return p
}

// currentPool is the pool that AllocAsync takes from.
func (c *context) currentPool() *pool {
	if c.current == nil {
		c.current = c.defaultPool()
	}
	return c.current
}

func (c *context) defaultPool() *pool {
	if c.byDefault == nil {
		c.byDefault = c.newPool(nil)
	}
	return c.byDefault
}

// pool finds a pool of any device. The caller holds memMu.
func (d *Driver) pool(verb string, h driver.Pool) (*pool, error) {
	p := d.pools[h]
	switch {
	case p == nil || p.destroyed:
		return nil, refuse(verb, driver.ErrInvalid, "no pool %d", h)
	case p.context.reset.Load():
		return nil, refuse(verb, driver.ErrInvalid, "pool %d went with the context of host:%d, which was reset", h, p.context.state.ordinal)
	}
	return p, nil
}

// anyStream finds a stream of any device. The caller holds workMu.
func (v *device) anyStream(verb string, s driver.Stream) (*stream, error) {
	for _, u := range v.context.d.states {
		if u.context != nil && u.context.streams[s] != nil {
			return u.context.stream(verb, s)
		}
	}
	return v.context.stream(verb, s)
}

// orderIn finds a stream in whose order memory is allocated or freed. The caller holds
// workMu.
func (v *device) orderIn(verb string, s driver.Stream) (*stream, error) {
	x, err := v.anyStream(verb, s)
	if err != nil {
		return nil, err
	}
	if x.capture != nil {
		return nil, refuse(verb, driver.ErrNotSupported, "memory of a pool in a capture")
	}
	return x, x.checkWork(verb)
}

// allocFrom allocates n bytes of the pool that choose finds.
func (v *device) allocFrom(verb string, n uint64, s driver.Stream, choose func(*stream) (*pool, error)) (driver.Ptr, error) {
	if err := v.checkOpen(verb); err != nil {
		return 0, err
	}
	d := v.context.d
	d.memMu.Lock()
	defer d.unlockAndClose()
	d.workMu.Lock()
	x, err := v.orderIn(verb, s)
	if err == nil && n > 0 {
		x.orderDefaults()
	}
	d.workMu.Unlock()
	if err != nil {
		return 0, err
	}
	p, err := choose(x)
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, refuse(verb, driver.ErrInvalid, "size 0")
	case n > addressLimit:
		return 0, refuse(verb, driver.ErrOutOfMemory, "%d bytes", n)
	}
	r, err := p.memory(verb, wholePages(n), x)
	if err != nil {
		return 0, err
	}
	r.block = &block{context: p.context, n: n, pool: p}
	d.insert(r)
	p.blocks += r.size
	p.usedPeak = max(p.usedPeak, p.used())
	return driver.Ptr(r.base), nil
}

// memory is a cached block that the stream may reuse, or else new memory. If there is none, it is a
// block that another stream has freed, for which this one then waits.
func (p *pool) memory(verb string, size uint64, x *stream) (*region, error) {
	if r := p.take(size, x, false); r != nil {
		return r, nil
	}
	r, err := p.newRegion(verb, size)
	if errors.Is(err, driver.ErrOutOfMemory) && p.allows(driver.PoolReuseInternalDependencies) {
		if r = p.take(size, x, true); r != nil {
			return r, nil
		}
	}
	return r, err
}

// take takes the smallest cached block that the stream may reuse, by a wait if wait says so, unless that
// is more than twice as large as asked for.
func (p *pool) take(size uint64, x *stream, wait bool) *region {
	p.context.d.workMu.Lock()
	defer p.context.d.workMu.Unlock()
	best := -1
	for i, f := range p.cached {
		fits := f.size >= size && f.size/2 <= size && (best < 0 || f.size < p.cached[best].size)
		if fits && (wait || p.reusable(f, x)) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	f := p.cached[best]
	if !p.reusable(f, x) {
		x.follow(frees{f.stream: f.number})
		if done := f.freed.pending(); done != nil {
			x.push(waitFor(done))
		}
	}
	p.cached = slices.Delete(p.cached, best, best+1)
	p.context.d.cachedBlocks.Add(-1)
	return f.region
}

// reusable reports whether the stream's work from now on comes after all work on a cached
// block: it was freed in the same stream, or before an event that the stream waits for, or that work has
// ended. The caller holds workMu.
func (p *pool) reusable(f *cachedBlock, x *stream) bool {
	return f.freed == nil || f.stream == x ||
		x.follows[f.stream] >= f.number && p.allows(driver.PoolReuseFollowEvents) ||
		f.freed.ended && p.allows(driver.PoolReuseOpportunistic)
}

// allows reports whether a policy is on.
func (p *pool) allows(a driver.PoolAttribute) bool {
	return p.reuse[a-driver.PoolReuseFollowEvents] != 0
}

// used is the bytes of blocks, and of cached ones whose work has not ended.
func (p *pool) used() uint64 {
	p.context.d.workMu.Lock()
	defer p.context.d.workMu.Unlock()
	n := p.blocks
	for _, f := range p.cached {
		if f.freed != nil && !f.freed.ended {
			n += f.size
		}
	}
	return n
}

// newRegion maps memory for the pool. If there is none, cached blocks that no one uses go first.
func (p *pool) newRegion(verb string, size uint64) (*region, error) {
	d, u := p.context.d, p.context.state
	if p.max != 0 && size > p.max-p.reserved {
		d.releaseCached(p, func(uint64) bool { return true })
		if size > p.max-p.reserved {
			return nil, refuse(verb, driver.ErrOutOfMemory, "%d bytes of a pool that has %d reserved of %d", size, p.reserved, p.max)
		}
	}
	if size > u.memory-u.used {
		for _, q := range d.poolsOf(u) {
			d.releaseCached(q, func(uint64) bool { return true })
		}
	}
	if err := d.charge(verb, u, size); err != nil {
		return nil, err
	}
	if p.file != nil && !p.file.has(size) {
		u.used -= size
		return nil, refuse(verb, driver.ErrLimit, "%d bytes of a pool whose file has no offsets left for them (RLIMIT_FSIZE)", size)
	}
	r, err := d.mapBlock(verb, size, p.file)
	if err != nil {
		u.used -= size
		return nil, err
	}
	p.reserved += size
	p.reservedPeak = max(p.reservedPeak, p.reserved)
	return r, nil
}

// add takes a block that was freed.
func (p *pool) add(f *cachedBlock) {
	p.blocks -= f.region.size
	p.unname(f.region)
	p.cached = append(p.cached, f)
	p.context.d.cachedBlocks.Add(1)
	if p.keepsNothing() {
		p.context.d.releaseCached(p, func(uint64) bool { return true })
	}
}

// releaseCached unmaps cached blocks whose work has ended, the oldest first, as long as wanted
// is true of the next one's size. Work that is not ordered with the free loses the
// devices, as it does when mapped memory goes. A destroyed pool goes with its last memory.
func (d *Driver) releaseCached(p *pool, wanted func(size uint64) bool) {
	p.cached = slices.DeleteFunc(p.cached, func(f *cachedBlock) bool {
		if !d.ended(f) || !wanted(f.size) {
			return false
		}
		return d.unmapCached(p, f)
	})
	if p.destroyed && len(p.cached) == 0 && p.blocks == 0 {
		d.removePool(p)
	}
}

// removePool lists a pool that has no memory no longer.
func (d *Driver) removePool(p *pool) {
	delete(d.pools, p.handle)
	if p.file != nil {
		p.file.end()
	}
}

// keepsNothing reports whether no one can allocate what is freed.
func (p *pool) keepsNothing() bool { return p.destroyed || p.imports != nil }

func (d *Driver) ended(f *cachedBlock) bool {
	d.workMu.Lock()
	defer d.workMu.Unlock()
	return f.freed == nil || f.freed.ended
}

// unmapCached returns false where the kernel refuses.
func (d *Driver) unmapCached(p *pool, f *cachedBlock) bool {
	d.loseIfUsed(within(f.base, f.end()))
	if munmap(f.base, f.size) != nil {
		return false
	}
	d.countUnmapped(f.region)
	p.reserved -= f.size
	d.cachedBlocks.Add(-1)
	return true
}

// poolsOf is the pools of a device, destroyed ones too, in the order in which they were
// made.
func (d *Driver) poolsOf(u *deviceState) (all []*pool) {
	for _, p := range d.pools {
		if p.context.state == u {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *pool) int { return cmp.Compare(a.handle, b.handle) })
	return all
}

// afterWait is called after a wait for work of a device. What is known to have ended by
// then is free for every stream, and what its pools hold beyond their thresholds goes.
func (d *Driver) afterWait(u *deviceState) {
	if d.cachedBlocks.Load() == 0 {
		return
	}
	d.memMu.Lock()
	defer d.unlockAndClose()
	for _, p := range d.poolsOf(u) {
		d.releaseCached(p, func(uint64) bool { return p.keepsNothing() || p.reserved > p.threshold })
		for _, f := range p.cached {
			if d.ended(f) {
				f.freed = nil
			}
		}
	}
}

// destroyPool lists a pool no longer, but for what is left of its memory. The caller
// holds memMu.
func (d *Driver) destroyPool(p *pool) {
	p.destroyed = true
	if p.context.current == p {
		p.context.current = nil
	}
	d.releaseCached(p, func(uint64) bool { return true })
}

// freePools ends the pools of a context, after its blocks. Those of one that was reset
// stay listed until they are destroyed. The caller holds memMu.
func (d *Driver) freePools(c *context) {
	for _, p := range d.poolsOf(c.state) {
		if p.context != c {
			continue
		}
		p.cached = slices.DeleteFunc(p.cached, func(f *cachedBlock) bool { return d.unmapCached(p, f) })
		p.blocks, p.reserved = 0, 0
		clear(p.imports)
		if !c.reset.Load() || p.maker == nil {
			d.removePool(p)
		}
	}
}
