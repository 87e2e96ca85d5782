package pool

import (
	"slices"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// Usage is what the memory of a Pool is used for, all at one moment. All sizes are bytes. JSON
// field names are stable.
type Usage struct {
	Stats   Stats         `json:"stats"`
	Idle    uint64        `json:"idle"`    // free memory that any stream may have at once
	Chunks  []ChunkUsage  `json:"chunks"`  // those that are mapped, by address
	Streams []StreamUsage `json:"streams"` // those that have allocated or freed, in that order
}

// ChunkUsage is one mapped chunk of a Pool. Its size also includes memory that a call was just
// working on, and the ends of slabs that are too short for a block.
type ChunkUsage struct {
	Addr    vmm.Ptr `json:"addr"`
	Size    uint64  `json:"size"`
	Used    uint64  `json:"used"`     // of blocks that are allocated, as rounded up
	InSlabs uint64  `json:"in_slabs"` // free in slabs
	Pending uint64  `json:"pending"`  // freed in streams whose work is not known to have ended
	Idle    uint64  `json:"idle"`     // free for any stream
	Longest uint64  `json:"longest"`  // the longest run of idle and pending memory in this chunk
}

// StreamUsage is the free memory that one stream may have again at once.
type StreamUsage struct {
	Stream  uint64       `json:"stream"`  // the driver's handle, 0 for the legacy default stream
	Pending uint64       `json:"pending"` // freed in it, without what is in slabs
	InSlabs uint64       `json:"in_slabs"`
	Classes []ClassUsage `json:"classes"` // those of which it has memory, the shortest first
}

// ClassUsage is a stream's blocks of one size in slabs.
type ClassUsage struct {
	Size   uint64 `json:"size"`   // of a block
	Slabs  int    `json:"slabs"`  // of which the stream is the home
	Blocks int    `json:"blocks"` // that are allocated in those slabs, by whichever stream
	Free   uint64 `json:"free"`   // bytes that the stream may have at once
}

// Usage reports what the pool's memory is used for. It makes no driver call. Other calls of the
// pool wait while it looks at every block: half a millisecond for 100,000 short blocks
// (BenchmarkUsage). The Usage of a closed pool is empty. Safe for concurrent use.
func (p *Pool) Usage() (Usage, error) {
	if p == nil || p.res == nil {
		return Usage{}, p.fail("read usage", 0, 0, errNoPool)
	}
	locked := p.lockFreed()
	defer p.mu.Unlock()
	defer unlockAll(locked)
	l := usageList{Pool: p, Usage: Usage{Stats: p.statsLocked(locked), Idle: p.idle.total(), Streams: []StreamUsage{}}}
	l.Chunks = make([]ChunkUsage, 0, p.chunks.Load())
	for i := range p.slots {
		if p.slots[i].chunk != nil {
			l.Chunks = append(l.Chunks, ChunkUsage{Addr: p.base + vmm.Ptr(uint64(i)*p.chunk), Size: p.chunk}) //nolint:gosec // not negative
		}
	}
	l.classes = map[*stream][]ClassUsage{}
	for i := range p.regions {
		l.addRegion(&p.regions[i])
	}
	for _, st := range locked {
		l.addStream(st)
	}
	return l.Usage, nil
}

// usageList is a Usage that is being filled. All locks of the pool are held.
type usageList struct {
	*Pool
	Usage
	at      int // the chunk at or before which the last bytes were
	classes map[*stream][]ClassUsage
}

// addRegion adds the extents of a region, which lie in the order of their addresses.
func (l *usageList) addRegion(r *region) {
	var runStart, runEnd uint64 // free memory that was seen last
	for e := r.first; e != nil; e = e.next {
		switch e.kind {
		case kindBlock:
			l.spread(e.off, e.end(), func(c *ChunkUsage, n uint64) { c.Used += n })
		case kindSlab:
			l.addSlab(e)
		case kindFree:
			idle := e.list == &l.idle
			l.spread(e.off, e.end(), func(c *ChunkUsage, n uint64) {
				if idle {
					c.Idle += n
				} else {
					c.Pending += n
				}
			})
			if e.off != runEnd {
				runStart = e.off
			}
			runEnd = e.end()
			l.spread(runStart, runEnd, func(c *ChunkUsage, n uint64) { c.Longest = max(c.Longest, n) })
		}
	}
}

// spread calls f for each mapped chunk that has bytes of [off, end), with how many.
func (l *usageList) spread(off, end uint64, f func(c *ChunkUsage, n uint64)) {
	start := func(i int) uint64 { return uint64(l.Chunks[i].Addr - l.base) }
	if l.at >= len(l.Chunks) || start(l.at) > off || off >= start(l.at)+l.chunk {
		i, ok := slices.BinarySearchFunc(l.Chunks, l.base+vmm.Ptr(off), func(c ChunkUsage, p vmm.Ptr) int {
			switch {
			case c.Addr > p:
				return 1
			case c.Addr+vmm.Ptr(c.Size) <= p:
				return -1
			}
			return 0
		})
		if l.at = i; !ok && i >= len(l.Chunks) {
			return
		}
	}
	for i := l.at; i < len(l.Chunks) && start(i) < end; i++ {
		f(&l.Chunks[i], min(end, start(i)+l.chunk)-max(off, start(i)))
	}
}

// addSlab adds the blocks of a slab to the chunks and to its home.
func (l *usageList) addSlab(e *extent) {
	pages := l.slots[e.off/l.chunk].owners.Load()
	if pages == nil {
		return
	}
	o := (*pages)[e.off%l.chunk/pageSize].Load()
	if o == nil || o.slab == nil || o.slab.ext != e {
		return // a call is just making it
	}
	sl := o.slab
	l.spread(e.off, e.off+sl.bytes(), func(c *ChunkUsage, n uint64) { c.InSlabs += n })
	blocks := 0
	for i := range sl.seqs {
		if sl.seqs[i].Load()&numberBits == 0 {
			continue
		}
		blocks++
		off := e.off + uint64(i)*sl.size //nolint:gosec // not negative
		l.spread(off, off+sl.size, func(c *ChunkUsage, n uint64) { c.Used, c.InSlabs = c.Used+n, c.InSlabs-n })
	}
	c := l.class(sl.home.Load(), sl.class)
	c.Slabs++
	c.Blocks += blocks
	c.Free += uint64(len(sl.seqs)-sl.inUse()) * sl.size //nolint:gosec // not negative
}

// class is the entry of a stream and a class.
func (l *usageList) class(st *stream, class int) *ClassUsage {
	all := l.classes[st]
	if all == nil {
		all = make([]ClassUsage, len(l.Pool.classes.sizes))
		l.classes[st] = all
	}
	all[class].Size = l.Pool.classes.sizes[class]
	return &all[class]
}

// addStream adds what a stream may have at once.
func (l *usageList) addStream(st *stream) {
	for class := range st.classes {
		if n := len(st.classes[class].remote.list()); n > 0 {
			c := l.class(st, class)
			c.Free += uint64(n) * l.Pool.classes.sizes[class] //nolint:gosec // not negative
		}
	}
	u := StreamUsage{Stream: inside.VMM.StreamNumber(st.s), Pending: st.free.total(), Classes: []ClassUsage{}}
	for _, c := range l.classes[st] {
		if c.Size != 0 {
			u.Classes = append(u.Classes, c)
			u.InSlabs += c.Free
		}
	}
	l.Streams = append(l.Streams, u)
}
