package shareable

import (
	"container/list"
	"errors"
	"fmt"
	"sync"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/vmm"
)

// fdCache keeps descriptors of exported chunks open, because exporting a chunk
// takes the driver 0.6 ms. Up to max stay open; the least recently used are closed
// first. An open descriptor keeps its memory allocated, so retiring a chunk drops
// its entry.
type fdCache struct {
	max int // immutable

	// Guarded by mu.
	mu      sync.Mutex
	entries map[vmm.Segment]*cachedFD
	lru     list.List // of *cachedFD, the most recently used in front
}

// cachedFD is a chunk's descriptor, or an export that is under way.
type cachedFD struct {
	// Immutable.
	seg   vmm.Segment
	ready chan struct{} // closed once fd and err are set

	// Guarded by fdCache.mu.
	elem  *list.Element // nil once it is out of the cache
	users int

	// Set by the goroutine that exports, before ready is closed. After that fd
	// is guarded by fdCache.mu.
	fd  int
	err error
}

func newFDCache(most int) *fdCache {
	return &fdCache{max: most, entries: map[vmm.Segment]*cachedFD{}}
}

// acquire returns the chunk's descriptor, which stays open until release. If
// several goroutines acquire a new one at a time, one of them exports it and the
// others wait.
func (c *fdCache) acquire(seg vmm.Segment) (*cachedFD, error) {
	c.mu.Lock()
	d, ok := c.entries[seg]
	if ok {
		c.lru.MoveToFront(d.elem)
		d.users++
		c.mu.Unlock()
		<-d.ready
	} else {
		d = &cachedFD{seg: seg, users: 1, ready: make(chan struct{}), fd: -1}
		d.elem = c.lru.PushFront(d)
		c.entries[seg] = d
		c.mu.Unlock()
		// The driver is called without the lock: other chunks are served meanwhile.
		d.fd, d.err = export(seg)
		// At the limit on open files our own idle descriptors go first.
		if errors.Is(d.err, vmm.ErrLimit) && c.evictIdle() {
			d.fd, d.err = export(seg)
		}
		close(d.ready)
	}
	// A failed export leaves the cache, so that the next acquire tries again.
	if d.err != nil {
		c.forget(d)
		c.release(d)
		return nil, d.err
	}
	return d, nil
}

func export(seg vmm.Segment) (int, error) {
	chunk, err := seg.Chunk()
	if err != nil {
		return -1, err
	}
	fd, err := chunk.Export()
	if closed := chunk.Close(); err == nil && closed != nil {
		_ = closeFD(fd)
		return -1, closed
	}
	return fd, err
}

// release ends the use that acquire began. Idle entries above the limit are
// evicted.
func (c *fdCache) release(d *cachedFD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.users--
	d.closeUnusedLocked()
	c.evictLocked(c.max)
}

// evictLocked removes idle entries, the least recently used first, until no more
// than most are left. Requires mu.
func (c *fdCache) evictLocked(most int) {
	invariants.Held(&c.mu)
	for e := c.lru.Back(); e != nil && len(c.entries) > most; {
		before := e.Prev()
		if d, ok := e.Value.(*cachedFD); ok && d.users == 0 {
			c.removeLocked(d)
		}
		e = before
	}
}

// closeUnusedLocked closes the descriptor if it is neither in the cache nor in
// use. Requires fdCache.mu.
func (d *cachedFD) closeUnusedLocked() {
	if d.elem == nil && d.users == 0 && d.fd >= 0 {
		_ = closeFD(d.fd)
		d.fd = -1
	}
}

// drop removes the entry of a chunk that is retired.
func (c *fdCache) drop(seg vmm.Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.entries[seg]; d != nil {
		c.removeLocked(d)
	}
}

// forget is drop for an entry that another may have replaced already.
func (c *fdCache) forget(d *cachedFD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.elem != nil {
		c.removeLocked(d)
	}
}

// removeLocked takes d out of the cache. Requires mu.
func (c *fdCache) removeLocked(d *cachedFD) {
	invariants.Held(&c.mu)
	c.lru.Remove(d.elem)
	d.elem = nil
	delete(c.entries, d.seg)
	d.closeUnusedLocked()
}

// evictIdle closes every idle descriptor and reports whether there was one.
func (c *fdCache) evictIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.entries)
	c.evictLocked(0)
	return len(c.entries) < before
}

// has reports whether the chunk's descriptor is in the cache, or being exported.
func (c *fdCache) has(seg vmm.Segment) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[seg] != nil
}

// len is the number of entries.
func (c *fdCache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// acquireChunk is acquire for a chunk of an object.
func (c *fdCache) acquireChunk(x publishedChunk) (*cachedFD, error) {
	if x.own == nil {
		return c.acquire(x.seg)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.own.fd < 0 {
		return nil, fmt.Errorf("%w: chunk %d", vmm.ErrClosed, x.ID)
	}
	x.own.users++
	return x.own, nil
}

// hasChunk is has for a chunk of an object.
func (c *fdCache) hasChunk(x publishedChunk) bool { return x.own != nil || c.has(x.seg) }

// dropChunk is drop for a chunk that its object gives up. It is called once for a chunk
// with a descriptor of its own, which is closed when no frame uses it.
func (c *fdCache) dropChunk(x publishedChunk) {
	if x.own == nil {
		c.drop(x.seg)
		return
	}
	c.release(x.own)
}
