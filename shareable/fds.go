package shareable

import (
	"container/list"
	"errors"
	"sync"

	"github.com/cuvmm/cuvmm/vmm"
)

// keeper keeps the descriptors of exported chunks, since exporting one takes the
// driver 0.6 ms. Up to max stay open; those used longest ago go first. A kept
// descriptor keeps its memory, so whoever retires a chunk drops it here.
type fdCache struct {
	max int

	mu    sync.Mutex
	entries  map[vmm.Segment]*cachedFD
	lru list.List // of *descriptor, the last one used in front
}

// descriptor is a chunk's descriptor, or the attempt to get one.
type cachedFD struct {
	seg   vmm.Segment
	elem *list.Element // nil once it is not kept any more
	users int
	ready chan struct{} // closed when fd and err are there
	fd    int
	err   error
}

func newFDCache(most int) *fdCache {
	return &fdCache{max: most, entries: map[vmm.Segment]*cachedFD{}}
}

// take gives the chunk's descriptor, which stays open until give. Of several
// that ask for a new one at a time, one asks the driver.
func (k *fdCache) acquire(seg vmm.Segment) (*cachedFD, error) {
	k.mu.Lock()
	d, ok := k.entries[seg]
	if ok {
		k.lru.MoveToFront(d.elem)
		d.users++
		k.mu.Unlock()
		<-d.ready
	} else {
		d = &cachedFD{seg: seg, users: 1, ready: make(chan struct{}), fd: -1}
		d.elem = k.lru.PushFront(d)
		k.entries[seg] = d
		k.mu.Unlock()
		d.fd, d.err = export(seg)
		if errors.Is(d.err, vmm.ErrLimit) && k.evictIdle() {
			d.fd, d.err = export(seg)
		}
		close(d.ready)
	}
	if d.err != nil {
		k.forget(d)
		k.release(d)
		return nil, d.err
	}
	return d, nil
}

func export(seg vmm.Segment) (int, error) {
	c, err := seg.Chunk()
	if err != nil {
		return -1, err
	}
	fd, err := c.Export()
	if closed := c.Close(); err == nil && closed != nil {
		_ = closeFD(fd)
		return -1, closed
	}
	return fd, err
}

// give ends a take. What is kept beyond the limit, and not in use, goes.
func (k *fdCache) release(d *cachedFD) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d.users--
	d.closeUnusedLocked()
	k.evictLocked(k.max)
}

// evict forgets what was used longest ago and is not in use, until most are
// left. It needs k.mu.
func (k *fdCache) evictLocked(most int) {
	for e := k.lru.Back(); e != nil && len(k.entries) > most; {
		before := e.Prev()
		if d, ok := e.Value.(*cachedFD); ok && d.users == 0 {
			k.removeLocked(d)
		}
		e = before
	}
}

// close closes a descriptor that is neither kept nor used. It needs k.mu.
func (d *cachedFD) closeUnusedLocked() {
	if d.elem == nil && d.users == 0 && d.fd >= 0 {
		_ = closeFD(d.fd)
		d.fd = -1
	}
}

// drop forgets a chunk that is given up.
func (k *fdCache) drop(seg vmm.Segment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.entries[seg]; d != nil {
		k.removeLocked(d)
	}
}

// forget is drop for one that may have been replaced already.
func (k *fdCache) forget(d *cachedFD) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d.elem != nil {
		k.removeLocked(d)
	}
}

// remove takes d off those that are kept. It needs k.mu.
func (k *fdCache) removeLocked(d *cachedFD) {
	k.lru.Remove(d.elem)
	d.elem = nil
	delete(k.entries, d.seg)
	d.closeUnusedLocked()
}

// shrink closes everything that is not in use, and says whether there was any.
func (k *fdCache) evictIdle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.entries)
	k.evictLocked(0)
	return len(k.entries) < before
}

// has says whether the chunk's descriptor is kept, or being got.
func (k *fdCache) has(seg vmm.Segment) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[seg] != nil
}

// len is how many are kept.
func (k *fdCache) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.entries)
}
